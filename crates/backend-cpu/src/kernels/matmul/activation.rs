//! The forms in which matrices read activations.
//!
//! An activation is prepared once and shared by every matrix that wants the same [`ActivationFormat`].

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::layout::BLOCK;
use super::words;
use crate::isa::Features;
use std::ops::Range;

/// How the rows of an activation are stored for [`super::PackedMatrix::multiply`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivationFormat {
    /// The numbers themselves, each row padded with zeros to a multiple of 32.
    F32,
    /// Per 32 columns: 32 signed bytes, an f32 scale (largest magnitude / 127), scale times sum, the integer sums of both
    /// halves in 16 bits each, and -128 times the sum of all and of each half in 32 bits: [`Q8_BYTES`] bytes.
    Q8,
    /// Each number as the sum of two signed bytes, the first worth 128 of the second, for weights of 8 bits, of which
    /// single bytes would lose more than the weights have lost. Per 32 columns: 32 first bytes, 32 second bytes, an f32
    /// scale of the second (largest magnitude / 8127), and the sum of the numbers times -128 as an integer:
    /// [`SPLIT_BYTES`] bytes.
    Q8Split,
    /// BF16 in blocks of 16 tokens by 32 columns (one matrix tile, 1 KiB), blocks of a token group side by side.
    Bf16,
    /// Integers of 16 bits, for weights of more than 8 significant bits ([`words`]).
    Q16,
}

/// Bytes of 32 columns in [`ActivationFormat::Q8`].
pub(super) const Q8_BYTES: usize = 56;
/// Bytes of 32 columns in [`ActivationFormat::Q8Split`].
pub(super) const SPLIT_BYTES: usize = 72;
/// Bits of the second byte's number in [`ActivationFormat::Q8Split`].
pub(super) const SPLIT_BITS: u32 = 7;
/// The largest number of [`ActivationFormat::Q8Split`]: both bytes are at most 64 in size, so that two products with unsigned bytes fit the
/// 16-bit sums of AVX2.
pub(super) const SPLIT_LARGEST: f32 = 8127.0;
/// Tokens in one BF16 tile.
pub(super) const TILE_TOKENS: usize = 16;
/// Bytes of one BF16 tile.
pub(super) const TILE_BYTES: usize = 1024;

impl ActivationFormat {
    /// Bytes that `tokens` rows of `columns` numbers occupy.
    pub fn bytes(self, tokens: usize, columns: usize) -> usize {
        match self {
            Self::F32 | Self::Q8 | Self::Q8Split => tokens * self.token_bytes(columns),
            Self::Bf16 => tokens.next_multiple_of(2 * TILE_TOKENS) * self.token_bytes(columns),
            Self::Q16 => tokens.next_multiple_of(words::TOKENS) * self.token_bytes(columns),
        }
    }

    /// Bytes of one row (of its share in a tile).
    pub(super) fn token_bytes(self, columns: usize) -> usize {
        let blocks = columns.div_ceil(BLOCK);
        match self {
            Self::F32 => blocks * BLOCK * 4,
            Self::Q8 => blocks * Q8_BYTES,
            Self::Q8Split => blocks * SPLIT_BYTES,
            Self::Bf16 => blocks * BLOCK * 2,
            Self::Q16 => words::blocks(columns) * words::BYTES,
        }
    }

    /// Converts the rows `x` (`[tokens.len(), columns]`) and stores them as the rows `tokens` of the prepared
    /// activation at `destination`. Threads may prepare different tokens of one activation at the same time.
    ///
    /// # Safety
    /// `destination` must be valid for writes of [`ActivationFormat::bytes`] for the whole activation, aligned to
    /// 4 bytes, and no one else may access the rows `tokens` meanwhile.
    ///
    /// # Panics
    /// If `x` has another length than its extents say.
    pub unsafe fn prepare(
        self,
        features: Features,
        x: &[f32],
        columns: usize,
        tokens: Range<usize>,
        destination: *mut u8,
    ) {
        assert_eq!(x.len(), tokens.len() * columns, "activation rows do not match their extents");
        // SAFETY: forwarded from the caller; `features` proves that the processor has the instructions.
        unsafe {
            if self == Self::Q16 {
                return words::prepare(features, x, columns, tokens, destination);
            }
            #[cfg(target_arch = "x86_64")]
            if features.avx512 {
                return prepare_avx512(self, x, columns, tokens, destination);
            } else if features.avx2 {
                return prepare_avx2(self, x, columns, tokens, destination);
            }
            let _ = features;
            prepare_rows(self, x, columns, tokens, destination, (quantize, split, round));
        }
    }
}

