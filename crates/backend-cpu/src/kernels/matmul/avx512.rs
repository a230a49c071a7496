//! AVX-512 kernels: a lane is a row, activations are broadcast.

use super::Operands;
use super::activation::Q8_BYTES;
use super::layout::{BLOCK, GROUP, INTEGERS, Layout, NONLINEAR, Scales, with_format};
use std::arch::x86_64::*;
use std::ops::Range;

/// Integer formats by [`super::ActivationFormat::Q8`] activations (AVX-512 VNNI).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn integer(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups(operands, groups));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn integer_groups<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // Few tokens: memory bound, so several groups are read at once. Many: a group's codes are unpacked for 8 tokens.
    let wide = match operands.tokens {
        1 => 4,
        2..=4 => 2,
        _ => 1,
    };
    // Two sums for each token: eight tokens would not fit the registers.
    let halves = const { matches!(INTEGERS[F].scales, Scales::SuperHalf) };
    let mut group = groups.start;
    while group < groups.end {
        let count = if groups.end - group >= wide { wide } else { 1 };
        let mut token = 0;
        while token < operands.tokens {
            let left = operands.tokens - token;
            token += match (count, left) {
                (4, _) => integer_block::<F, 4, 1>(operands, group, token),
                (2, 4..) => integer_block::<F, 2, 4>(operands, group, token),
                (2, 3) => integer_block::<F, 2, 3>(operands, group, token),
                (2, 2) => integer_block::<F, 2, 2>(operands, group, token),
                (2, _) => integer_block::<F, 2, 1>(operands, group, token),
                (_, 8..) if !halves => integer_block::<F, 1, 8>(operands, group, token),
                (_, 4..) => integer_block::<F, 1, 4>(operands, group, token),
                (_, 2..4) => integer_block::<F, 1, 2>(operands, group, token),
                _ => integer_block::<F, 1, 1>(operands, group, token),
            };
        }
        group += count;
    }
}

/// The groups `group..group + R` by the tokens `token..token + T`. Returns `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn integer_block<const F: usize, const R: usize, const T: usize>(
    operands: &Operands<'_>,
    group: usize,
    token: usize,
) -> usize {
    let geometry = operands.geometry;
    let code_bytes = const { INTEGERS[F].code_bytes() };
    let record_bytes = const { INTEGERS[F].scales.bytes() };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let mut codes: [&[u8]; R] = [&[]; R];
    let mut records: [&[u8]; R] = [&[]; R];
    for r in 0..R {
        (codes[r], records[r]) = operands.group(group + r).split_at(geometry.scale_offset);
    }
    let mut x: [&[u8]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t);
    }
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for record in 0..geometry.blocks() / per_record {
        for r in 0..R {
            // SAFETY: a group has one record for every `per_record` blocks.
            let scales = unsafe { records[r].as_ptr().add(record * record_bytes) };
            // SAFETY: as above.
            let super_scales = unsafe { super_scales::<F>(scales) };
            for part in 0..per_record {
                let block = record * per_record + part;
                // SAFETY: a group has `blocks()` blocks, an activation row as many of `Q8_BYTES`.
                unsafe {
                    let scales = block_scales::<F>(scales, super_scales, part);
                    let plane = codes[r].as_ptr().add(block * code_bytes);
                    let mut blocks = [std::ptr::null(); T];
                    for t in 0..T {
                        blocks[t] = x[t].as_ptr().add(block * Q8_BYTES);
                    }
                    add_block::<F, T>(plane, scales, blocks, &mut sums[r]);
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            store(operands, token + t, group + r, sums[r][t]);
        }
    }
    T
}

/// The F16 vectors at the start of a record: scales, and minima where the format has them.
///
/// # Safety
/// `record` points to a scale record of format `F`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn super_scales<const F: usize>(record: *const u8) -> [__m512; 2] {
    // SAFETY: records start with one or two vectors of 32 bytes.
    unsafe {
        let first = _mm512_cvtph_ps(_mm256_loadu_si256(record.cast()));
        match const { INTEGERS[F].scales } {
            Scales::Single | Scales::SuperHalf => [first, _mm512_setzero_ps()],
            Scales::Affine | Scales::SuperAffine => {
                [first, _mm512_cvtph_ps(_mm256_loadu_si256(record.add(32).cast()))]
            }
        }
    }
}

