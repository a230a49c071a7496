//! Vectors of one lane: the reference, and the only level on processors without kernels of their own.

use super::Vector;

/// One f32.
#[derive(Clone, Copy)]
pub struct Scalar(f32);

impl Vector for Scalar {
    const LANES: usize = 1;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(value)
    }

    #[inline(always)]
    unsafe fn load(pointer: *const f32) -> Self {
        // SAFETY: promised by the caller.
        Self(unsafe { pointer.read() })
    }

    #[inline(always)]
    unsafe fn load_first(_: *const f32, _: usize) -> Self {
        Self(0.0)
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { pointer.write(self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, _: *mut f32, _: usize) {}

    #[inline(always)]
    fn f16_value(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    unsafe fn splat_f16(pointer: *const u16) -> Self {
        // SAFETY: promised by the caller.
        Self::splat(Self::f16_value(unsafe { pointer.read_unaligned() }))
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u16) -> Self {
        // SAFETY: promised by the caller.
        Self(half::f16::from_bits(unsafe { pointer.read_unaligned() }).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u16) -> Self {
        // SAFETY: promised by the caller.
        Self(f32::from_bits(u32::from(unsafe { pointer.read_unaligned() }) << 16))
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const i8) -> Self {
        // SAFETY: promised by the caller.
        Self(f32::from(unsafe { pointer.read() }))
    }

    #[inline(always)]
    unsafe fn store_f16(self, pointer: *mut u16) {
        // SAFETY: promised by the caller.
        unsafe { pointer.write_unaligned(half::f16::from_f32(self.0).to_bits()) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, pointer: *mut i8) {
        // SAFETY: promised by the caller.
        unsafe { pointer.write(self.0.round_ties_even() as i8) }
    }

    #[inline(always)]
    unsafe fn store_i16(self, pointer: *mut i16) {
        // SAFETY: promised by the caller.
        unsafe { pointer.write(self.0.round_ties_even() as i16) }
    }

    #[inline(always)]
    unsafe fn dot32(a: *const i16, b: *const i8) -> Self {
        let mut sum = 0;
        for i in 0..32 {
            // SAFETY: promised by the caller.
            sum += unsafe { i32::from(*a.add(i)) * i32::from(*b.add(i)) };
        }
        Self(sum as f32)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(self.0 * other.0)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(self.0 / other.0)
    }

    // Without hardware support a fused operation is a slow library call.
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Self(self.0 * factor.0 + addend.0)
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(if self.0 < other.0 { self.0 } else { other.0 })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(if self.0 > other.0 { self.0 } else { other.0 })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.abs())
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.sqrt())
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(self.0.round_ties_even())
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        Self(f32::from_bits(((self.0 as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        if self.0 < other.0 { yes } else { no }
    }

    #[inline(always)]
    fn with_sign(self, sign: Self) -> Self {
        Self(self.0.copysign(sign.0))
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        self
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.0
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.0
    }

    #[inline(always)]
    fn sums(vectors: &[Self]) -> Self {
        vectors[0]
    }
}