/// # Safety
/// As for [`ActivationFormat::prepare`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn prepare_avx512(
    format: ActivationFormat,
    x: &[f32],
    columns: usize,
    tokens: Range<usize>,
    destination: *mut u8,
) {
    // SAFETY: forwarded from the caller.
    unsafe {
        let quantize = |values: &_| avx512::quantize(values);
        let split = |values: &_| avx512::split_bytes(values);
        let round = |values: &_| avx512::round_to_bf16(values);
        prepare_rows(format, x, columns, tokens, destination, (quantize, split, round))
    }
}

/// The loops of [`prepare_rows`], vectorised by the compiler.
///
/// # Safety
/// As for [`ActivationFormat::prepare`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn prepare_avx2(
    format: ActivationFormat,
    x: &[f32],
    columns: usize,
    tokens: Range<usize>,
    destination: *mut u8,
) {
    // Closures have the instructions of this function, which the functions themselves do not.
    let quantize = |values: &_| quantize(values);
    let split = |values: &_| split(values);
    let round = |values: &_| round(values);
    // SAFETY: forwarded from the caller.
    unsafe { prepare_rows(format, x, columns, tokens, destination, (quantize, split, round)) }
}

/// # Safety
/// As for [`ActivationFormat::prepare`].
#[inline(always)]
unsafe fn prepare_rows(
    format: ActivationFormat,
    x: &[f32],
    columns: usize,
    tokens: Range<usize>,
    destination: *mut u8,
    (quantize, split, round): (
        impl Fn(&[f32; BLOCK]) -> [u8; Q8_BYTES],
        impl Fn(&[f32; BLOCK]) -> [u8; SPLIT_BYTES],
        impl Fn(&[f32; BLOCK]) -> [u16; BLOCK],
    ),
) {
    let token_bytes = format.token_bytes(columns);
    for (token, row) in tokens.zip(x.chunks_exact(columns.max(1))) {
        // The first byte of the row, and the step from one block of 32 columns to the next.
        let (start, step) = match format {
            ActivationFormat::F32 => (token * token_bytes, BLOCK * 4),
            ActivationFormat::Q8 => (token * token_bytes, Q8_BYTES),
            ActivationFormat::Q8Split => (token * token_bytes, SPLIT_BYTES),
            ActivationFormat::Bf16 => {
                let tile_row = token / TILE_TOKENS * TILE_TOKENS * token_bytes;
                (tile_row + token % TILE_TOKENS * (BLOCK * 2), TILE_BYTES)
            }
            ActivationFormat::Q16 => unreachable!("prepared by `words`"),
        };
        for (block, values) in row.chunks(BLOCK).enumerate() {
            let mut room = [0.0; BLOCK];
            let values = padded(values, &mut room);
            // SAFETY: the block lies inside the activation, whose extent the caller vouches for; all element
            // types are written with no more alignment than 4 bytes.
            unsafe {
                let place = destination.add(start + block * step);
                match format {
                    ActivationFormat::F32 => place.cast::<[f32; BLOCK]>().write(*values),
                    ActivationFormat::Q8 => place.cast::<[u8; Q8_BYTES]>().write(quantize(values)),
                    ActivationFormat::Q8Split => place.cast::<[u8; SPLIT_BYTES]>().write(split(values)),
                    ActivationFormat::Bf16 => place.cast::<[u16; BLOCK]>().write(round(values)),
                    ActivationFormat::Q16 => unreachable!("prepared by `words`"),
                }
            }
        }
    }
}

/// A block of `N` numbers: these, or in `room`, which holds zeros, these and zeros where there are fewer.
#[inline(always)]
pub(super) fn padded<'a, const N: usize>(values: &'a [f32], room: &'a mut [f32; N]) -> &'a [f32; N] {
    match values.try_into() {
        Ok(values) => values,
        Err(_) => {
            room[..values.len()].copy_from_slice(values);
            room
        }
    }
}

