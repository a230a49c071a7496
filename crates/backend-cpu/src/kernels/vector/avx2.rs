//! 256-bit vectors of AVX2, FMA and F16C.
//!
//! SAFETY of all blocks here: values of this type exist only inside the function that `dispatch` calls after it
//! has seen the features, and it is compiled with them; pointers are valid for the lanes as the trait demands.
#![allow(clippy::undocumented_unsafe_blocks)] // stated once above

use std::arch::x86_64::*;

use super::Vector;

/// Eight f32.
#[derive(Clone, Copy)]
pub struct Avx2(__m256);

/// Lane masks: the eight numbers from `8 - count` on have their sign set in the first `count` lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn mask(count: usize) -> __m256i {
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast()) }
}

impl Vector for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(pointer: *const f32) -> Self {
        Self(unsafe { _mm256_loadu_ps(pointer) })
    }

    #[inline(always)]
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
        Self(unsafe { _mm256_maskload_ps(pointer, mask(count)) })
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        unsafe { _mm256_storeu_ps(pointer, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, pointer: *mut f32, count: usize) {
        unsafe { _mm256_maskstore_ps(pointer, mask(count), self.0) }
    }

    #[inline(always)]
    fn f16_value(bits: u16) -> f32 {
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }

    #[inline(always)]
    unsafe fn splat_f16(pointer: *const u16) -> Self {
        Self(unsafe { _mm256_cvtph_ps(_mm_set1_epi16(pointer.cast::<i16>().read_unaligned())) })
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u16) -> Self {
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(pointer.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u16) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(pointer.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const i8) -> Self {
        unsafe {
            let wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(pointer.cast()));
            Self(_mm256_cvtepi32_ps(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, pointer: *mut u16) {
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm_storeu_si128(pointer.cast(), half);
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, pointer: *mut i8) {
        unsafe {
            let wide = _mm256_cvtps_epi32(self.0);
            let (low, high) = (_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
            let words = _mm_packs_epi32(low, high);
            _mm_storel_epi64(pointer.cast(), _mm_packs_epi16(words, words));
        }
    }

    #[inline(always)]
    unsafe fn store_i16(self, pointer: *mut i16) {
        unsafe {
            let wide = _mm256_cvtps_epi32(self.0);
            let (low, high) = (_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
            _mm_storeu_si128(pointer.cast(), _mm_packs_epi32(low, high));
        }
    }

    #[inline(always)]
    unsafe fn dot32(a: *const i16, b: *const i8) -> Self {
        unsafe {
            let (a, b) = (a.cast::<__m256i>(), b.cast::<__m128i>());
            let low = _mm256_madd_epi16(_mm256_loadu_si256(a), _mm256_cvtepi8_epi16(_mm_loadu_si128(b)));
            let b = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.add(1)));
            let high = _mm256_madd_epi16(_mm256_loadu_si256(a.add(1)), b);
            Self(_mm256_cvtepi32_ps(_mm256_add_epi32(low, high)))
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(unsafe { _mm256_sqrt_ps(self.0) })
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        Self(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0)) })
    }

    #[inline(always)]
    fn with_sign(self, sign: Self) -> Self {
        unsafe {
            let bit = _mm256_set1_ps(-0.0);
            Self(_mm256_or_ps(_mm256_andnot_ps(bit, self.0), _mm256_and_ps(bit, sign.0)))
        }
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(unsafe { _mm256_permute_ps::<0b10_11_00_01>(self.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sums(vectors: &[Self]) -> Self {
        let v = &vectors[..8];
        unsafe {
            // Each horizontal addition halves the lanes of every vector; the order of additions is the same for
            // all of them.
            let a = _mm256_hadd_ps(_mm256_hadd_ps(v[0].0, v[1].0), _mm256_hadd_ps(v[2].0, v[3].0));
            let b = _mm256_hadd_ps(_mm256_hadd_ps(v[4].0, v[5].0), _mm256_hadd_ps(v[6].0, v[7].0));
            let low = _mm256_permute2f128_ps::<0x20>(a, b);
            let high = _mm256_permute2f128_ps::<0x31>(a, b);
            Self(_mm256_add_ps(low, high))
        }
    }
}
