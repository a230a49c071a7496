//! One way to write a kernel for every vector width.
//!
//! A kernel is a struct with its arguments and a generic, always inlined [`Kernel::run`]; [`dispatch`] calls it
//! inside a function compiled for the instruction set in use. Closures and iterator adaptors over vectors are
//! avoided in kernels, as they are functions of their own and may end up compiled without that set.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use crate::isa::Features;
pub use scalar::Scalar;

/// A vector of f32. Values exist only inside [`Kernel::run`], hence only where [`dispatch`] has seen that the
/// processor has the instructions; the methods that take pointers are unsafe because of the pointers.
#[allow(clippy::missing_safety_doc)] // stated once: the pointer is valid for the lanes that are touched
#[allow(missing_docs)] // the names say it
pub trait Vector: Copy {
    const LANES: usize;
    fn splat(value: f32) -> Self;
    unsafe fn load(pointer: *const f32) -> Self;
    /// The first `count < LANES` lanes; the others are zero.
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self;
    unsafe fn store(self, pointer: *mut f32);
    unsafe fn store_first(self, pointer: *mut f32, count: usize);
    fn f16_value(bits: u16) -> f32;
    /// One number in all lanes.
    unsafe fn splat_f16(pointer: *const u16) -> Self;
    unsafe fn load_f16(pointer: *const u16) -> Self;
    unsafe fn load_bf16(pointer: *const u16) -> Self;
    unsafe fn load_i8(pointer: *const i8) -> Self;
    /// Rounds to nearest even.
    unsafe fn store_f16(self, pointer: *mut u16);
    /// Rounds to the nearest integer, ties to even, and saturates.
    unsafe fn store_i8(self, pointer: *mut i8);
    /// Rounds to the nearest integer, ties to even, and saturates.
    unsafe fn store_i16(self, pointer: *mut i16);
    /// Lane sums of the products of 32 integers each; exact if the first are at most 32766 in size.
    unsafe fn dot32(a: *const i16, b: *const i8) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, fused where the processor can.
    fn fma(self, factor: Self, addend: Self) -> Self;
    /// The smaller one; `other` where one of them is not a number.
    fn min(self, other: Self) -> Self;
    /// The larger one; `other` where one of them is not a number.
    fn max(self, other: Self) -> Self;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    fn round(self) -> Self;
    /// 2 to the power `self`, an integer in `-126..=127`.
    fn power_of_two(self) -> Self;
    /// `yes` where `self < other`, else `no`.
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self;
    /// The sign of `sign` on the magnitude of `self`.
    fn with_sign(self, sign: Self) -> Self;
    /// Exchanges lanes 2i and 2i+1 (for one lane: itself).
    fn swap_pairs(self) -> Self;
    fn sum(self) -> f32;
    fn largest(self) -> f32;
    /// Lane `i` of the result is the sum of vector `i` of the `LANES` vectors given.
    fn sums(vectors: &[Self]) -> Self;
}

/// A computation to be compiled for each instruction set.
pub trait Kernel {
    /// What it returns.
    type Output;
    /// Does it; must be `#[inline(always)]`.
    fn run<V: Vector>(self) -> Self::Output;
}

/// Runs the kernel with the widest vectors of `features`.
#[inline]
pub fn dispatch<K: Kernel>(features: Features, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if features.avx512 {
            // SAFETY: a `Features` value proves that the processor has them.
            return unsafe { run_avx512(kernel) };
        }
        if features.avx2 {
            // SAFETY: as above.
            return unsafe { run_avx2(kernel) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    if features.neon {
        // SAFETY: a `Features` value proves that the processor has it.
        return unsafe { run_neon(kernel) };
    }
    let _ = features;
    kernel.run::<Scalar>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx512::Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::Avx2>()
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<neon::Neon>()
}

/// Loads `count` lanes, or all if `count` is larger.
///
/// # Safety
/// `pointer` is valid for as many numbers.
#[inline(always)]
pub unsafe fn load_upto<V: Vector>(pointer: *const f32, count: usize) -> V {
    // SAFETY: promised by the caller.
    unsafe { if count >= V::LANES { V::load(pointer) } else { V::load_first(pointer, count) } }
}

/// Stores `count` lanes, or all if `count` is larger.
///
/// # Safety
/// `pointer` is valid for as many numbers.
#[inline(always)]
pub unsafe fn store_upto<V: Vector>(value: V, pointer: *mut f32, count: usize) {
    // SAFETY: promised by the caller.
    unsafe { if count >= V::LANES { value.store(pointer) } else { value.store_first(pointer, count) } }
}