/// The largest magnitude of a block.
#[inline(always)]
fn largest(values: &[f32; BLOCK]) -> f32 {
    let mut largest = [0.0f32; 16];
    for half in 0..2 {
        for lane in 0..16 {
            let magnitude = values[half * 16 + lane].abs();
            largest[lane] = if magnitude > largest[lane] { magnitude } else { largest[lane] };
        }
    }
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            let other = largest[lane + width];
            largest[lane] = if other > largest[lane] { other } else { largest[lane] };
        }
    }
    largest[0]
}

/// What numbers of which the largest magnitude is `largest` are multiplied by, so that it becomes `most`. Where that could
/// overflow or what 1 stands for be subnormal, 0: such numbers become zeros.
#[inline(always)]
pub(super) fn inverse(largest: f32, most: f32) -> f32 {
    if largest >= most * f32::MIN_POSITIVE { most / largest } else { 0.0 }
}

/// The numbers as integers of which `most` stands for the largest magnitude, and what 1 stands for.
#[inline(always)]
fn integers(values: &[f32; BLOCK], most: f32) -> ([i32; BLOCK], f32) {
    let largest = largest(values);
    let inverse = inverse(largest, most);
    let mut codes = [0i32; BLOCK];
    for (code, value) in codes.iter_mut().zip(values) {
        // Adding 1.5 * 2^23 rounds to the nearest integer, half to even; the low bits of the sum are the integer.
        const ROUND: f32 = 12_582_912.0;
        let bits = (value * inverse + ROUND).to_bits() as i32;
        *code = bits.wrapping_sub(ROUND.to_bits() as i32).clamp(-(most as i32), most as i32);
    }
    (codes, largest / most)
}

/// One block of [`ActivationFormat::Q8`]. What becomes of not-a-number and infinities is unspecified.
#[inline(always)]
fn quantize(values: &[f32; BLOCK]) -> [u8; Q8_BYTES] {
    let (codes, scale) = integers(values, 127.0);
    let sums: [i32; 2] = [codes[..16].iter().sum(), codes[16..].iter().sum()];
    let mut block = [0; Q8_BYTES];
    for (byte, code) in block.iter_mut().zip(codes) {
        *byte = code as i8 as u8;
    }
    put_sums(&mut block, scale, sums);
    block
}

/// Writes what a block of [`ActivationFormat::Q8`] has besides its codes, whose sums are `sums`.
#[inline(always)]
pub(super) fn put_sums(block: &mut [u8; Q8_BYTES], scale: f32, sums: [i32; 2]) {
    let all = sums[0] + sums[1];
    block[32..36].copy_from_slice(&scale.to_le_bytes());
    block[36..40].copy_from_slice(&(scale * all as f32).to_le_bytes());
    block[40..42].copy_from_slice(&(sums[0] as i16).to_le_bytes());
    block[42..44].copy_from_slice(&(sums[1] as i16).to_le_bytes());
    for (place, sum) in [all, sums[0], sums[1]].into_iter().enumerate() {
        block[44 + place * 4..][..4].copy_from_slice(&(-128 * sum).to_le_bytes());
    }
}

/// One block of [`ActivationFormat::Q8Split`]. What becomes of not-a-number and infinities is unspecified.
#[inline(always)]
fn split(values: &[f32; BLOCK]) -> [u8; SPLIT_BYTES] {
    let (codes, scale) = integers(values, SPLIT_LARGEST);
    let mut block = [0; SPLIT_BYTES];
    for (column, code) in codes.iter().enumerate() {
        let first = (code + (1 << (SPLIT_BITS - 1))) >> SPLIT_BITS;
        block[column] = first as i8 as u8;
        block[BLOCK + column] = (code - (first << SPLIT_BITS)) as i8 as u8;
    }
    block[64..68].copy_from_slice(&scale.to_le_bytes());
    block[68..72].copy_from_slice(&(-128 * codes.iter().sum::<i32>()).to_le_bytes());
    block
}

/// 32 numbers as BF16.
#[inline(always)]
fn round(values: &[f32; BLOCK]) -> [u16; BLOCK] {
    values.map(round_to_bf16)
}

/// Rounds to the nearest BF16, half to even; not-a-number stays that.
#[inline(always)]
fn round_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}
