//! Products of the codes of a block with activations, by what the processor has for them.

use super::super::integers::INTEGERS;
use super::unpack::{magnitude, offset};
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON alone.
pub(super) const PLAIN: u8 = 0;
/// Byte dot products.
pub(super) const DOT: u8 = 1;
/// Byte matrix products for pairs of tokens, byte dot products for single ones.
pub(super) const MATRIX: u8 = 2;

/// A block of a Q8 activation.
#[derive(Clone, Copy)]
pub(super) struct Token {
    pub(super) place: *const u8,
    /// The activation by four columns, of which a quad is an element.
    quads: [int8x16_t; 2],
    /// What the products with the codes of each half are off by; both in the first if the halves share a scale.
    starts: [int32x4_t; 2],
}

impl Token {
    /// # Safety
    /// `place` points to a block of a Q8 activation.
    #[inline(always)]
    pub(super) unsafe fn new<const F: usize>(place: *const u8) -> Self {
        let halves = const { INTEGERS[F].scales.halves() };
        let offset = const { offset::<F>() };
        // SAFETY: the block begins with 32 bytes, and the sums of both halves lie at 40 and 42. Every processor of this
        // architecture has NEON.
        unsafe {
            let quads = [vld1q_s8(place.cast()), vld1q_s8(place.add(16).cast())];
            let mut starts = [vdupq_n_s32(0); 2];
            if offset != 0 {
                let left = i32::from(place.add(40).cast::<i16>().read_unaligned());
                let right = i32::from(place.add(42).cast::<i16>().read_unaligned());
                if halves {
                    starts = [vdupq_n_s32(-offset * left), vdupq_n_s32(-offset * right)];
                } else {
                    starts[0] = vdupq_n_s32(-offset * (left + right));
                }
            }
            Self { place, quads, starts }
        }
    }

    /// 32 numbers of a byte each at `place`, for codes that are signed.
    ///
    /// # Safety
    /// There are as many bytes.
    #[inline(always)]
    pub(super) unsafe fn of_bytes(place: *const u8) -> Self {
        // SAFETY: promised by the caller. Every processor of this architecture has NEON.
        unsafe {
            let quads = [vld1q_s8(place.cast()), vld1q_s8(place.add(16).cast())];
            Self { place, quads, starts: [vdupq_n_s32(0); 2] }
        }
    }
}

/// For each token the integer sums of 4 rows: of both halves, or all in the first if the halves share a scale.
///
/// # Safety
/// Inlined into a function that has the instructions of level `L`.
#[inline(always)]
pub(super) unsafe fn products<const F: usize, const T: usize, const L: u8>(
    codes: &[int8x16_t; 8],
    tokens: &[Token; T],
) -> [[int32x4_t; 2]; T] {
    // SAFETY: forwarded from the caller.
    unsafe {
        if L == MATRIX && T > 1 {
            return matrix_products::<F, T>(codes, tokens);
        }
        let halves = const { INTEGERS[F].scales.halves() };
        let mut dots = [tokens[0].starts; T];
        for t in 0..T {
            dots[t] = tokens[t].starts;
            for half in 0..2 {
                let sum = &mut dots[t][if halves { half } else { 0 }];
                let codes = [codes[half * 4], codes[half * 4 + 1], codes[half * 4 + 2], codes[half * 4 + 3]];
                *sum = match L {
                    PLAIN => half_products::<F>(*sum, codes, tokens[t].quads[half]),
                    _ => half_dots(*sum, codes, tokens[t].quads[half]),
                };
            }
        }
        dots
    }
}

