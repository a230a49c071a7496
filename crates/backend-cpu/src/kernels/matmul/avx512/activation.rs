//! Preparation of activations.

use super::super::activation::Q8_BYTES;
use super::super::layout::BLOCK;
use std::arch::x86_64::*;

/// One block of [`ActivationFormat::Q8`](super::super::ActivationFormat::Q8), with the same result as the scalar form.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) fn quantize(values: &[f32; BLOCK]) -> [u8; Q8_BYTES] {
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
pub(in super::super) fn round_to_bf16(values: &[f32; BLOCK]) -> [u16; BLOCK] {
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