/// For block `part` of a record: scale and minimum, or the scales of both halves ([`Scales::SuperHalf`]).
///
/// # Safety
/// As for [`super_scales`], whose result `first` is.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn block_scales<const F: usize>(
    record: *const u8,
    first: [__m512; 2],
    part: usize,
) -> [__m512; 2] {
    // SAFETY: super records go on with 32 bytes for each of their blocks.
    unsafe {
        match const { INTEGERS[F].scales } {
            Scales::Single | Scales::Affine => first,
            Scales::SuperAffine => {
                let bytes = record.add(64 + part * 32);
                let scale = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.cast())));
                let minimum = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.add(16).cast())));
                // A subtraction of the product later would be one more instruction in the inner loop.
                let negative = _mm512_sub_ps(_mm512_setzero_ps(), first[1]);
                [_mm512_mul_ps(first[0], scale), _mm512_mul_ps(negative, minimum)]
            }
            Scales::SuperHalf => {
                let bytes = record.add(32 + part * 32);
                let left = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.cast())));
                let right = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.add(16).cast())));
                [_mm512_mul_ps(first[0], left), _mm512_mul_ps(first[0], right)]
            }
        }
    }
}

/// Four columns of 16 rows as unsigned bytes; `quad` is 0 to 7.
///
/// # Safety
/// `plane` points to a block of codes of format `F`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) unsafe fn quad_codes<const F: usize>(plane: *const u8, quad: usize) -> __m512i {
    // SAFETY: the block has the units of 64 bytes read here.
    let unit = |index: usize| unsafe { _mm512_loadu_si512(plane.add(index * 64).cast()) };
    let integer = const { INTEGERS[F] };
    if integer.bits == 8 {
        return unit(quad);
    }
    let raw = unit(quad % 4);
    let nibbles =
        _mm512_and_si512(if quad < 4 { raw } else { _mm512_srli_epi16::<4>(raw) }, _mm512_set1_epi8(15));
    /// `a | b & c`.
    const OR_AND: i32 = 0xf8;
    match integer.bits {
        5 => {
            let high = unit(4);
            let high = match quad {
                0 => _mm512_slli_epi16::<4>(high),
                1 => _mm512_slli_epi16::<3>(high),
                2 => _mm512_slli_epi16::<2>(high),
                3 => _mm512_slli_epi16::<1>(high),
                4 => high,
                5 => _mm512_srli_epi16::<1>(high),
                6 => _mm512_srli_epi16::<2>(high),
                _ => _mm512_srli_epi16::<3>(high),
            };
            _mm512_ternarylogic_epi32::<OR_AND>(nibbles, high, _mm512_set1_epi8(16))
        }
        6 => {
            let high = unit(4 + quad / 4);
            let high = match quad % 4 {
                0 => _mm512_slli_epi16::<4>(high),
                1 => _mm512_slli_epi16::<2>(high),
                2 => high,
                _ => _mm512_srli_epi16::<2>(high),
            };
            _mm512_ternarylogic_epi32::<OR_AND>(nibbles, high, _mm512_set1_epi8(48))
        }
        _ if integer.table => {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(NONLINEAR.as_ptr().cast()) };
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles)
        }
        _ => nibbles,
    }
}

