//! Preparation of activations.

use super::super::activation::{Q8_BYTES, SPLIT_BITS, SPLIT_BYTES, SPLIT_LARGEST, inverse, put_sums};
use super::super::layout::BLOCK;
use std::arch::x86_64::*;

/// The numbers of both halves as integers of which `most` stands for the largest magnitude, and what 1 stands for; the same
/// as in the scalar form.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn integers(values: &[f32; BLOCK], most: f32) -> ([__m512i; 2], f32) {
    // SAFETY: both halves of the numbers are read.
    let halves = unsafe { [_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(16))] };
    let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(halves[0]), _mm512_abs_ps(halves[1])));
    let inverse = _mm512_set1_ps(inverse(largest, most));
    let least = _mm512_set1_epi32(-(most as i32));
    let integer = |half: __m512| _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(half, inverse)), least);
    ([integer(halves[0]), integer(halves[1])], largest / most)
}

/// One block of [`ActivationFormat::Q8`](super::super::ActivationFormat::Q8), with the same result as the scalar form.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) fn quantize(values: &[f32; BLOCK]) -> [u8; Q8_BYTES] {
    let ([first, second], scale) = integers(values, 127.0);
    let mut block = [0; Q8_BYTES];
    // SAFETY: the first 32 bytes of the block are written.
    unsafe {
        _mm_storeu_si128(block.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(first));
        _mm_storeu_si128(block.as_mut_ptr().add(16).cast(), _mm512_cvtsepi32_epi8(second));
    }
    let sums = [_mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second)];
    put_sums(&mut block, scale, sums);
    block
}

/// One block of [`ActivationFormat::Q8Split`](super::super::ActivationFormat::Q8Split), with the same result as the scalar
/// form.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) fn split(values: &[f32; BLOCK]) -> [u8; SPLIT_BYTES] {
    let (codes, scale) = integers(values, SPLIT_LARGEST);
    let mut block = [0; SPLIT_BYTES];
    for (half, code) in codes.into_iter().enumerate() {
        let first =
            _mm512_srai_epi32::<SPLIT_BITS>(_mm512_add_epi32(code, _mm512_set1_epi32(1 << (SPLIT_BITS - 1))));
        let second = _mm512_sub_epi32(code, _mm512_slli_epi32::<SPLIT_BITS>(first));
        // SAFETY: the first 64 bytes of the block are written.
        unsafe {
            let place = block.as_mut_ptr().add(half * 16);
            _mm_storeu_si128(place.cast(), _mm512_cvtepi32_epi8(first));
            _mm_storeu_si128(place.add(BLOCK).cast(), _mm512_cvtepi32_epi8(second));
        }
    }
    let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(codes[0], codes[1]));
    block[64..68].copy_from_slice(&scale.to_le_bytes());
    block[68..72].copy_from_slice(&(-128 * sum).to_le_bytes());
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
