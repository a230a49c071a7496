//! Floating-point matrices.

use super::super::layout::Layout;
use super::super::{Abreast, Ahead, Operands};
use super::unpack::from_halves;
use super::{LANES, SIDES, store};
use std::arch::aarch64::*;
use std::ops::Range;

/// Floating-point layouts by [`ActivationFormat::F32`](super::super::ActivationFormat::F32) activations.
#[target_feature(enable = "neon")]
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

/// Bytes of two columns of a group.
const fn pair_bytes(layout: u8) -> usize {
    if layout == SINGLE { 128 } else { 64 }
}

#[target_feature(enable = "neon")]
fn float_groups<const L: u8>(operands: &Operands<'_>, groups: Range<usize>) {
    let steps = (operands.geometry.padded_columns() / 2, const { pair_bytes(L) });
    // One token alone would wait for its own sums: two groups have twice as many.
    let streams = if operands.tokens == 1 { 2 } else { 1 };
    for groups in Abreast::cut(groups, streams) {
        let mut token = 0;
        while token < operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            token += match (groups.count, operands.tokens - token) {
                (2, _) => float_block::<L, 2, 1>(operands, groups, token, ahead),
                (_, 4..) => float_block::<L, 1, 4>(operands, groups, token, ahead),
                _ => float_block::<L, 1, 1>(operands, groups, token, ahead),
            };
        }
    }
}

/// The `R` groups by the tokens `token..token + T`; asks for what is read later. Returns `T`.
#[target_feature(enable = "neon")]
fn float_block<const L: u8, const R: usize, const T: usize>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let pair_bytes = const { pair_bytes(L) };
    let mut weights = [std::ptr::null(); R];
    for r in 0..R {
        weights[r] = operands.group(groups.group(r)).as_ptr();
    }
    let mut x: [&[f32]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_floats(token + t);
    }
    let mut sums = [[[vdupq_n_f32(0.0); SIDES]; T]; R];
    // Both the matrix and the activation are padded to an even number of columns with zeros.
    for pair in 0..operands.geometry.padded_columns() / 2 {
        for r in 0..R {
            if let Some(ahead) = ahead {
                let (jump, target) = ahead.target(pair);
                let place = weights[r].wrapping_offset(jump).wrapping_add(target * pair_bytes);
                ahead.lines(place, pair_bytes);
            }
            for side in 0..SIDES {
                // SAFETY: a group has `padded_columns` columns of 16 numbers.
                let columns = unsafe { float_pair::<L>(weights[r], pair, side) };
                for column in 0..2 {
                    for t in 0..T {
                        // SAFETY: a row of the activation has `padded_columns` numbers.
                        let x = unsafe { *x[t].get_unchecked(pair * 2 + column) };
                        sums[r][t][side] = vfmaq_n_f32(sums[r][t][side], columns[column], x);
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

/// Two columns of the 4 rows of a side.
///
/// # Safety
/// `weights` points to a group of layout `L` with more than `2 * pair + 1` columns.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn float_pair<const L: u8>(weights: *const u8, pair: usize, side: usize) -> [float32x4_t; 2] {
    // SAFETY: forwarded from the caller.
    unsafe {
        match L {
            BRAIN => {
                let both = vld1q_u32(weights.add(pair * 64 + side * LANES * 4).cast());
                let high = vandq_u32(both, vdupq_n_u32(0xffff_0000));
                [vreinterpretq_f32_u32(vshlq_n_u32::<16>(both)), vreinterpretq_f32_u32(high)]
            }
            HALF => {
                let column = weights.add(pair * 64 + side * LANES * 2);
                [from_halves(vld1_u16(column.cast())), from_halves(vld1_u16(column.add(32).cast()))]
            }
            _ => {
                let column = weights.add(pair * 128 + side * LANES * 4);
                [vld1q_f32(column.cast()), vld1q_f32(column.add(64).cast())]
            }
        }
    }
}
