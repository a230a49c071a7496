//! From packed codes and scales to vectors.

use super::super::integers::{INTEGERS, Scales};
use std::arch::x86_64::*;

/// What a record says about all its blocks: scales and, where the format has them, minima (of super-blocks negated).
///
/// # Safety
/// `record` points to a scale record of format `F`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) unsafe fn super_scales<const F: usize>(record: *const u8) -> [__m512; 2] {
    let integer = const { INTEGERS[F] };
    let zero = _mm512_setzero_ps();
    // SAFETY: but for exponents and bytes, records start with one or two vectors of 32 bytes.
    unsafe {
        let half = |vector: usize| _mm512_cvtph_ps(_mm256_loadu_si256(record.add(vector * 32).cast()));
        match integer.scales {
            Scales::Single(_) => [half(0), zero],
            Scales::Affine => [half(0), half(1)],
            Scales::SuperSingle | Scales::SuperHalf if integer.factor == 1.0 => [half(0), zero],
            Scales::SuperSingle | Scales::SuperHalf => {
                [_mm512_mul_ps(half(0), _mm512_set1_ps(integer.factor)), zero]
            }
            Scales::SuperAffine | Scales::SuperNibbles => [half(0), _mm512_sub_ps(zero, half(1))],
            Scales::Exponent => {
                let exponent = _mm512_cvtepu8_epi32(_mm_loadu_si128(record.cast()));
                let exponent = _mm512_sub_epi32(exponent, _mm512_set1_epi32(128));
                [_mm512_scalef_ps(_mm512_set1_ps(1.0), _mm512_cvtepi32_ps(exponent)), zero]
            }
            Scales::Minifloat => [zero; 2],
        }
    }
}

/// For block `part` of a record: the scale and the minimum of all columns; or the scales of both halves
/// ([`Scales::halves`]); or ([`Scales::SuperNibbles`]) what `first` has, and the bytes for [`nibble_pairs`].
///
/// # Safety
/// As for [`super_scales`], whose result `first` is.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) unsafe fn block_scales<const F: usize>(
    record: *const u8,
    first: [__m512; 2],
    part: usize,
) -> [__m512; 3] {
    let integer = const { INTEGERS[F] };
    let zero = _mm512_setzero_ps();
    // SAFETY: records have as many bytes for each of their blocks as are read here.
    unsafe {
        let signed =
            |at: usize| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(record.add(at).cast())));
        let unsigned =
            |at: usize| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(record.add(at).cast())));
        match integer.scales {
            Scales::Single(_) | Scales::Affine | Scales::Exponent => [first[0], first[1], zero],
            Scales::SuperAffine => [
                _mm512_mul_ps(first[0], unsigned(64 + part * 32)),
                _mm512_mul_ps(first[1], unsigned(80 + part * 32)),
                zero,
            ],
            Scales::SuperNibbles => {
                let pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256(record.add(64 + part * 32).cast()));
                [first[0], first[1], _mm512_castsi512_ps(pairs)]
            }
            Scales::SuperSingle => [_mm512_mul_ps(first[0], signed(32 + part * 16)), zero, zero],
            Scales::SuperHalf => [
                _mm512_mul_ps(first[0], signed(32 + part * 32)),
                _mm512_mul_ps(first[0], signed(48 + part * 32)),
                zero,
            ],
            Scales::Minifloat => {
                let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(record.add(part * 32).cast()));
                let halves = _mm512_slli_epi16::<7>(codes);
                let factor = _mm512_set1_ps(integer.factor);
                [
                    _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), factor),
                    _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)), factor),
                    zero,
                ]
            }
        }
    }
}

/// The 16-bit scales and minima of both halves of a block of [`Scales::SuperNibbles`], a pair for each row.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn nibble_pairs(pairs: __m512) -> (__m512i, __m512i) {
    let pairs = _mm512_castps_si512(pairs);
    (_mm512_and_si512(pairs, _mm512_set1_epi16(15)), _mm512_srli_epi16::<4>(pairs))
}

