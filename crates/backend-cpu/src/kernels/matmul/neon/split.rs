//! Weights of 8 bits by [`ActivationFormat::Q8Split`](super::super::ActivationFormat::Q8Split) activations.

use super::super::activation::{SPLIT_BITS, SPLIT_BYTES};
use super::super::integers::{EIGHT_BITS, INTEGERS};
use super::super::layout::{BLOCK, Pieces};
use super::super::{Abreast, Ahead, Operands};
use super::products::{DOT, MATRIX, PLAIN, Token, products};
use super::unpack::{block_codes, block_scales};
use super::{LANES, SIDES, store};
use std::arch::aarch64::*;
use std::ops::Range;

/// Bytes of the codes of one block.
const CODE_BYTES: usize = INTEGERS[EIGHT_BITS].code_bytes();
const PIECES: Pieces = Pieces::of(&INTEGERS[EIGHT_BITS]);

/// The groups of rows by all tokens.
#[target_feature(enable = "neon")]
pub(in super::super) fn split(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: this function has the instructions of the level.
    unsafe { split_tokens::<PLAIN>(operands, groups) }
}

/// The same with byte dot products.
#[target_feature(enable = "neon,dotprod")]
pub(in super::super) fn split_dot(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: as above.
    unsafe { split_tokens::<DOT>(operands, groups) }
}

/// The same with byte matrix products.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(in super::super) fn split_matrix(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: as above.
    unsafe { split_tokens::<MATRIX>(operands, groups) }
}

/// # Safety
/// Inlined into a function that has the instructions of level `L`.
#[inline(always)]
unsafe fn split_tokens<const L: u8>(operands: &Operands<'_>, groups: Range<usize>) {
    let steps = (operands.geometry.blocks(), CODE_BYTES);
    for groups in Abreast::cut(groups, 1) {
        for token in 0..operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            // SAFETY: forwarded from the caller.
            unsafe { block::<L>(operands, groups.first, token, ahead) }
        }
    }
}

/// One group by one token; asks for what is read later.
///
/// # Safety
/// As for [`split_tokens`].
#[inline(always)]
unsafe fn block<const L: u8>(operands: &Operands<'_>, group: usize, token: usize, ahead: Option<Ahead>) {
    let geometry = &operands.geometry;
    let packed = operands.group(group).as_ptr();
    let row = operands.activation_row(token);
    // SAFETY: every processor of this architecture has NEON; a group has `blocks()` blocks with a record each, an activation
    // row as many blocks of `SPLIT_BYTES`.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); SIDES];
        for block in 0..geometry.blocks() {
            if let Some(ahead) = ahead {
                ahead.lines(ahead.codes(PIECES, packed, block), CODE_BYTES);
            }
            let record = packed.add(PIECES.record(block));
            let plane = packed.add(PIECES.codes(block));
            let x = row.as_ptr().add(block * SPLIT_BYTES);
            let factor = x.add(64).cast::<f32>().read_unaligned();
            // Both bytes are multiplied as two tokens would be. The codes are signed here and need no correction.
            let bytes = [Token::of_bytes(x), Token::of_bytes(x.add(BLOCK))];
            for side in 0..SIDES {
                let [scale, ..] = block_scales::<EIGHT_BITS>(record, 0, side * LANES);
                let codes = block_codes::<EIGHT_BITS>(plane.add(side * 16));
                let [[first, _], [second, _]] = products::<EIGHT_BITS, 2, L>(&codes, &bytes);
                let dots = vaddq_s32(second, vshlq_n_s32::<{ SPLIT_BITS as i32 }>(first));
                let product = vmulq_n_f32(vcvtq_f32_s32(dots), factor);
                sums[side] = vfmaq_f32(sums[side], product, scale);
            }
        }
        store(operands, token, group, sums);
    }
}
