//! AVX2 kernels: a lane is a row, and a group is two vectors of 8 rows. AVX-VNNI, where present, only replaces the
//! dot-product steps.

use super::Operands;
use super::activation::Q8_BYTES;
use super::layout::{GROUP, INTEGERS, Layout, NONLINEAR, Scales, with_format};
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows in one vector.
const LANES: usize = 8;

/// Integer formats by [`super::ActivationFormat::Q8`] activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups(operands, groups));
}

/// The same with AVX-VNNI.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn integer_vnni(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups_vnni(operands, groups));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn integer_groups<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: without VNNI, nothing beyond AVX2 is used.
    unsafe { integer_tokens::<F, false>(operands, groups) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn integer_groups_vnni<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: only `integer_vnni` calls this, whose caller vouches for AVX-VNNI.
    unsafe { integer_tokens::<F, true>(operands, groups) }
}

/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn integer_tokens<const F: usize, const V: bool>(operands: &Operands<'_>, groups: Range<usize>) {
    for group in groups {
        let mut token = 0;
        while token < operands.tokens {
            // SAFETY: forwarded from the caller.
            token += unsafe {
                match operands.tokens - token {
                    4.. => integer_block::<F, 4, V>(operands, group, token),
                    2..4 => integer_block::<F, 2, V>(operands, group, token),
                    _ => integer_block::<F, 1, V>(operands, group, token),
                }
            };
        }
    }
}

/// One group by the tokens `token..token + T`. Returns `T`.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn integer_block<const F: usize, const T: usize, const V: bool>(
    operands: &Operands<'_>,
    group: usize,
    token: usize,
) -> usize {
    let geometry = &operands.geometry;
    let code_bytes = const { INTEGERS[F].code_bytes() };
    let record_bytes = const { INTEGERS[F].scales.bytes() };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let (codes, records) = operands.group(group).split_at(geometry.scale_offset);
    let x: [&[u8]; T] = std::array::from_fn(|t| operands.activation_row(token + t));
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    for block in 0..geometry.blocks() {
        let (record, part) = (block / per_record, block % per_record);
        for side in 0..2 {
            // SAFETY: a group has `blocks()` blocks and one record for every `per_record` of them, an activation row
            // as many blocks of `Q8_BYTES`.
            unsafe {
                let scales =
                    block_scales::<F>(records.as_ptr().add(record * record_bytes), part, side * LANES);
                let plane = codes.as_ptr().add(block * code_bytes + side * 32);
                for t in 0..T {
                    let x = x[t].as_ptr().add(block * Q8_BYTES);
                    add_block::<F, V>(plane, scales, x, &mut sums[t][side]);
                }
            }
        }
    }
    for t in 0..T {
        store(operands, token + t, group, sums[t]);
    }
    T
}

/// For block `part` of a record and the rows from `row` on: scale and minimum, or the scales of both halves.
///
/// # Safety
/// `record` points to a scale record of format `F`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_scales<const F: usize>(record: *const u8, part: usize, row: usize) -> [__m256; 2] {
    // SAFETY: records are vectors of 16 F16 numbers, then vectors of 16 bytes, as `Scales` says.
    unsafe {
        let half = |vector: usize| _mm256_cvtph_ps(_mm_loadu_si128(record.add(vector * 32 + row * 2).cast()));
        let bytes = |at: usize| _mm_loadl_epi64(record.add(at + row).cast());
        match const { INTEGERS[F].scales } {
            Scales::Single => [half(0), _mm256_setzero_ps()],
            Scales::Affine => [half(0), half(1)],
            Scales::SuperAffine => {
                let scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(64 + part * 32)));
                let minimum = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(80 + part * 32)));
                let negative = _mm256_sub_ps(_mm256_setzero_ps(), half(1));
                [_mm256_mul_ps(half(0), scale), _mm256_mul_ps(negative, minimum)]
            }
            Scales::SuperHalf => {
                let left = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(32 + part * 32)));
                let right = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(48 + part * 32)));
                [_mm256_mul_ps(half(0), left), _mm256_mul_ps(half(0), right)]
            }
        }
    }
}

