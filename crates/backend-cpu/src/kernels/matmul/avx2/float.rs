//! Floating-point matrices.

use super::super::layout::Layout;
use super::super::{Ahead, Operands};
use super::store;
use crate::kernels::prefetch;
use std::arch::x86_64::*;
use std::ops::Range;

/// Floating-point layouts by [`ActivationFormat::F32`](super::super::ActivationFormat::F32) activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn float(operands: &Operands<'_>, groups: Range<usize>) {
    let pair_bytes = if operands.geometry.layout == Layout::Single { 128 } else { 64 };
    let steps = (operands.geometry.padded_columns() / 2, pair_bytes);
    let mut group = groups.start;
    while group < groups.end {
        // One token alone would wait for its own sums: two groups have twice as many.
        let count = if operands.tokens == 1 && groups.end - group >= 2 { 2 } else { 1 };
        let mut token = 0;
        while token < operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(group, count, groups.end, steps)) } else { None };
            token += match (count, operands.tokens - token) {
                (2, _) => float_block::<2, 1>(operands, group, token, ahead),
                (_, 4..) => float_block::<1, 4>(operands, group, token, ahead),
                _ => float_block::<1, 1>(operands, group, token, ahead),
            };
        }
        group += count;
    }
}

/// The groups `group..group + R` by the tokens `token..token + T`; asks for what is read later. Returns `T`.
#[target_feature(enable = "avx2,fma,f16c")]
fn float_block<const R: usize, const T: usize>(
    operands: &Operands<'_>,
    group: usize,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let mut weights = [std::ptr::null(); R];
    for r in 0..R {
        weights[r] = operands.group(group + r).as_ptr();
    }
    let layout = operands.geometry.layout;
    let pair_bytes = if layout == Layout::Single { 128 } else { 64 };
    let mut x: [&[f32]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_floats(token + t);
    }
    let mut sums = [[[_mm256_setzero_ps(); 2]; T]; R];
    // Both the matrix and the activation are padded to an even number of columns with zeros.
    for pair in 0..operands.geometry.padded_columns() / 2 {
        for r in 0..R {
            if let Some(ahead) = ahead {
                let (jump, target) = ahead.target(pair);
                let place = weights[r].wrapping_offset(jump).wrapping_add(target * pair_bytes);
                prefetch::lines(place, pair_bytes);
            }
            for side in 0..2 {
                // SAFETY: a group has `padded_columns` columns of 16 numbers.
                let columns = unsafe { float_pair(layout, weights[r], pair, side) };
                for (column, weight) in columns.into_iter().enumerate() {
                    for t in 0..T {
                        // SAFETY: a row of the activation has `padded_columns` numbers.
                        let x = unsafe { _mm256_set1_ps(*x[t].get_unchecked(pair * 2 + column)) };
                        sums[r][t][side] = _mm256_fmadd_ps(weight, x, sums[r][t][side]);
                    }
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            store(operands, token + t, group + r, sums[r][t]);
        }
    }
    T
}

/// Two columns of the first or second 8 rows.
///
/// # Safety
/// `weights` points to a group of `layout` with more than `2 * pair + 1` columns.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn float_pair(layout: Layout, weights: *const u8, pair: usize, side: usize) -> [__m256; 2] {
    // SAFETY: forwarded from the caller.
    unsafe {
        match layout {
            Layout::Brain => {
                let both = _mm256_loadu_si256(weights.add(pair * 64 + side * 32).cast());
                let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)),
                    _mm256_castsi256_ps(_mm256_and_si256(both, high)),
                ]
            }
            Layout::Half => {
                let column = weights.add(pair * 64 + side * 16);
                [
                    _mm256_cvtph_ps(_mm_loadu_si128(column.cast())),
                    _mm256_cvtph_ps(_mm_loadu_si128(column.add(32).cast())),
                ]
            }
            _ => {
                let column = weights.add(pair * 128 + side * 32);
                [_mm256_loadu_ps(column.cast()), _mm256_loadu_ps(column.add(64).cast())]
            }
        }
    }
}
