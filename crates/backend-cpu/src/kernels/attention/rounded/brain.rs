//! Numbers rounded to BF16, as the matrix unit multiplies them.

use std::arch::asm;
use std::arch::x86_64::*;

/// Numbers of two vectors as BF16, first those of `low`. The instruction is written out, since the functions that need it serve
/// processors without it, too; those with the matrix unit have it.
#[target_feature(enable = "avx512f")]
#[inline]
fn both(low: __m512, high: __m512) -> __m512i {
    let rounded: __m512i;
    // SAFETY: an instruction on registers, which the caller's processor has.
    unsafe {
        asm!("vcvtne2ps2bf16 {}, {}, {}", out(zmm_reg) rounded, in(zmm_reg) high, in(zmm_reg) low,
            options(pure, nomem, nostack, preserves_flags));
    }
    rounded
}

/// 32 numbers.
///
/// # Safety
/// There are as many, and the processor has AVX-512 BF16.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn round(numbers: *const f32) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe { both(_mm512_loadu_ps(numbers), _mm512_loadu_ps(numbers.add(16))) }
}

/// The numbers of two vectors, in turn.
///
/// # Safety
/// The processor has AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn side_by_side(even: __m512, odd: __m512) -> __m512i {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut index = 0;
        while index < 16 {
            (order[2 * index], order[2 * index + 1]) = (index as u16, index as u16 + 16);
            index += 1;
        }
        order
    };
    // SAFETY: the array has 512 bits.
    unsafe { _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER.as_ptr().cast()), both(even, odd)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        if !is_x86_feature_detected!("avx512bf16") {
            return println!("skipped: this processor has no BF16");
        }
        let numbers: [f32; 32] = std::array::from_fn(|index| (index as f32 - 15.3) * 1.0371 + 1e-3);
        // SAFETY: the processor has the instructions; vectors have 64 bytes.
        let [whole, turns] = unsafe {
            let [low, high] = [0, 16].map(|at| _mm512_loadu_ps(numbers.as_ptr().add(at)));
            [round(numbers.as_ptr()), side_by_side(low, high)]
                .map(|vector| std::mem::transmute::<__m512i, [bf16; 32]>(vector))
        };
        for index in 0..32 {
            assert_eq!(whole[index], bf16::from_f32(numbers[index]));
            assert_eq!(turns[index], bf16::from_f32(numbers[index / 2 + index % 2 * 16]));
        }
    }
}
