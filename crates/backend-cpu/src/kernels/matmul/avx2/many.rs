//! Integer formats by many tokens. Codes and scales are unpacked once for all of them, into a piece of a group that the
//! first-level cache holds. The integer sums are exact, and the rest is what few tokens do, in the same order: results
//! are the same to the bit.

use super::super::Operands;
use super::super::activation::Q8_BYTES;
use super::super::integers::INTEGERS;
use super::unpack::{block_scales, quad_codes};
use super::{LANES, combine, dot_vnni, less_offset, signed, store, together};
use std::arch::x86_64::*;
use std::hint::black_box;
use std::ops::Range;

/// From this number of tokens on unpacking first is faster.
pub(super) const TOKENS: usize = 8;
/// Vectors of codes that are unpacked at once: 16 KiB.
const VECTORS: usize = 512;
/// Tokens whose sums are kept meanwhile: 8 KiB.
const TILE: usize = 128;
/// Bytes of a vector.
const BYTES: usize = 32;

/// Unpacked codes, in the order in which they are read: for each block and each of its eight quads the first and
/// the second half of the rows.
#[repr(C, align(64))]
struct Codes([[u8; BYTES]; VECTORS]);

/// Scales of each block and each half of the rows.
#[repr(C, align(64))]
struct BlockScales([[[[f32; LANES]; 3]; 2]; VECTORS / 16]);

/// Sums of 16 rows for each token.
#[repr(C, align(64))]
struct Sums([[[f32; LANES]; 2]; TILE]);

/// The groups by all tokens.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<const F: usize, const V: bool>(operands: &Operands<'_>, groups: Range<usize>) {
    let blocks = operands.geometry.blocks();
    let piece = VECTORS / 16;
    let mut codes = Codes([[0; BYTES]; VECTORS]);
    let mut scales = BlockScales([[[[0.0; LANES]; 3]; 2]; VECTORS / 16]);
    let mut sums = Sums([[[0.0; LANES]; 2]; TILE]);
    // One sum for each token and half of the rows at a time, or two: as many as fit the registers.
    let wide = const { !INTEGERS[F].scales.halves() && (V || matches!(together::<F, V>(), 1 | 8)) };
    for tile in (0..operands.tokens).step_by(TILE) {
        let tokens = TILE.min(operands.tokens - tile);
        for group in groups.clone() {
            sums.0[..tokens].fill([[0.0; LANES]; 2]);
            for first in (0..blocks).step_by(piece) {
                let count = piece.min(blocks - first);
                unpack::<F, V>(operands, group, first..first + count, &mut codes, &mut scales);
                let mut token = 0;
                while token < tokens {
                    // SAFETY: forwarded from the caller.
                    token += unsafe {
                        let place = (tile + token, first, count);
                        let sums = &mut sums.0[token..tokens];
                        match tokens - token {
                            4.. if wide => add_blocks::<F, 4, V>(operands, place, &codes, &scales, sums),
                            2.. => add_blocks::<F, 2, V>(operands, place, &codes, &scales, sums),
                            _ => add_blocks::<F, 1, V>(operands, place, &codes, &scales, sums),
                        }
                    };
                }
            }
            for (token, sums) in sums.0[..tokens].iter().enumerate() {
                // SAFETY: each is eight numbers.
                let [left, right] =
                    unsafe { [_mm256_loadu_ps(sums[0].as_ptr()), _mm256_loadu_ps(sums[1].as_ptr())] };
                store(operands, tile + token, group, [left, right]);
            }
        }
    }
}

/// Unpacks some blocks of a group.
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack<const F: usize, const V: bool>(
    operands: &Operands<'_>,
    group: usize,
    blocks: Range<usize>,
    codes: &mut Codes,
    scales: &mut BlockScales,
) {
    let code_bytes = const { INTEGERS[F].code_bytes() };
    let record_bytes = const { INTEGERS[F].scales.bytes() };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let (planes, records) = operands.group(group).split_at(operands.geometry.scale_offset);
    let top = _mm256_set1_epi8(-128);
    let mut vectors = codes.0.iter_mut();
    let mut put = |vector: __m256i| {
        if let Some(place) = vectors.next() {
            // SAFETY: the place has as many bytes as a vector.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), vector) }
        }
    };
    for (block, scales) in blocks.zip(&mut scales.0) {
        // SAFETY: a group has `blocks()` blocks and one record for every `per_record` of them.
        let plane = unsafe { planes.as_ptr().add(block * code_bytes) };
        for side in 0..2 {
            // SAFETY: as above.
            let unpacked = unsafe {
                let record = records.as_ptr().add(block / per_record * record_bytes);
                block_scales::<F>(record, block % per_record, side * LANES)
            };
            for (place, vector) in scales[side].iter_mut().zip(unpacked) {
                // SAFETY: the place has as many numbers as a vector.
                unsafe { _mm256_storeu_ps(place.as_mut_ptr(), vector) }
            }
        }
        for quad in 0..8 {
            // SAFETY: as above.
            let sides = unsafe { [quad_codes::<F>(plane, quad), quad_codes::<F>(plane.add(BYTES), quad)] };
            for values in sides {
                put(if const { signed::<F, V>() } { _mm256_xor_si256(values, top) } else { values });
            }
        }
    }
}