/// Adds one block of 32 columns to the sums of 16 rows by `T` tokens.
///
/// # Safety
/// `plane` points to a block of codes of format `F`, each `x` to a block of a Q8 activation.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn add_block<const F: usize, const T: usize>(
    plane: *const u8,
    scales: [__m512; 2],
    x: [*const u8; T],
    sums: &mut [__m512; T],
) {
    let integer = const { INTEGERS[F] };
    let halves = matches!(integer.scales, Scales::SuperHalf);
    // SAFETY: offsets up to 44 lie in the activation block.
    let word =
        |t: usize, at: usize| unsafe { _mm512_set1_epi32(x[t].add(at).cast::<i32>().read_unaligned()) };
    // SAFETY: as above.
    let float = |t: usize, at: usize| unsafe { _mm512_set1_ps(x[t].add(at).cast::<f32>().read_unaligned()) };
    let mut dots = [[_mm512_setzero_si512(); T]; 2];
    if integer.offset != 0 {
        // The two 16-bit sums of the activation times minus the offset.
        let offset = -integer.offset as i16 as u16 as i32;
        for t in 0..T {
            let zero = _mm512_setzero_si512();
            if halves {
                dots[0][t] = _mm512_dpwssd_epi32(zero, word(t, 40), _mm512_set1_epi32(offset));
                dots[1][t] = _mm512_dpwssd_epi32(zero, word(t, 40), _mm512_set1_epi32(offset << 16));
            } else {
                dots[0][t] = _mm512_dpwssd_epi32(zero, word(t, 40), _mm512_set1_epi32(offset | offset << 16));
            }
        }
    }
    for quad in 0..8 {
        // SAFETY: forwarded from the caller.
        let codes = unsafe { quad_codes::<F>(plane, quad) };
        // One token alone would wait for its own sum at every step; two sums halve the wait.
        let side = if halves || T == 1 { quad / 4 } else { 0 };
        for t in 0..T {
            dots[side][t] = _mm512_dpbusd_epi32(dots[side][t], codes, word(t, quad * 4));
        }
    }
    for t in 0..T {
        if halves {
            let first = _mm512_mul_ps(scales[0], _mm512_cvtepi32_ps(dots[0][t]));
            let product = _mm512_fmadd_ps(scales[1], _mm512_cvtepi32_ps(dots[1][t]), first);
            sums[t] = _mm512_fmadd_ps(product, float(t, 32), sums[t]);
        } else {
            let dot = if T == 1 { _mm512_add_epi32(dots[0][t], dots[1][t]) } else { dots[0][t] };
            let product = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), float(t, 32));
            sums[t] = _mm512_fmadd_ps(product, scales[0], sums[t]);
            if matches!(integer.scales, Scales::Affine | Scales::SuperAffine) {
                sums[t] = _mm512_fmadd_ps(scales[1], float(t, 36), sums[t]);
            }
        }
    }
}

/// Writes the results of one group for one token.
#[target_feature(enable = "avx512f")]
fn store(operands: &Operands<'_>, token: usize, group: usize, values: __m512) {
    let rows = operands.geometry.rows - group * GROUP;
    let mask = if rows >= GROUP { u16::MAX } else { (1 << rows) - 1 };
    // SAFETY: the caller of `multiply` vouches for the results of its rows; the mask keeps to them.
    unsafe { _mm512_mask_storeu_ps(operands.result(token, group * GROUP), mask, values) }
}

/// Floating-point layouts by [`super::ActivationFormat::F32`] activations.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn float(operands: &Operands<'_>, groups: Range<usize>) {
    match operands.geometry.layout {
        Layout::Half => float_groups::<HALF>(operands, groups),
        Layout::Brain => float_groups::<BRAIN>(operands, groups),
        _ => float_groups::<SINGLE>(operands, groups),
    }
}

const SINGLE: u8 = 0;
const HALF: u8 = 1;
const BRAIN: u8 = 2;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn float_groups<const L: u8>(operands: &Operands<'_>, groups: Range<usize>) {
    let mut group = groups.start;
    while group < groups.end {
        let wide = if operands.tokens == 1 { 4 } else { 2 };
        let count = if groups.end - group >= wide { wide } else { 1 };
        let mut token = 0;
        while token < operands.tokens {
            let left = operands.tokens - token;
            token += match (count, left) {
                (4, _) => float_block::<L, 4, 1>(operands, group, token),
                (2, 8..) => float_block::<L, 2, 8>(operands, group, token),
                (2, 4..8) => float_block::<L, 2, 4>(operands, group, token),
                (2, 2..4) => float_block::<L, 2, 2>(operands, group, token),
                (2, _) => float_block::<L, 2, 1>(operands, group, token),
                (_, 4..) => float_block::<L, 1, 4>(operands, group, token),
                _ => float_block::<L, 1, 1>(operands, group, token),
            };
        }
        group += count;
    }
}

