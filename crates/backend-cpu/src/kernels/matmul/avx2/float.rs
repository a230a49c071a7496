//! Floating-point matrices.

use super::super::layout::{GROUP, Layout};
use super::super::many::{self, Columns};
use super::super::{Abreast, Ahead, Operands};
use super::{LANES, store, streams};
use std::arch::x86_64::*;
use std::hint::black_box;
use std::ops::Range;

/// Floating-point layouts by [`ActivationFormat::F32`](super::super::ActivationFormat::F32) activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn float(operands: &Operands<'_>, groups: Range<usize>) {
    if operands.tokens >= many::TOKENS {
        return decoded(operands, groups);
    }
    let pair_bytes = if operands.geometry.layout == Layout::Single { 128 } else { 64 };
    let steps = (operands.geometry.padded_columns() / 2, pair_bytes);
    for groups in Abreast::cut(groups, streams(operands.tokens)) {
        let mut token = 0;
        while token < operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            token += match (groups.count, operands.tokens - token) {
                (2, _) => float_block::<2, 1>(operands, groups, token, ahead),
                (_, 4..) => float_block::<1, 4>(operands, groups, token, ahead),
                _ => float_block::<1, 1>(operands, groups, token, ahead),
            };
        }
    }
}

/// The groups by many tokens.
#[target_feature(enable = "avx2,fma,f16c")]
fn decoded(operands: &Operands<'_>, groups: Range<usize>) {
    many::multiply(
        operands,
        groups,
        (operands.geometry.padded_columns(), many::COLUMNS),
        &mut Columns::new(),
        |piece, group, columns| decode(operands, group, columns, piece),
        |piece, token, columns, sums| match sums.len() {
            6.. => add_columns::<6>(operands, token, columns, piece, sums),
            2.. => add_columns::<2>(operands, token, columns, piece, sums),
            _ => add_columns::<1>(operands, token, columns, piece, sums),
        },
    );
}

/// Decodes some columns of a group, from an even one on and an even number.
#[target_feature(enable = "avx2,fma,f16c")]
fn decode(operands: &Operands<'_>, group: usize, columns: Range<usize>, piece: &mut Columns) {
    let (layout, weights) = (operands.geometry.layout, operands.group(group).as_ptr());
    let pairs = piece.0[..columns.len()].chunks_exact_mut(2);
    for (pair, places) in (columns.start / 2..).zip(pairs) {
        for side in 0..2 {
            // SAFETY: a group has `padded_columns` columns of 16 numbers, and the places as many.
            unsafe {
                let [left, right] = float_pair(layout, weights, pair, side);
                _mm256_storeu_ps(places[0].as_mut_ptr().add(side * LANES), left);
                _mm256_storeu_ps(places[1].as_mut_ptr().add(side * LANES), right);
            }
        }
    }
}

/// Adds the decoded columns to the sums of `T` tokens from `token` on. Returns `T`.
#[target_feature(enable = "avx2,fma,f16c")]
fn add_columns<const T: usize>(
    operands: &Operands<'_>,
    token: usize,
    columns: Range<usize>,
    piece: &Columns,
    sums: &mut [[f32; GROUP]],
) -> usize {
    let mut x = [std::ptr::null(); T];
    let mut total = [[_mm256_setzero_ps(); 2]; T];
    for t in 0..T {
        // Hidden from the compiler, which would compute each from the one before at every read.
        x[t] = black_box(operands.activation_floats(token + t)[columns.clone()].as_ptr());
        for side in 0..2 {
            // SAFETY: each is sixteen numbers.
            total[t][side] = unsafe { _mm256_loadu_ps(sums[t].as_ptr().add(side * LANES)) };
        }
    }
    for (column, weights) in piece.0[..columns.len()].iter().enumerate() {
        // SAFETY: each is sixteen numbers.
        let weights =
            unsafe { [0, 1].map(|side: usize| _mm256_loadu_ps(weights.as_ptr().add(side * LANES))) };
        for t in 0..T {
            // SAFETY: each row of the activation was cut to as many columns.
            let x = unsafe { _mm256_set1_ps(*x[t].add(column)) };
            for side in 0..2 {
                total[t][side] = _mm256_fmadd_ps(weights[side], x, total[t][side]);
            }
        }
    }
    for t in 0..T {
        for side in 0..2 {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(sums[t].as_mut_ptr().add(side * LANES), total[t][side]) }
        }
    }
    T
}

/// The `R` groups by the tokens `token..token + T`; asks for what is read later. Returns `T`.
#[target_feature(enable = "avx2,fma,f16c")]
fn float_block<const R: usize, const T: usize>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let mut weights = [std::ptr::null(); R];
    for r in 0..R {
        weights[r] = operands.group(groups.group(r)).as_ptr();
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
                ahead.lines(place, pair_bytes);
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
            store(operands, token + t, groups.group(r), sums[r][t]);
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
