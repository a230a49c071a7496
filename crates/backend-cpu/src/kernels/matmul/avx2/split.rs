//! Weights of 8 bits by [`ActivationFormat::Q8Split`](super::super::ActivationFormat::Q8Split) activations.

use super::super::activation::{SPLIT_BITS, SPLIT_BYTES};
use super::super::integers::{EIGHT_BITS, INTEGERS};
use super::super::layout::{BLOCK, Pieces};
use super::super::{Abreast, Ahead, Operands};
use super::unpack::block_scales;
use super::{LANES, dot_vnni, store};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of the codes of one block.
const CODE_BYTES: usize = INTEGERS[EIGHT_BITS].code_bytes();
const PIECES: Pieces = Pieces::of(&INTEGERS[EIGHT_BITS]);

/// The groups of rows by all tokens.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn split(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: without VNNI, nothing beyond AVX2 is used.
    unsafe { split_tokens::<false>(operands, groups) }
}

/// The same with AVX-VNNI.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn split_vnni(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: forwarded from the caller.
    unsafe { split_tokens::<true>(operands, groups) }
}

/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn split_tokens<const V: bool>(operands: &Operands<'_>, groups: Range<usize>) {
    let steps = (operands.geometry.blocks(), CODE_BYTES);
    for groups in Abreast::cut(groups, 1) {
        let mut token = 0;
        while token < operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            // SAFETY: forwarded from the caller.
            token += unsafe {
                match operands.tokens - token {
                    2.. => block::<2, V>(operands, groups.first, token, ahead),
                    _ => block::<1, V>(operands, groups.first, token, ahead),
                }
            };
        }
    }
}

/// One group by the tokens `token..token + T`; asks for what is read later. Returns `T`.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<const T: usize, const V: bool>(
    operands: &Operands<'_>,
    group: usize,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let geometry = &operands.geometry;
    let packed = operands.group(group).as_ptr();
    let mut x: [&[u8]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t);
    }
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    for block in 0..geometry.blocks() {
        if let Some(ahead) = ahead {
            ahead.lines(ahead.codes(PIECES, packed, block), CODE_BYTES);
        }
        for side in 0..2 {
            // SAFETY: a group has `blocks()` blocks with a record each, an activation row as many of `SPLIT_BYTES`.
            unsafe {
                let record = packed.add(PIECES.record(block));
                let [scale, ..] = block_scales::<EIGHT_BITS>(record, 0, side * LANES);
                let plane = packed.add(PIECES.codes(block) + side * 32);
                for t in 0..T {
                    let x = x[t].as_ptr().add(block * SPLIT_BYTES);
                    let sum = &mut sums[t][side];
                    let factor = _mm256_set1_ps(x.add(64).cast::<f32>().read_unaligned());
                    let dots = _mm256_cvtepi32_ps(dots::<V>(plane, x));
                    *sum = _mm256_fmadd_ps(_mm256_mul_ps(dots, factor), scale, *sum);
                }
            }
        }
    }
    for t in 0..T {
        store(operands, token + t, group, sums[t]);
    }
    T
}

/// The integer sums of 8 rows of one block of 32 columns.
///
/// # Safety
/// `plane` points to the codes of the rows, every other 32 bytes of a block; `x` to a block of the activation; with `V`, the
/// processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn dots<const V: bool>(plane: *const u8, x: *const u8) -> __m256i {
    // SAFETY: offsets up to `SPLIT_BYTES` lie in the activation block.
    let word = |at: usize| unsafe { _mm256_set1_epi32(x.add(at).cast::<i32>().read_unaligned()) };
    // What the offset of the codes is too much.
    let (mut first, mut second) = (_mm256_setzero_si256(), word(68));
    for quad in 0..8 {
        // SAFETY: forwarded from the caller.
        unsafe {
            let codes = _mm256_loadu_si256(plane.add(quad * 64).cast());
            let (left, right) = (word(quad * 4), word(BLOCK + quad * 4));
            if V {
                first = dot_vnni(first, codes, left);
                second = dot_vnni(second, codes, right);
            } else {
                let one = _mm256_set1_epi16(1);
                let dot = |x: __m256i| _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), one);
                first = _mm256_add_epi32(first, dot(left));
                second = _mm256_add_epi32(second, dot(right));
            }
        }
    }
    _mm256_add_epi32(second, _mm256_slli_epi32::<{ SPLIT_BITS as i32 }>(first))
}
