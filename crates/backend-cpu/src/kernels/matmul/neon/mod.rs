//! NEON kernels: a lane is a row, and a group is four vectors of 4 rows. Byte dot products (`sdot`) and byte matrix
//! products (`smmla`), where present, only replace the steps that multiply integers, whose sums are exact; so all three
//! levels give the same results to the bit, and those of AVX2.

mod float;
mod products;
mod split;
mod unpack;

pub(super) use float::float;
pub(super) use split::{split, split_dot, split_matrix};

use super::activation::Q8_BYTES;
use super::integers::{INTEGERS, Scales, with_format};
use super::layout::{GROUP, Layout, Pieces};
use super::{Abreast, Ahead, Operands};
use products::{DOT, MATRIX, PLAIN, Token, products};
use std::arch::aarch64::*;
use std::ops::Range;
use unpack::{block_codes, block_scales};

/// Rows in one vector.
const LANES: usize = 4;
/// Vectors in a group.
const SIDES: usize = GROUP / LANES;

/// Integer formats by [`super::ActivationFormat::Q8`] activations.
#[target_feature(enable = "neon")]
pub(super) fn integer(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups(operands, groups));
}

/// The same with byte dot products.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn integer_dot(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups_dot(operands, groups));
}

/// The same with byte matrix products.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) fn integer_matrix(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups_matrix(operands, groups));
}

#[target_feature(enable = "neon")]
fn integer_groups<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: this function has the instructions of the level.
    unsafe { integer_tokens::<F, PLAIN>(operands, groups) }
}

#[target_feature(enable = "neon,dotprod")]
fn integer_groups_dot<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: as above.
    unsafe { integer_tokens::<F, DOT>(operands, groups) }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
fn integer_groups_matrix<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: as above.
    unsafe { integer_tokens::<F, MATRIX>(operands, groups) }
}

/// # Safety
/// Inlined into a function that has the instructions of level `L`.
#[inline(always)]
unsafe fn integer_tokens<const F: usize, const L: u8>(operands: &Operands<'_>, groups: Range<usize>) {
    let steps = (operands.geometry.blocks(), const { INTEGERS[F].code_bytes() });
    for groups in Abreast::cut(groups, 1) {
        let mut token = 0;
        while token < operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            // SAFETY: forwarded from the caller.
            token += unsafe {
                match operands.tokens - token {
                    4.. => integer_block::<F, 4, L>(operands, groups.first, token, ahead),
                    2..4 => integer_block::<F, 2, L>(operands, groups.first, token, ahead),
                    _ => integer_block::<F, 1, L>(operands, groups.first, token, ahead),
                }
            };
        }
    }
}

/// One group by the tokens `token..token + T`; asks for what is read later. Returns `T`.
///
/// # Safety
/// As for [`integer_tokens`].
#[inline(always)]
unsafe fn integer_block<const F: usize, const T: usize, const L: u8>(
    operands: &Operands<'_>,
    group: usize,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let geometry = &operands.geometry;
    let code_bytes = const { INTEGERS[F].code_bytes() };
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let packed = operands.group(group).as_ptr();
    let mut x: [&[u8]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t);
    }
    // SAFETY: every processor of this architecture has NEON; a group has `blocks()` blocks and one record for every
    // `per_record` of them, an activation row as many blocks of `Q8_BYTES`.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); SIDES]; T];
        for block in 0..geometry.blocks() {
            if let Some(ahead) = ahead {
                ahead.lines(ahead.codes(pieces, packed, block), code_bytes);
            }
            let part = block % per_record;
            let record = packed.add(pieces.record(block));
            let plane = packed.add(pieces.codes(block));
            let mut tokens = [Token::new::<F>(x[0].as_ptr().add(block * Q8_BYTES)); T];
            for t in 1..T {
                tokens[t] = Token::new::<F>(x[t].as_ptr().add(block * Q8_BYTES));
            }
            for side in 0..SIDES {
                let scales = block_scales::<F>(record, part, side * LANES);
                let codes = block_codes::<F>(plane.add(side * 16));
                let dots = products::<F, T, L>(&codes, &tokens);
                for t in 0..T {
                    sums[t][side] = combine::<F>(dots[t], scales, tokens[t].place, sums[t][side]);
                }
            }
        }
        for t in 0..T {
            store(operands, token + t, group, sums[t]);
        }
    }
    T
}

/// Adds the integer sums of one block, apart for its halves or all in the first, to the sums of 4 rows.
///
/// # Safety
/// `x` points to a block of a Q8 activation.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn combine<const F: usize>(
    dots: [int32x4_t; 2],
    scales: [float32x4_t; 3],
    x: *const u8,
    sum: float32x4_t,
) -> float32x4_t {
    let integer = const { INTEGERS[F] };
    // SAFETY: the block has its scale and scale times sum here.
    let (scale, scaled_sum) =
        unsafe { (x.add(32).cast::<f32>().read_unaligned(), x.add(36).cast::<f32>().read_unaligned()) };
    if integer.scales == Scales::SuperNibbles {
        // Scale and minimum of the left half in the lower bytes, of the right one in the upper ones.
        let (pairs, nibble) = (vreinterpretq_s32_f32(scales[2]), vdupq_n_s32(15));
        let left = vandq_s32(pairs, nibble);
        let left_minimum = vandq_s32(vshrq_n_s32::<4>(pairs), nibble);
        let right = vandq_s32(vshrq_n_s32::<16>(pairs), nibble);
        let right_minimum = vandq_s32(vshrq_n_s32::<20>(pairs), nibble);
        // SAFETY: the sums of both halves lie here.
        let sums =
            unsafe { (x.add(40).cast::<i16>().read_unaligned(), x.add(42).cast::<i16>().read_unaligned()) };
        let product = vmlaq_s32(vmulq_s32(left, dots[0]), right, dots[1]);
        let minimum = vmulq_n_s32(left_minimum, i32::from(sums.0));
        let minimum = vmlaq_n_s32(minimum, right_minimum, i32::from(sums.1));
        let minimum = vmulq_f32(vcvtq_f32_s32(minimum), scales[1]);
        let value = vfmaq_f32(minimum, vcvtq_f32_s32(product), scales[0]);
        vfmaq_n_f32(sum, value, scale)
    } else if integer.scales.halves() {
        let left = vmulq_n_f32(vcvtq_f32_s32(dots[0]), scale);
        let right = vmulq_n_f32(vcvtq_f32_s32(dots[1]), scale);
        vfmaq_f32(vfmaq_f32(sum, left, scales[0]), right, scales[1])
    } else {
        let sum = vfmaq_f32(sum, vmulq_n_f32(vcvtq_f32_s32(dots[0]), scale), scales[0]);
        if matches!(integer.scales, Scales::Affine | Scales::SuperAffine) {
            vfmaq_n_f32(sum, scales[1], scaled_sum)
        } else {
            sum
        }
    }
}

/// Writes the results of one group for one token.
#[inline(always)]
fn store(operands: &Operands<'_>, token: usize, group: usize, values: [float32x4_t; SIDES]) {
    let rows = (operands.geometry.rows - group * GROUP).min(GROUP);
    let mut results = [0.0; GROUP];
    // SAFETY: the array holds all vectors, and the caller of `multiply` vouches for the results of its rows.
    unsafe {
        for side in 0..SIDES {
            vst1q_f32(results.as_mut_ptr().add(side * LANES), values[side]);
        }
        let place = operands.result(token, group * GROUP);
        std::ptr::copy_nonoverlapping(results.as_ptr(), place, rows);
    }
}
