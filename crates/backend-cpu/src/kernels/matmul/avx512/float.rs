//! Floating-point matrices.

use super::super::layout::Layout;
use super::super::{Abreast, Ahead, Operands};
use super::{FEW, store};
use std::arch::x86_64::*;
use std::ops::Range;

/// Floating-point layouts by [`ActivationFormat::F32`](super::super::ActivationFormat::F32) activations.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) fn float(operands: &Operands<'_>, groups: Range<usize>) {
    match operands.geometry.layout {
        Layout::Half => float_groups::<HALF>(operands, groups),
        Layout::Brain => float_groups::<BRAIN>(operands, groups),
        _ => float_groups::<SINGLE>(operands, groups),
    }
}

const SINGLE: u8 = 0;
const HALF: u8 = 1;
const BRAIN: u8 = 2;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn float_groups<const L: u8>(operands: &Operands<'_>, groups: Range<usize>) {
    let few = operands.tokens <= FEW;
    let steps = (operands.geometry.padded_columns() / 2, const { if L == SINGLE { 128 } else { 64 } });
    for groups in Abreast::cut(groups, super::super::streams(operands.geometry.layout, operands.tokens)) {
        let mut token = 0;
        while token < operands.tokens {
            let left = operands.tokens - token;
            let ahead = if few && token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            token += match (groups.count, left) {
                (4, _) => float_block::<L, 4, 1>(operands, groups, token, ahead),
                (2, 8..) => float_block::<L, 2, 8>(operands, groups, token, ahead),
                (2, 4..8) => float_block::<L, 2, 4>(operands, groups, token, ahead),
                (2, 2..4) => float_block::<L, 2, 2>(operands, groups, token, ahead),
                (2, _) => float_block::<L, 2, 1>(operands, groups, token, ahead),
                (_, 4..) => float_block::<L, 1, 4>(operands, groups, token, ahead),
                _ => float_block::<L, 1, 1>(operands, groups, token, ahead),
            };
        }
    }
}

/// The `R` groups by the tokens `token..token + T`; asks for what is read later. Returns `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn float_block<const L: u8, const R: usize, const T: usize>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let pair_bytes = const { if L == SINGLE { 128 } else { 64 } };
    let mut weights: [&[u8]; R] = [&[]; R];
    for r in 0..R {
        weights[r] = operands.group(groups.group(r));
    }
    let mut x: [&[f32]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_floats(token + t);
    }
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    // Both the matrix and the activation are padded to an even number of columns with zeros.
    for pair in 0..operands.geometry.padded_columns() / 2 {
        for r in 0..R {
            // SAFETY: a group has `padded_columns` columns of 16 numbers.
            let columns = unsafe { float_pair::<L>(weights[r].as_ptr(), pair) };
            if let Some(ahead) = ahead {
                let (jump, target) = ahead.target(pair);
                let place = weights[r].as_ptr().wrapping_offset(jump).wrapping_add(target * pair_bytes);
                ahead.lines(place, pair_bytes);
            }
            for (column, weight) in columns.into_iter().enumerate() {
                for t in 0..T {
                    // SAFETY: a row of the activation has `padded_columns` numbers.
                    let x = unsafe { *x[t].get_unchecked(pair * 2 + column) };
                    sums[r][t] = _mm512_fmadd_ps(weight, _mm512_set1_ps(x), sums[r][t]);
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

/// Two columns of 16 rows.
///
/// # Safety
/// `weights` points to a group of layout `L` with more than `2 * pair + 1` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) unsafe fn float_pair<const L: u8>(weights: *const u8, pair: usize) -> [__m512; 2] {
    // SAFETY: forwarded from the caller.
    unsafe {
        match L {
            BRAIN => {
                let both = _mm512_loadu_si512(weights.add(pair * 64).cast());
                [
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)),
                    _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32))),
                ]
            }
            HALF => [
                _mm512_cvtph_ps(_mm256_loadu_si256(weights.add(pair * 64).cast())),
                _mm512_cvtph_ps(_mm256_loadu_si256(weights.add(pair * 64 + 32).cast())),
            ],
            _ => [
                _mm512_loadu_ps(weights.add(pair * 128).cast()),
                _mm512_loadu_ps(weights.add(pair * 128 + 64).cast()),
            ],
        }
    }
}
