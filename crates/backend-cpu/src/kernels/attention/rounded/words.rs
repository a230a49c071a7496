//! Numbers as integers of 16 bits, whose products AVX-512 VNNI adds up. What 1 stands for is chosen for each query by its length, for
//! the keys of a tile by a length that none exceeds, for each column of a tile's values and for each row of its weights by the largest.
//!
//! Sums stay within 32 bits: of a query and a key because they are at most the product of both lengths (Cauchy and Schwarz), of
//! weights and values because 64 products of the largest fit.

use std::arch::x86_64::*;

/// The length of a query or key in its integers. Rounding adds at most half to each.
const LENGTH: f32 = 32767.0;
/// Length that shorter rows count as, so that nothing is divided by zero.
const SHORTEST: f32 = 1e-30;
/// The largest weight, as a power of two; rounding of scores up to a million makes it 2 % more.
pub(super) const WEIGHT_BITS: f32 = 12.0;
/// The largest value: 64 by the largest weight are 2 % less than 2^31.
const LARGEST_VALUE: f32 = 8000.0;

/// The sum of the squares of numbers.
///
/// # Safety
/// There are `count` numbers.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn squares(numbers: *const f32, count: usize) -> f32 {
    let mut squares = _mm512_setzero_ps();
    for first in (0..count).step_by(16) {
        let mask = if count - first < 16 { (1 << (count - first)) - 1 } else { u16::MAX };
        // SAFETY: the mask keeps to the numbers.
        let part = unsafe { _mm512_maskz_loadu_ps(mask, numbers.add(first)) };
        squares = _mm512_fmadd_ps(part, part, squares);
    }
    _mm512_reduce_add_ps(squares)
}

/// The largest magnitudes of 16 columns, of which the numbers of a row begin `stride` after those of the one before. Numbers that
/// are none count as more than infinity.
///
/// # Panics
/// If there are not as many numbers.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn largest(numbers: &[f32], stride: usize, rows: usize) -> __m512 {
    assert!(rows == 0 || numbers.len() >= (rows - 1) * stride + 16, "16 columns of {rows} rows");
    let mut largest = [_mm512_setzero_si512(); 2];
    for row in 0..rows {
        // SAFETY: as asserted. The bits of magnitudes are in their order.
        let number = unsafe { _mm512_loadu_ps(numbers.as_ptr().add(row * stride)) };
        largest[row % 2] = _mm512_max_epu32(largest[row % 2], _mm512_castps_si512(_mm512_abs_ps(number)));
    }
    _mm512_castsi512_ps(_mm512_max_epu32(largest[0], largest[1]))
}

/// What the numbers of a row with this sum of squares are multiplied by to become integers, and what 1 stands for then; none if the
/// sum is infinite or not a number.
pub(super) fn units(squares: f32) -> Option<(f32, f32)> {
    let length = squares.sqrt().max(SHORTEST);
    squares.is_finite().then_some((LENGTH / length, length / LENGTH))
}

/// 32 numbers, each multiplied by `factor`.
///
/// # Safety
/// There are as many.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn round(numbers: *const f32, factor: f32) -> __m512i {
    let factor = _mm512_set1_ps(factor);
    let half = |at: usize| {
        // SAFETY: promised by the caller.
        let part = unsafe { _mm512_loadu_ps(numbers.add(at)) };
        _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(part, factor)))
    };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(half(0)), half(16))
}

/// The numbers of two vectors, in turn.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn side_by_side(even: __m512, odd: __m512) -> __m512i {
    let (even, odd) = (_mm512_cvtps_epi32(even), _mm512_cvtps_epi32(odd));
    _mm512_mask_blend_epi16(0xaaaa_aaaa, even, _mm512_slli_epi32::<16>(odd))
}

/// What values are multiplied by to become integers, and what 1 stands for then, of 16 columns with these largest magnitudes.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn value_units(largest: __m512) -> (__m512, __m512) {
    let most = _mm512_max_ps(largest, _mm512_set1_ps(SHORTEST));
    let unit = _mm512_mul_ps(most, _mm512_set1_ps(1.0 / LARGEST_VALUE));
    (_mm512_div_ps(_mm512_set1_ps(LARGEST_VALUE), most), unit)
}
