//! Vectors of eight in two registers of NEON: with 32 registers of 128 bits, that is as much at once as AVX2 has, and sums
//! are made in the same order.
//!
//! SAFETY of all blocks here: values of this type exist only inside the function that `dispatch` calls after it
//! has seen the feature, and it is compiled with it; pointers are valid for the lanes as the trait demands.
#![allow(clippy::undocumented_unsafe_blocks)] // stated once above

use std::arch::aarch64::*;
use std::arch::asm;

use super::Vector;

/// Eight f32.
#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 2]);

/// Four numbers of F16.
#[inline(always)]
unsafe fn wide(halves: uint16x4_t) -> float32x4_t {
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(halves)) }
}

/// Eight integers as they are stored, from lanes rounded to the nearest, ties to even.
#[inline(always)]
unsafe fn integers(lanes: [float32x4_t; 2]) -> int16x8_t {
    unsafe { vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(lanes[0])), vqmovn_s32(vcvtnq_s32_f32(lanes[1]))) }
}

/// Lane `i` is the sum of register `half` of vector `first + i`.
#[inline(always)]
unsafe fn sums_of_four(vectors: &[Neon], first: usize, half: usize) -> float32x4_t {
    let lanes = |i: usize| vectors[first + i].0[half];
    unsafe { vpaddq_f32(vpaddq_f32(lanes(0), lanes(1)), vpaddq_f32(lanes(2), lanes(3))) }
}

impl Vector for Neon {
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(unsafe { [vdupq_n_f32(value); 2] })
    }

    #[inline(always)]
    unsafe fn load(pointer: *const f32) -> Self {
        Self(unsafe { [vld1q_f32(pointer), vld1q_f32(pointer.add(4))] })
    }

    #[inline(always)]
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; 8];
        for i in 0..count.min(8) {
            lanes[i] = unsafe { pointer.add(i).read() };
        }
        unsafe { Self::load(lanes.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        unsafe {
            vst1q_f32(pointer, self.0[0]);
            vst1q_f32(pointer.add(4), self.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, pointer: *mut f32, count: usize) {
        let mut lanes = [0.0; 8];
        unsafe { self.store(lanes.as_mut_ptr()) };
        for i in 0..count.min(8) {
            unsafe { pointer.add(i).write(lanes[i]) };
        }
    }

    #[inline(always)]
    fn f16_value(bits: u16) -> f32 {
        unsafe { vgetq_lane_f32::<0>(wide(vdup_n_u16(bits))) }
    }

    #[inline(always)]
    unsafe fn splat_f16(pointer: *const u16) -> Self {
        unsafe { Self([wide(vdup_n_u16(pointer.read_unaligned())); 2]) }
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u16) -> Self {
        unsafe {
            let halves = vld1q_u16(pointer);
            Self([wide(vget_low_u16(halves)), wide(vget_high_u16(halves))])
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u16) -> Self {
        unsafe {
            let halves = vld1q_u16(pointer);
            let (low, high) =
                (vshll_n_u16::<16>(vget_low_u16(halves)), vshll_n_u16::<16>(vget_high_u16(halves)));
            Self([vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)])
        }
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const i8) -> Self {
        unsafe {
            let words = vmovl_s8(vld1_s8(pointer));
            let (low, high) = (vmovl_s16(vget_low_s16(words)), vmovl_s16(vget_high_s16(words)));
            Self([vcvtq_f32_s32(low), vcvtq_f32_s32(high)])
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, pointer: *mut u16) {
        unsafe {
            vst1_u16(pointer, vreinterpret_u16_f16(vcvt_f16_f32(self.0[0])));
            vst1_u16(pointer.add(4), vreinterpret_u16_f16(vcvt_f16_f32(self.0[1])));
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, pointer: *mut i8) {
        unsafe { vst1_s8(pointer, vqmovn_s16(integers(self.0))) }
    }

    #[inline(always)]
    unsafe fn store_i16(self, pointer: *mut i16) {
        unsafe { vst1q_s16(pointer, integers(self.0)) }
    }

    #[inline(always)]
    unsafe fn dot32(a: *const i16, b: *const i8) -> Self {
        unsafe {
            // The products of integers `i` and `i + 16` for 16 of `i`; then pairs of neighbours, as AVX2 adds them.
            let product = |i: usize| {
                let words = vmovl_s8(vld1_s8(b.add(i)));
                let more = vmovl_s8(vld1_s8(b.add(i + 16)));
                let (a, more_a) = (vld1q_s16(a.add(i)), vld1q_s16(a.add(i + 16)));
                let low = vmull_s16(vget_low_s16(a), vget_low_s16(words));
                let high = vmull_high_s16(a, words);
                vpaddq_s32(
                    vmlal_s16(low, vget_low_s16(more_a), vget_low_s16(more)),
                    vmlal_high_s16(high, more_a, more),
                )
            };
            Self([vcvtq_f32_s32(product(0)), vcvtq_f32_s32(product(8))])
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        Self(unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        Self(unsafe { [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])] })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        Self(unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        Self(unsafe { [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])] })
    }

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        let (a, b, c) = (self.0, factor.0, addend.0);
        Self(unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] })
    }

    // The instructions for minima and maxima treat not-a-number otherwise than the trait says.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.select_less(other, self, other)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        other.select_less(self, self, other)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(unsafe { [vabsq_f32(self.0[0]), vabsq_f32(self.0[1])] })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(unsafe { [vsqrtq_f32(self.0[0]), vsqrtq_f32(self.0[1])] })
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(unsafe { [vrndnq_f32(self.0[0]), vrndnq_f32(self.0[1])] })
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        unsafe {
            let power = |lanes: float32x4_t| {
                let exponent = vaddq_s32(vcvtnq_s32_f32(lanes), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
            };
            Self([power(self.0[0]), power(self.0[1])])
        }
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        let (a, b, yes, no) = (self.0, other.0, yes.0, no.0);
        unsafe {
            Self([
                vbslq_f32(vcltq_f32(a[0], b[0]), yes[0], no[0]),
                vbslq_f32(vcltq_f32(a[1], b[1]), yes[1], no[1]),
            ])
        }
    }

    #[inline(always)]
    fn with_sign(self, sign: Self) -> Self {
        let (a, sign) = (self.0, sign.0);
        unsafe {
            let bit = vdupq_n_u32(1 << 31);
            Self([vbslq_f32(bit, sign[0], a[0]), vbslq_f32(bit, sign[1], a[1])])
        }
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(unsafe { [vrev64q_f32(self.0[0]), vrev64q_f32(self.0[1])] })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let four = vaddq_f32(self.0[0], self.0[1]);
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(self.0[0], self.0[1])) }
    }

    #[inline(always)]
    fn sums(vectors: &[Self]) -> Self {
        let vectors = &vectors[..8];
        unsafe {
            let four = |first| vaddq_f32(sums_of_four(vectors, first, 0), sums_of_four(vectors, first, 1));
            Self([four(0), four(4)])
        }
    }
}