/// The groups `group..group + R` by the tokens `token..token + T`. Returns `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn float_block<const L: u8, const R: usize, const T: usize>(
    operands: &Operands<'_>,
    group: usize,
    token: usize,
) -> usize {
    let weights: [&[u8]; R] = std::array::from_fn(|r| operands.group(group + r));
    let x: [&[f32]; T] = std::array::from_fn(|t| operands.activation_floats(token + t));
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    // Both the matrix and the activation are padded to an even number of columns with zeros.
    for pair in 0..operands.geometry.padded_columns() / 2 {
        for r in 0..R {
            // SAFETY: a group has `padded_columns` columns of 16 numbers.
            let columns = unsafe { float_pair::<L>(weights[r].as_ptr(), pair) };
            for (column, weight) in columns.into_iter().enumerate() {
                for t in 0..T {
                    // SAFETY: a row of the activation has `padded_columns` numbers.
                    let x = unsafe { *x[t].get_unchecked(pair * 2 + column) };
                    sums[r][t] = _mm512_fmadd_ps(weight, _mm512_set1_ps(x), sums[r][t]);
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            store(operands, token + t, group + r, sums[r][t]);
        }
    }
    T
}

/// Two columns of 16 rows.
///
/// # Safety
/// `weights` points to a group of layout `L` with more than `2 * pair + 1` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) unsafe fn float_pair<const L: u8>(weights: *const u8, pair: usize) -> [__m512; 2] {
    // SAFETY: forwarded from the caller.
    unsafe {
        match L {
            BRAIN => {
                let both = _mm512_loadu_si512(weights.add(pair * 64).cast());
                [
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)),
                    _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32))),
                ]
            }
            HALF => [
                _mm512_cvtph_ps(_mm256_loadu_si256(weights.add(pair * 64).cast())),
                _mm512_cvtph_ps(_mm256_loadu_si256(weights.add(pair * 64 + 32).cast())),
            ],
            _ => [
                _mm512_loadu_ps(weights.add(pair * 128).cast()),
                _mm512_loadu_ps(weights.add(pair * 128 + 64).cast()),
            ],
        }
    }
}

/// One block of [`super::ActivationFormat::Q8`], with the same result as the scalar form.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) fn quantize(values: &[f32; BLOCK]) -> [u8; Q8_BYTES] {
    let mut block = [0; Q8_BYTES];
    // SAFETY: both halves of the numbers are read, and the first 32 bytes of the block written.
    unsafe {
        let first = _mm512_loadu_ps(values.as_ptr());
        let second = _mm512_loadu_ps(values.as_ptr().add(16));
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
        let scale = largest / 127.0;
        let inverse = if largest >= f32::MIN_POSITIVE { 127.0 / largest } else { 0.0 };
        let inverse = _mm512_set1_ps(inverse);
        let least = _mm512_set1_epi32(-127);
        let first = _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(first, inverse)), least);
        let second = _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(second, inverse)), least);
        _mm_storeu_si128(block.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(first));
        _mm_storeu_si128(block.as_mut_ptr().add(16).cast(), _mm512_cvtsepi32_epi8(second));
        let sums = [_mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second)];
        block[32..36].copy_from_slice(&scale.to_le_bytes());
        block[36..40].copy_from_slice(&(scale * (sums[0] + sums[1]) as f32).to_le_bytes());
        block[40..42].copy_from_slice(&(sums[0] as i16).to_le_bytes());
        block[42..44].copy_from_slice(&(sums[1] as i16).to_le_bytes());
    }
    block
}

/// 32 numbers as BF16, with the same result as the scalar form.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) fn round_to_bf16(values: &[f32; BLOCK]) -> [u16; BLOCK] {
    let mut rounded = [0; BLOCK];
    for half in 0..2 {
        // SAFETY: each half has 16 numbers.
        unsafe {
            let values = _mm512_loadu_ps(values.as_ptr().add(half * 16));
            let bits = _mm512_castps_si512(values);
            let high = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
            let sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(values, values);
            let result = _mm512_mask_srli_epi32::<16>(quiet, number, sum);
            let place = rounded.as_mut_ptr().add(half * 16);
            _mm256_storeu_si256(place.cast(), _mm512_cvtepi32_epi16(result));
        }
    }
    rounded
}
