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
    for groups in Abreast::cut(groups, super::streams(operands.tokens)) {
        let mut token = 0;
        while token < operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            // SAFETY: forwarded from the caller.
            token += unsafe {
                match (groups.count, operands.tokens - token) {
                    (2, _) => blocks::<2, 1, V>(operands, groups, token, ahead),
                    (_, 2..) => blocks::<1, 2, V>(operands, groups, token, ahead),
                    _ => blocks::<1, 1, V>(operands, groups, token, ahead),
                }
            };
        }
    }
}

/// The `R` groups by the tokens `token..token + T`; asks for what is read later. Returns `T`.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn blocks<const R: usize, const T: usize, const V: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let mut packed = [std::ptr::null(); R];
    for r in 0..R {
        packed[r] = operands.group(groups.group(r)).as_ptr();
    }
    let mut x: [&[u8]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t);
    }
    let mut sums = [[[_mm256_setzero_ps(); 2]; T]; R];
    for block in 0..operands.geometry.blocks() {
        let mut later = [std::ptr::null(); R];
        if let Some(ahead) = ahead {
            for r in 0..R {
                later[r] = ahead.codes(PIECES, packed[r], block);
            }
        }
        // SAFETY: an activation row has `blocks()` blocks, of which offsets up to `SPLIT_BYTES` are read.
        let word = |t: usize, at: usize| unsafe {
            _mm256_set1_epi32(x[t].as_ptr().add(block * SPLIT_BYTES + at).cast::<i32>().read_unaligned())
        };
        let mut first = [[[_mm256_setzero_si256(); 2]; T]; R];
        let mut second = first;
        for t in 0..T {
            for r in 0..R {
                // What the offset of the codes is too much.
                second[r][t] = [word(t, 68); 2];
            }
        }
        each!(quad in 0 1 2 3 4 5 6 7 => {
            for r in 0..R {
                if let Some(ahead) = ahead {
                    ahead.line(later[r].wrapping_add(quad * 64));
                }
                for side in 0..2 {
                    // SAFETY: a group has `blocks()` blocks, and the caller vouches for AVX-VNNI.
                    unsafe {
                        let place = packed[r].add(PIECES.codes(block) + quad * 64 + side * 32);
                        let codes = _mm256_loadu_si256(place.cast());
                        for t in 0..T {
                            let (left, right) = (word(t, quad * 4), word(t, BLOCK + quad * 4));
                            let (first, second) = (&mut first[r][t][side], &mut second[r][t][side]);
                            *first = dot::<V>(*first, codes, left);
                            *second = dot::<V>(*second, codes, right);
                        }
                    }
                }
            }
        });
        for r in 0..R {
            for side in 0..2 {
                // SAFETY: each block has a scale record, and the activation as many blocks.
                unsafe {
                    let record = packed[r].add(PIECES.record(block));
                    let [scale, ..] = block_scales::<EIGHT_BITS>(record, 0, side * LANES);
                    for t in 0..T {
                        let factor = _mm256_castsi256_ps(word(t, 64));
                        let (first, second) = (first[r][t][side], second[r][t][side]);
                        let dots =
                            _mm256_add_epi32(second, _mm256_slli_epi32::<{ SPLIT_BITS as i32 }>(first));
                        let value = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), factor);
                        sums[r][t][side] = _mm256_fmadd_ps(value, scale, sums[r][t][side]);
                    }
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            store(operands, token + t, groups.group(r), sums[r][t]);
        }
    }
    T
}

/// Adds the products of four codes by four numbers of the activation to the sums of 8 rows. Those of codes of the split form fit 16
/// bits two by two.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn dot<const V: bool>(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    if V {
        // SAFETY: forwarded from the caller.
        unsafe { dot_vnni(sum, codes, x) }
    } else {
        let pairs = _mm256_maddubs_epi16(codes, x);
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}
