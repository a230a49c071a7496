//! From packed codes and scales to vectors.

use super::super::integers::{INTEGERS, Scales};
use std::arch::x86_64::*;

/// For block `part` of a record and the 8 rows from `row` on: the scale and the minimum of all columns; or the scales of
/// both halves ([`Scales::halves`]); or ([`Scales::SuperNibbles`]) scale and negated minimum of the record, and the
/// bytes of the block as 16-bit pairs.
///
/// # Safety
/// `record` points to a scale record of format `F`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) unsafe fn block_scales<const F: usize>(record: *const u8, part: usize, row: usize) -> [__m256; 3] {
    let integer = const { INTEGERS[F] };
    let zero = _mm256_setzero_ps();
    // SAFETY: records consist of vectors of 16 numbers, as `Scales` says.
    unsafe {
        let half = |vector: usize| _mm256_cvtph_ps(_mm_loadu_si128(record.add(vector * 32 + row * 2).cast()));
        let negative = |vector: usize| _mm256_sub_ps(zero, half(vector));
        let bytes = |at: usize| _mm_loadl_epi64(record.add(at + row).cast());
        let unsigned = |at: usize| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(at)));
        let signed = |at: usize| {
            let scale = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(at)));
            let first = if integer.factor == 1.0 {
                half(0)
            } else {
                _mm256_mul_ps(half(0), _mm256_set1_ps(integer.factor))
            };
            _mm256_mul_ps(first, scale)
        };
        match integer.scales {
            Scales::Single(_) => [half(0), zero, zero],
            Scales::Affine => [half(0), half(1), zero],
            Scales::Exponent => {
                let exponent = _mm256_cvtepu8_epi32(bytes(0));
                let one = _mm256_set1_epi32(1);
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponent, one));
                // The two lowest powers are subnormal numbers.
                let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponent);
                let bits = _mm256_blendv_epi8(subnormal, normal, _mm256_cmpgt_epi32(exponent, one));
                [_mm256_castsi256_ps(bits), zero, zero]
            }
            Scales::Minifloat => {
                let scale = |side: usize| {
                    let codes = _mm_cvtepu8_epi16(bytes((part * 2 + side) * 16));
                    let number = _mm256_cvtph_ps(_mm_slli_epi16::<7>(codes));
                    _mm256_mul_ps(number, _mm256_set1_ps(integer.factor))
                };
                [scale(0), scale(1), zero]
            }
            Scales::SuperAffine => [
                _mm256_mul_ps(half(0), unsigned(64 + part * 32)),
                _mm256_mul_ps(negative(1), unsigned(80 + part * 32)),
                zero,
            ],
            Scales::SuperNibbles => {
                let pairs = _mm_loadu_si128(record.add(64 + part * 32 + row * 2).cast());
                [half(0), negative(1), _mm256_castsi256_ps(_mm256_cvtepu8_epi16(pairs))]
            }
            Scales::SuperSingle => [signed(32 + part * 16), zero, zero],
            Scales::SuperHalf => [signed(32 + part * 32), signed(48 + part * 32), zero],
        }
    }
}

/// The bits of one unit that belong to a quad, shifted so that the lowest, which is bit `from` of a byte, becomes bit
/// `to`; other bits are left as they come.
#[target_feature(enable = "avx2")]
#[inline]
fn shift(unit: __m256i, from: usize, to: usize) -> __m256i {
    match to as i32 - from as i32 {
        4 => _mm256_slli_epi16::<4>(unit),
        3 => _mm256_slli_epi16::<3>(unit),
        2 => _mm256_slli_epi16::<2>(unit),
        1 => _mm256_slli_epi16::<1>(unit),
        0 => unit,
        -1 => _mm256_srli_epi16::<1>(unit),
        -2 => _mm256_srli_epi16::<2>(unit),
        -3 => _mm256_srli_epi16::<3>(unit),
        -4 => _mm256_srli_epi16::<4>(unit),
        -5 => _mm256_srli_epi16::<5>(unit),
        _ => _mm256_srli_epi16::<6>(unit),
    }
}

/// Four columns of 8 rows as unsigned values; `quad` is 0 to 7.
///
/// # Safety
/// `block` points to the first or second half of the first unit of a block of codes of format `F`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn quad_codes<const F: usize>(block: *const u8, quad: usize) -> __m256i {
    // SAFETY: the block has the units of 64 bytes read here.
    let unit = |index: usize| unsafe { _mm256_loadu_si256(block.add(index * 64).cast()) };
    let masked = |vector: __m256i, mask: i8| _mm256_and_si256(vector, _mm256_set1_epi8(mask));
    let integer = const { INTEGERS[F] };
    let nibbles = || masked(shift(unit(quad % 4), quad / 4 * 4, 0), 15);
    let pairs = || masked(shift(unit(quad / 4), quad % 4 * 2, 0), 3);
    let codes = match integer.bits {
        // Doubled, so that both values are a whole number from their middle.
        1 => masked(shift(unit(0), quad, 1), 2),
        2 => pairs(),
        3 => _mm256_or_si256(pairs(), masked(shift(unit(2), quad, 2), 4)),
        4 => nibbles(),
        5 => _mm256_or_si256(nibbles(), masked(shift(unit(4), quad, 4), 16)),
        6 => _mm256_or_si256(nibbles(), masked(shift(unit(4 + quad / 4), quad % 4 * 2, 4), 48)),
        _ => unit(quad),
    };
    match integer.table {
        Some(table) => {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
        }
        None => codes,
    }
}