/// Adds the products of 16 columns to the sums of 4 rows.
///
/// # Safety
/// Inlined into a function that has byte dot products.
#[inline(always)]
unsafe fn half_dots(mut sum: int32x4_t, codes: [int8x16_t; 4], x: int8x16_t) -> int32x4_t {
    // As assembly because the intrinsics are not stable.
    // SAFETY: reads and writes registers only; the caller vouches for the instruction.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {x:v}.4b[0]",
            "sdot {sum:v}.4s, {b:v}.16b, {x:v}.4b[1]",
            "sdot {sum:v}.4s, {c:v}.16b, {x:v}.4b[2]",
            "sdot {sum:v}.4s, {d:v}.16b, {x:v}.4b[3]",
            sum = inout(vreg) sum,
            a = in(vreg) codes[0],
            b = in(vreg) codes[1],
            c = in(vreg) codes[2],
            d = in(vreg) codes[3],
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// The same with the long multiplications of NEON.
#[target_feature(enable = "neon")]
#[inline]
fn half_products<const F: usize>(sum: int32x4_t, codes: [int8x16_t; 4], x: int8x16_t) -> int32x4_t {
    let quads = vreinterpretq_s32_s8(x);
    let x = [
        vreinterpretq_s8_s32(vdupq_laneq_s32::<0>(quads)),
        vreinterpretq_s8_s32(vdupq_laneq_s32::<1>(quads)),
        vreinterpretq_s8_s32(vdupq_laneq_s32::<2>(quads)),
        vreinterpretq_s8_s32(vdupq_laneq_s32::<3>(quads)),
    ];
    // Sums of 16 bits: two rows in the first, two in the second.
    let mut low = vmull_s8(vget_low_s8(codes[0]), vget_low_s8(x[0]));
    let mut high = vmull_high_s8(codes[0], x[0]);
    // Four products of one column of each quad, then two neighbours.
    if const { 8 * 127 * magnitude::<F>() < 1 << 15 } {
        for quad in 1..4 {
            low = vmlal_s8(low, vget_low_s8(codes[quad]), vget_low_s8(x[quad]));
            high = vmlal_high_s8(high, codes[quad], x[quad]);
        }
        return vpadalq_s16(sum, vpaddq_s16(low, high));
    }
    // Full bytes: 2 * 127 * 128 is all that fits.
    let mut sum = vpadalq_s16(sum, vpaddq_s16(low, high));
    for quad in 1..4 {
        let low = vmull_s8(vget_low_s8(codes[quad]), vget_low_s8(x[quad]));
        let high = vmull_high_s8(codes[quad], x[quad]);
        sum = vpadalq_s16(sum, vpaddq_s16(low, high));
    }
    sum
}

/// [`products`] of an even number of tokens with byte matrix products.
///
/// # Safety
/// Inlined into a function that has byte matrix products.
#[inline(always)]
unsafe fn matrix_products<const F: usize, const T: usize>(
    codes: &[int8x16_t; 8],
    tokens: &[Token; T],
) -> [[int32x4_t; 2]; T] {
    let halves = const { INTEGERS[F].scales.halves() };
    let mut dots = [tokens[0].starts; T];
    // SAFETY: every processor of this architecture has NEON; the caller vouches for the byte matrix products.
    unsafe {
        // Eight columns of the first two rows, and of the other two, from two quads of four rows.
        let mut rows = [[codes[0]; 2]; 4];
        for eight in 0..4 {
            let (left, right) =
                (vreinterpretq_s32_s8(codes[eight * 2]), vreinterpretq_s32_s8(codes[eight * 2 + 1]));
            rows[eight] = [
                vreinterpretq_s8_s32(vzip1q_s32(left, right)),
                vreinterpretq_s8_s32(vzip2q_s32(left, right)),
            ];
        }
        for pair in 0..T / 2 {
            let (first, second) = (&tokens[pair * 2], &tokens[pair * 2 + 1]);
            // Two rows by two tokens each.
            let mut sums = [[vdupq_n_s32(0); 2]; 2];
            for half in 0..2 {
                let (a, b) =
                    (vreinterpretq_s64_s8(first.quads[half]), vreinterpretq_s64_s8(second.quads[half]));
                let x = [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))];
                let sums = &mut sums[if halves { half } else { 0 }];
                for side in 0..2 {
                    for eight in 0..2 {
                        sums[side] = matrix_step(sums[side], rows[half * 2 + eight][side], x[eight]);
                    }
                }
            }
            for half in 0..if halves { 2 } else { 1 } {
                let [low, high] = sums[half];
                dots[pair * 2][half] = vaddq_s32(first.starts[half], vuzp1q_s32(low, high));
                dots[pair * 2 + 1][half] = vaddq_s32(second.starts[half], vuzp2q_s32(low, high));
            }
        }
    }
    dots
}

/// Adds the products of eight columns of two rows by two tokens.
///
/// # Safety
/// Inlined into a function that has byte matrix products.
#[inline(always)]
unsafe fn matrix_step(mut sum: int32x4_t, rows: int8x16_t, tokens: int8x16_t) -> int32x4_t {
    // As assembly because the intrinsic is not stable.
    // SAFETY: reads and writes registers only; the caller vouches for the instruction.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {rows:v}.16b, {tokens:v}.16b",
            sum = inout(vreg) sum,
            rows = in(vreg) rows,
            tokens = in(vreg) tokens,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}