/// Adds `count` unpacked blocks, of which the activation's are those from `first` on, to the sums of `T` tokens from `token`
/// on. Returns `T`.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_blocks<const F: usize, const T: usize, const V: bool>(
    operands: &Operands<'_>,
    (token, first, count): (usize, usize, usize),
    codes: &Codes,
    scales: &BlockScales,
    sums: &mut [[[f32; LANES]; 2]],
) -> usize {
    let mut x = [std::ptr::null(); T];
    for t in 0..T {
        // Hidden from the compiler, which would compute each from the one before at every read.
        x[t] = black_box(operands.activation_row(token + t)[first * Q8_BYTES..].as_ptr());
    }
    let mut total = [[_mm256_setzero_ps(); T]; 2];
    for t in 0..T {
        for side in 0..2 {
            // SAFETY: each is eight numbers.
            total[side][t] = unsafe { _mm256_loadu_ps(sums[t][side].as_ptr()) };
        }
    }
    for block in 0..count {
        // SAFETY: there are `count` blocks of codes, scales and activations.
        unsafe {
            let mut blocks = [std::ptr::null(); T];
            for t in 0..T {
                blocks[t] = x[t].add(block * Q8_BYTES);
            }
            let dots = dots::<F, T, V>(codes.0.as_ptr().add(block * 16).cast(), blocks);
            for side in 0..2 {
                let scales = scales.0.get_unchecked(block)[side];
                let scales = [0, 1, 2].map(|index: usize| _mm256_loadu_ps(scales[index].as_ptr()));
                for t in 0..T {
                    let mut dots = [dots[side][0][t], dots[side][1][t]];
                    if const { !signed::<F, V>() } {
                        dots = less_offset::<F>(dots, blocks[t]);
                    }
                    total[side][t] = combine::<F>(dots, scales, blocks[t], total[side][t]);
                }
            }
        }
    }
    for t in 0..T {
        for side in 0..2 {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(sums[t][side].as_mut_ptr(), total[side][t]) }
        }
    }
    T
}

/// The integer sums of both halves of the rows of a block by `T` tokens: of the halves of the block apart or all in the
/// first, of the codes as they are unpacked.
///
/// # Safety
/// `codes` points to the unpacked codes of the block, each `x` to a block of a Q8 activation; with `V`, the processor has
/// AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn dots<const F: usize, const T: usize, const V: bool>(
    codes: *const __m256i,
    x: [*const u8; T],
) -> [[[__m256i; T]; 2]; 2] {
    let zero = _mm256_setzero_si256();
    let (signed, together) = const { (signed::<F, V>(), together::<F, V>()) };
    let halves = const { INTEGERS[F].scales.halves() };
    let mut dots = [[[zero; T]; 2]; 2];
    let mut narrow = [[zero; T]; 2];
    for quad in 0..8 {
        let half = if halves { quad / 4 } else { 0 };
        // SAFETY: the codes have eight quads.
        let codes =
            unsafe { [_mm256_load_si256(codes.add(quad * 2)), _mm256_load_si256(codes.add(quad * 2 + 1))] };
        for t in 0..T {
            // SAFETY: the block of the activation starts with 32 bytes.
            let word = unsafe { _mm256_set1_epi32(x[t].add(quad * 4).cast::<i32>().read_unaligned()) };
            for side in 0..2 {
                let (codes, narrow, dots) = (codes[side], &mut narrow[side][t], &mut dots[side][half][t]);
                if V {
                    // SAFETY: forwarded from the caller.
                    *dots = unsafe { dot_vnni(*dots, codes, word) };
                    continue;
                }
                let pairs = if signed {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(word, codes))
                } else {
                    _mm256_maddubs_epi16(codes, word)
                };
                *narrow = if quad % together == 0 { pairs } else { _mm256_add_epi16(*narrow, pairs) };
                if quad % together == together - 1 {
                    *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(*narrow, _mm256_set1_epi16(1)));
                }
            }
        }
    }
    dots
}
