//! 512-bit vectors of AVX-512.
//!
//! SAFETY of all blocks here: values of this type exist only inside the function that `dispatch` calls after it
//! has seen the features, and it is compiled with them; pointers are valid for the lanes as the trait demands.
#![allow(clippy::undocumented_unsafe_blocks)] // stated once above

use std::arch::x86_64::*;

use super::Vector;

/// Sixteen f32.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

impl Vector for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(pointer: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(pointer) })
    }

    #[inline(always)]
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
        Self(unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, pointer) })
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        unsafe { _mm512_storeu_ps(pointer, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, pointer: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(pointer, (1 << count) - 1, self.0) }
    }

    #[inline(always)]
    fn f16_value(bits: u16) -> f32 {
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }

    #[inline(always)]
    unsafe fn splat_f16(pointer: *const u16) -> Self {
        Self(unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(pointer.cast::<i16>().read_unaligned())) })
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u16) -> Self {
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const i8) -> Self {
        unsafe {
            let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(pointer.cast()));
            Self(_mm512_cvtepi32_ps(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, pointer: *mut u16) {
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm256_storeu_si256(pointer.cast(), half);
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, pointer: *mut i8) {
        unsafe {
            let bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0));
            _mm_storeu_si128(pointer.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn store_i16(self, pointer: *mut i16) {
        unsafe {
            let words = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(self.0));
            _mm256_storeu_si256(pointer.cast(), words);
        }
    }

    #[inline(always)]
    unsafe fn dot32(a: *const i16, b: *const i8) -> Self {
        unsafe {
            let b = _mm512_cvtepi8_epi16(_mm256_loadu_si256(b.cast()));
            let products = _mm512_madd_epi16(_mm512_loadu_si512(a.cast()), b);
            Self(_mm512_cvtepi32_ps(products))
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(unsafe { _mm512_abs_ps(self.0) })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(unsafe { _mm512_sqrt_ps(self.0) })
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent)))
        }
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0);
            Self(_mm512_mask_blend_ps(less, no.0, yes.0))
        }
    }

    #[inline(always)]
    fn with_sign(self, sign: Self) -> Self {
        unsafe {
            let bit = _mm512_set1_ps(-0.0);
            Self(_mm512_or_ps(_mm512_andnot_ps(bit, self.0), _mm512_and_ps(bit, sign.0)))
        }
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(unsafe { _mm512_permute_ps::<0b10_11_00_01>(self.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    fn sums(vectors: &[Self]) -> Self {
        let v = &vectors[..16];
        unsafe {
            // Each step halves the lanes that belong to a vector: first 128-bit quarters, then pairs, then
            // single numbers. The order of additions is the same for all vectors.
            let mut quarters = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                // Vectors i, i + 4, i + 8, i + 12 fill the four quarters of the result.
                let ab = fold_halves(v[i].0, v[i + 8].0);
                let cd = fold_halves(v[i + 4].0, v[i + 12].0);
                quarters[i] = fold_quarters(ab, cd);
            }
            let [a, b, c, d] = quarters;
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let high = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            Self(_mm512_add_ps(low, high))
        }
    }
}

/// The halves of `a` added in the low half, those of `b` in the high half.
#[inline(always)]
unsafe fn fold_halves(a: __m512, b: __m512) -> __m512 {
    unsafe {
        let outer = _mm512_mask_blend_ps(0xff00, a, b);
        let inner = _mm512_shuffle_f32x4::<0b01_00_11_10>(a, b);
        _mm512_add_ps(outer, inner)
    }
}

/// The quarters of each half of `a` added in the even quarters, those of `b` in the odd quarters.
#[inline(always)]
unsafe fn fold_quarters(a: __m512, b: __m512) -> __m512 {
    unsafe {
        let outer = _mm512_mask_blend_ps(0xf0f0, a, b);
        let mixed = _mm512_mask_blend_ps(0xf0f0, b, a);
        let inner = _mm512_shuffle_f32x4::<0b10_11_00_01>(mixed, mixed);
        _mm512_add_ps(outer, inner)
    }
}
