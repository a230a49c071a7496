//! BF16 matrices by [`ActivationFormat::Bf16`](super::super::ActivationFormat::Bf16) activations (AVX-512 BF16).

use super::super::Operands;
use super::super::activation::{TILE_BYTES, TILE_TOKENS};
use super::super::layout::BLOCK;
use super::store;
use crate::kernels::dots;
use std::arch::x86_64::*;
use std::ops::Range;

/// The groups of rows by all tokens. Sums of two groups are kept at once, so that each number of the activation is read for
/// 32 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) fn brain(operands: &Operands<'_>, groups: Range<usize>) {
    for group in groups.clone().step_by(2) {
        for token in (0..operands.tokens).step_by(dots::ROWS) {
            if group + 1 < groups.end {
                blocks::<2>(operands, group, token)
            } else {
                blocks::<1>(operands, group, token)
            }
        }
    }
}

/// The groups `group..group + R` by the tokens from `token`, which is a multiple of [`dots::ROWS`], on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn blocks<const R: usize>(operands: &Operands<'_>, group: usize, token: usize) {
    let blocks = operands.geometry.blocks();
    // Tiles are whole also where the last has fewer tokens.
    let tile = token / TILE_TOKENS * TILE_TOKENS * operands.token_bytes;
    let x = operands.activation[tile..][..blocks * TILE_BYTES].as_ptr();
    let x = x.wrapping_add(token % TILE_TOKENS * (BLOCK * 2));
    let mut weights = [std::ptr::null(); R];
    for r in 0..R {
        weights[r] = operands.group(group + r)[..blocks * TILE_BYTES].as_ptr();
    }
    let mut sums = [[_mm512_setzero_ps(); dots::ROWS]; R];
    // SAFETY: the slices were cut to `blocks` tiles; a block of 16 rows by 32 columns of BF16 is a tile.
    unsafe { dots::add(x, weights, blocks, &mut sums) }
    for r in 0..R {
        for t in 0..dots::ROWS.min(operands.tokens - token) {
            store(operands, token + t, group + r, sums[r][t]);
        }
    }
}