/// For each half of block `part` of a record: scale and what to add to the product of scale and unsigned value.
///
/// # Safety
/// As for [`block_scales`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) unsafe fn half_scales<const F: usize>(
    record: *const u8,
    first: [__m512; 2],
    part: usize,
) -> [(__m512, __m512); 2] {
    let integer = const { INTEGERS[F] };
    // SAFETY: forwarded from the caller.
    let scales = unsafe { block_scales::<F>(record, first, part) };
    // Exact, for scales have at most 17 significant bits and offsets 6, or scales 17 and the offset is a power of two.
    let base = |scale: __m512| _mm512_mul_ps(scale, _mm512_set1_ps(-integer.offset as f32));
    match integer.scales {
        Scales::Affine | Scales::SuperAffine => [(scales[0], scales[1]); 2],
        Scales::SuperNibbles => {
            let (factors, minima) = nibble_pairs(scales[2]);
            let low = |pairs| _mm512_cvtepi32_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(15)));
            let high = |pairs| _mm512_cvtepi32_ps(_mm512_srli_epi32::<16>(pairs));
            [
                (_mm512_mul_ps(scales[0], low(factors)), _mm512_mul_ps(scales[1], low(minima))),
                (_mm512_mul_ps(scales[0], high(factors)), _mm512_mul_ps(scales[1], high(minima))),
            ]
        }
        Scales::Minifloat | Scales::SuperHalf => [(scales[0], base(scales[0])), (scales[1], base(scales[1]))],
        Scales::Single(_) | Scales::Exponent | Scales::SuperSingle => [(scales[0], base(scales[0])); 2],
    }
}

/// The bits of one unit that belong to a quad, shifted so that the lowest, which is bit `from` of a byte, becomes bit
/// `to`; other bits are left as they come.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn shift(unit: __m512i, from: usize, to: usize) -> __m512i {
    match to as i32 - from as i32 {
        4 => _mm512_slli_epi16::<4>(unit),
        3 => _mm512_slli_epi16::<3>(unit),
        2 => _mm512_slli_epi16::<2>(unit),
        1 => _mm512_slli_epi16::<1>(unit),
        0 => unit,
        -1 => _mm512_srli_epi16::<1>(unit),
        -2 => _mm512_srli_epi16::<2>(unit),
        -3 => _mm512_srli_epi16::<3>(unit),
        -4 => _mm512_srli_epi16::<4>(unit),
        -5 => _mm512_srli_epi16::<5>(unit),
        _ => _mm512_srli_epi16::<6>(unit),
    }
}

/// Four columns of 16 rows as unsigned values; `quad` is 0 to 7.
///
/// # Safety
/// `block` points to a block of codes of format `F`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) unsafe fn quad_codes<const F: usize>(block: *const u8, quad: usize) -> __m512i {
    // SAFETY: the block has the units of 64 bytes read here.
    let unit = |index: usize| unsafe { _mm512_loadu_si512(block.add(index * 64).cast()) };
    /// `a | b & c`.
    const OR_AND: i32 = 0xf8;
    let integer = const { INTEGERS[F] };
    let nibbles = || _mm512_and_si512(shift(unit(quad % 4), quad / 4 * 4, 0), _mm512_set1_epi8(15));
    let pairs = || _mm512_and_si512(shift(unit(quad / 4), quad % 4 * 2, 0), _mm512_set1_epi8(3));
    let codes = match integer.bits {
        // Doubled, so that both values are a whole number from their middle.
        1 => _mm512_and_si512(shift(unit(0), quad, 1), _mm512_set1_epi8(2)),
        2 => pairs(),
        3 => _mm512_ternarylogic_epi32::<OR_AND>(pairs(), shift(unit(2), quad, 2), _mm512_set1_epi8(4)),
        4 => nibbles(),
        5 => _mm512_ternarylogic_epi32::<OR_AND>(nibbles(), shift(unit(4), quad, 4), _mm512_set1_epi8(16)),
        6 => {
            let high = shift(unit(4 + quad / 4), quad % 4 * 2, 4);
            _mm512_ternarylogic_epi32::<OR_AND>(nibbles(), high, _mm512_set1_epi8(48))
        }
        _ => unit(quad),
    };
    match integer.table {
        Some(table) => {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
        }
        None => codes,
    }
}