/// Four columns of 8 rows as unsigned bytes; `quad` is 0 to 7.
///
/// # Safety
/// `plane` points to the first or second half of the first unit of a block of codes of format `F`.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn quad_codes<const F: usize>(plane: *const u8, quad: usize) -> __m256i {
    // SAFETY: the block has the units of 64 bytes read here.
    let unit = |index: usize| unsafe { _mm256_loadu_si256(plane.add(index * 64).cast()) };
    let integer = const { INTEGERS[F] };
    if integer.bits == 8 {
        return unit(quad);
    }
    let raw = unit(quad % 4);
    let nibbles =
        _mm256_and_si256(if quad < 4 { raw } else { _mm256_srli_epi16::<4>(raw) }, _mm256_set1_epi8(15));
    match integer.bits {
        5 => {
            let high = unit(4);
            let high = match quad {
                0 => _mm256_slli_epi16::<4>(high),
                1 => _mm256_slli_epi16::<3>(high),
                2 => _mm256_slli_epi16::<2>(high),
                3 => _mm256_slli_epi16::<1>(high),
                4 => high,
                5 => _mm256_srli_epi16::<1>(high),
                6 => _mm256_srli_epi16::<2>(high),
                _ => _mm256_srli_epi16::<3>(high),
            };
            _mm256_or_si256(nibbles, _mm256_and_si256(high, _mm256_set1_epi8(16)))
        }
        6 => {
            let high = unit(4 + quad / 4);
            let high = match quad % 4 {
                0 => _mm256_slli_epi16::<4>(high),
                1 => _mm256_slli_epi16::<2>(high),
                2 => high,
                _ => _mm256_srli_epi16::<2>(high),
            };
            _mm256_or_si256(nibbles, _mm256_and_si256(high, _mm256_set1_epi8(48)))
        }
        _ if integer.table => {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(NONLINEAR.as_ptr().cast()) };
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles)
        }
        _ => nibbles,
    }
}

/// Adds one block of 32 columns to the sums of 8 rows.
///
/// # Safety
/// `plane` as for [`quad_codes`]; `x` points to a block of a Q8 activation; with `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_block<const F: usize, const V: bool>(
    plane: *const u8,
    scales: [__m256; 2],
    x: *const u8,
    sum: &mut __m256,
) {
    let integer = const { INTEGERS[F] };
    let halves = matches!(integer.scales, Scales::SuperHalf);
    // SAFETY: offsets up to 44 lie in the activation block.
    let word = |at: usize| unsafe { _mm256_set1_epi32(x.add(at).cast::<i32>().read_unaligned()) };
    // SAFETY: as above.
    let float = |at: usize| unsafe { _mm256_set1_ps(x.add(at).cast::<f32>().read_unaligned()) };
    let mut dots = [_mm256_setzero_si256(); 2];
    // Full bytes could overflow the 16-bit sums of AVX2; as signed numbers (their offset is 128) they do not.
    let signed = !V && integer.offset == 128;
    // Quads whose 16-bit sums of two products cannot overflow together: 2 * 127 * (2^bits - 1) * quads < 2^15.
    let together = match integer.bits {
        4 if !signed => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    };
    let mut narrow = _mm256_setzero_si256();
    for quad in 0..8 {
        let side = quad / 4;
        // SAFETY: forwarded from the caller.
        let codes = unsafe { quad_codes::<F>(plane, quad) };
        if V {
            // SAFETY: forwarded from the caller.
            dots[side] = unsafe { dot_vnni(dots[side], codes, word(quad * 4)) };
            continue;
        }
        let pairs = if signed {
            let codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(word(quad * 4), codes))
        } else {
            _mm256_maddubs_epi16(codes, word(quad * 4))
        };
        narrow = if quad % together == 0 { pairs } else { _mm256_add_epi16(narrow, pairs) };
        if quad % together == together - 1 {
            let wide = _mm256_madd_epi16(narrow, _mm256_set1_epi16(1));
            dots[side] = _mm256_add_epi32(dots[side], wide);
        }
    }
    if integer.offset != 0 && !signed {
        let offset = -integer.offset as i16 as u16 as i32;
        if halves {
            let left = _mm256_madd_epi16(word(40), _mm256_set1_epi32(offset));
            let right = _mm256_madd_epi16(word(40), _mm256_set1_epi32(offset << 16));
            dots = [_mm256_add_epi32(dots[0], left), _mm256_add_epi32(dots[1], right)];
        } else {
            let both = _mm256_madd_epi16(word(40), _mm256_set1_epi32(offset | offset << 16));
            dots[0] = _mm256_add_epi32(dots[0], both);
        }
    }
    if halves {
        let first = _mm256_mul_ps(scales[0], _mm256_cvtepi32_ps(dots[0]));
        let product = _mm256_fmadd_ps(scales[1], _mm256_cvtepi32_ps(dots[1]), first);
        *sum = _mm256_fmadd_ps(product, float(32), *sum);
    } else {
        let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[0], dots[1]));
        *sum = _mm256_fmadd_ps(_mm256_mul_ps(dot, float(32)), scales[0], *sum);
        if matches!(integer.scales, Scales::Affine | Scales::SuperAffine) {
            *sum = _mm256_fmadd_ps(scales[1], float(36), *sum);
        }
    }
}

