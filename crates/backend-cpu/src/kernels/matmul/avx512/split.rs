//! Weights of 8 bits by [`ActivationFormat::Q8Split`](super::super::ActivationFormat::Q8Split) activations.

use super::super::activation::{SPLIT_BITS, SPLIT_BYTES};
use super::super::integers::{EIGHT_BITS, INTEGERS};
use super::super::layout::{BLOCK, Pieces};
use super::super::{Abreast, Ahead, Operands};
use super::store;
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of the codes of one block.
const CODE_BYTES: usize = INTEGERS[EIGHT_BITS].code_bytes();
const PIECES: Pieces = Pieces::of(&INTEGERS[EIGHT_BITS]);

/// The groups of rows by all tokens (AVX-512 VNNI).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn split(operands: &Operands<'_>, groups: Range<usize>) {
    let steps = (operands.geometry.blocks(), CODE_BYTES);
    for groups in Abreast::cut(groups, super::super::streams(operands.geometry.layout, operands.tokens)) {
        // Once for each group.
        let ahead = operands.ahead(groups, steps);
        let mut token = 0;
        while token < operands.tokens {
            token += match (groups.count, operands.tokens - token) {
                (4, _) => blocks::<4, 1, true>(operands, groups, token, ahead),
                (2, left) if token == 0 => some_tokens::<2, true>(operands, groups, token, left, ahead),
                (2, left) => some_tokens::<2, false>(operands, groups, token, left, ahead),
                (_, left) if token == 0 => some_tokens::<1, true>(operands, groups, token, left, ahead),
                (_, left) => some_tokens::<1, false>(operands, groups, token, left, ahead),
            };
        }
    }
}

/// `R` groups by as many of `left` tokens from `token` on as fit the registers; with `ASK`, asks for what is read later. Returns
/// their number.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn some_tokens<const R: usize, const ASK: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    left: usize,
    ahead: Ahead,
) -> usize {
    match left {
        4.. => blocks::<R, 4, ASK>(operands, groups, token, ahead),
        3 => blocks::<R, 3, ASK>(operands, groups, token, ahead),
        2 => blocks::<R, 2, ASK>(operands, groups, token, ahead),
        _ => blocks::<R, 1, ASK>(operands, groups, token, ahead),
    }
}

/// The `R` groups by the tokens `token..token + T`; with `ASK`, asks for what is read later, line by line between its own reads.
/// Returns `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn blocks<const R: usize, const T: usize, const ASK: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Ahead,
) -> usize {
    let mut packed = [std::ptr::null(); R];
    for r in 0..R {
        packed[r] = operands.group(groups.group(r)).as_ptr();
    }
    let mut x = [std::ptr::null(); T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t).as_ptr();
    }
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for block in 0..operands.geometry.blocks() {
        // SAFETY: an activation row has `blocks()` blocks, of which offsets up to `SPLIT_BYTES` are read.
        let word = |t: usize, at: usize| unsafe {
            _mm512_set1_epi32(x[t].add(block * SPLIT_BYTES + at).cast::<i32>().read_unaligned())
        };
        let mut first = [[_mm512_setzero_si512(); T]; R];
        let mut second = first;
        let (mut planes, mut later) = ([std::ptr::null(); R], [std::ptr::null(); R]);
        for r in 0..R {
            // SAFETY: a group has `blocks()` blocks.
            planes[r] = unsafe { packed[r].add(PIECES.codes(block)) };
            if ASK {
                later[r] = ahead.codes(PIECES, packed[r], block);
            }
            for t in 0..T {
                // What the offset of the codes is too much.
                second[r][t] = word(t, 68);
            }
        }
        each!(quad in 0 1 2 3 4 5 6 7 => {
            let mut codes = [_mm512_setzero_si512(); R];
            for r in 0..R {
                if ASK {
                    ahead.line(later[r].wrapping_add(quad * 64));
                }
                // SAFETY: a block has eight quads.
                codes[r] = unsafe { _mm512_loadu_si512(planes[r].add(quad * 64).cast()) };
            }
            for t in 0..T {
                let (left, right) = (word(t, quad * 4), word(t, BLOCK + quad * 4));
                for r in 0..R {
                    first[r][t] = _mm512_dpbusd_epi32(first[r][t], codes[r], left);
                    second[r][t] = _mm512_dpbusd_epi32(second[r][t], codes[r], right);
                }
            }
        });
        for r in 0..R {
            // SAFETY: each block has a scale record, and the activation as many blocks.
            unsafe {
                let scale = scales(packed[r].add(PIECES.record(block)));
                for t in 0..T {
                    let x = x[t].add(block * SPLIT_BYTES);
                    sums[r][t] = combine_split(first[r][t], second[r][t], scale, x, sums[r][t]);
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

/// The scales of a block.
///
/// # Safety
/// `record` points to 16 F16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) unsafe fn scales(record: *const u8) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(record.cast())) }
}

/// Adds the integer sums of one block by the first and by the second bytes to the sum of 16 rows.
///
/// # Safety
/// `x` points to a block of the activation.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(in super::super) unsafe fn combine_split(
    first: __m512i,
    second: __m512i,
    scale: __m512,
    x: *const u8,
    sum: __m512,
) -> __m512 {
    let dots = _mm512_add_epi32(second, _mm512_slli_epi32::<SPLIT_BITS>(first));
    // SAFETY: the scale lies in the activation block.
    let factor = unsafe { _mm512_set1_ps(x.add(64).cast::<f32>().read_unaligned()) };
    _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), factor), scale, sum)
}