/// Adds the dot products of four unsigned by four signed bytes to each lane.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn dot_vnni(mut sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    // As assembly because one generic kernel serves processors with and without the instruction.
    // SAFETY: reads and writes registers only; the caller vouches for the instruction.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {sum}, {unsigned}, {signed}",
            sum = inout(ymm_reg) sum,
            unsigned = in(ymm_reg) unsigned,
            signed = in(ymm_reg) signed,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Writes the results of one group for one token.
#[target_feature(enable = "avx2")]
fn store(operands: &Operands<'_>, token: usize, group: usize, values: [__m256; 2]) {
    let rows = (operands.geometry.rows - group * GROUP).min(GROUP);
    let mut results = [0.0; GROUP];
    // SAFETY: the array holds both vectors, and the caller of `multiply` vouches for the results of its rows.
    unsafe {
        _mm256_storeu_ps(results.as_mut_ptr(), values[0]);
        _mm256_storeu_ps(results.as_mut_ptr().add(LANES), values[1]);
        let place = operands.result(token, group * GROUP);
        std::ptr::copy_nonoverlapping(results.as_ptr(), place, rows);
    }
}

/// Floating-point layouts by [`super::ActivationFormat::F32`] activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn float(operands: &Operands<'_>, groups: Range<usize>) {
    for group in groups {
        let mut token = 0;
        while token < operands.tokens {
            token += match operands.tokens - token {
                4.. => float_block::<4>(operands, group, token),
                _ => float_block::<1>(operands, group, token),
            };
        }
    }
}

/// One group by the tokens `token..token + T`. Returns `T`.
#[target_feature(enable = "avx2,fma,f16c")]
fn float_block<const T: usize>(operands: &Operands<'_>, group: usize, token: usize) -> usize {
    let weights = operands.group(group).as_ptr();
    let layout = operands.geometry.layout;
    let x: [&[f32]; T] = std::array::from_fn(|t| operands.activation_floats(token + t));
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    // Both the matrix and the activation are padded to an even number of columns with zeros.
    for pair in 0..operands.geometry.padded_columns() / 2 {
        for side in 0..2 {
            // SAFETY: a group has `padded_columns` columns of 16 numbers.
            let columns = unsafe { float_pair(layout, weights, pair, side) };
            for (column, weight) in columns.into_iter().enumerate() {
                for t in 0..T {
                    let x = _mm256_set1_ps(x[t][pair * 2 + column]);
                    sums[t][side] = _mm256_fmadd_ps(weight, x, sums[t][side]);
                }
            }
        }
    }
    for t in 0..T {
        store(operands, token + t, group, sums[t]);
    }
    T
}

/// Two columns of the first or second 8 rows.
///
/// # Safety
/// `weights` points to a group of `layout` with more than `2 * pair + 1` columns.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn float_pair(layout: Layout, weights: *const u8, pair: usize, side: usize) -> [__m256; 2] {
    // SAFETY: forwarded from the caller.
    unsafe {
        match layout {
            Layout::Brain => {
                let both = _mm256_loadu_si256(weights.add(pair * 64 + side * 32).cast());
                let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)),
                    _mm256_castsi256_ps(_mm256_and_si256(both, high)),
                ]
            }
            Layout::Half => {
                let column = weights.add(pair * 64 + side * 16);
                [
                    _mm256_cvtph_ps(_mm_loadu_si128(column.cast())),
                    _mm256_cvtph_ps(_mm_loadu_si128(column.add(32).cast())),
                ]
            }
            _ => {
                let column = weights.add(pair * 128 + side * 32);
                [_mm256_loadu_ps(column.cast()), _mm256_loadu_ps(column.add(64).cast())]
            }
        }
    }
}
