//! BF16 matrices by [`ActivationFormat::Bf16`](super::super::ActivationFormat::Bf16) activations (AVX-512 BF16).

use super::super::Operands;
use super::super::activation::{TILE_BYTES, TILE_TOKENS};
use super::super::layout::BLOCK;
use super::store;
use std::arch::x86_64::*;
use std::ops::Range;

/// Tokens whose sums are kept in registers: half a tile of the activation, so that all lie at fixed places from the first.
const TOKENS: usize = TILE_TOKENS / 2;
/// Bytes of a token in a tile.
const ROW_BYTES: usize = BLOCK * 2;

/// The groups of rows by all tokens. Sums of two groups are kept at once, so that each number of the activation is read for
/// 32 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) fn brain(operands: &Operands<'_>, groups: Range<usize>) {
    for group in groups.clone().step_by(2) {
        for token in (0..operands.tokens).step_by(TOKENS) {
            if group + 1 < groups.end {
                blocks::<2>(operands, group, token)
            } else {
                blocks::<1>(operands, group, token)
            }
        }
    }
}

/// The groups `group..group + R` by the tokens from `token`, which is a multiple of [`TOKENS`], on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn blocks<const R: usize>(operands: &Operands<'_>, group: usize, token: usize) {
    let blocks = operands.geometry.blocks();
    // Tiles are whole also where the last has fewer tokens.
    let tile = token / TILE_TOKENS * TILE_TOKENS * operands.token_bytes;
    let x = operands.activation[tile..][..blocks * TILE_BYTES].as_ptr();
    let x = x.wrapping_add(token % TILE_TOKENS * ROW_BYTES);
    let mut weights = [std::ptr::null(); R];
    for r in 0..R {
        weights[r] = operands.group(group + r)[..blocks * TILE_BYTES].as_ptr();
    }
    let mut sums = [[_mm512_setzero_ps(); TOKENS]; R];
    for block in 0..blocks {
        for pair in 0..BLOCK / 2 {
            let mut columns = [_mm512_setzero_si512(); R];
            for r in 0..R {
                // SAFETY: a block of 16 rows by 32 columns of BF16 is as large as a tile, with 64 bytes a pair of columns.
                columns[r] =
                    unsafe { _mm512_loadu_si512(weights[r].add(block * TILE_BYTES + pair * 64).cast()) };
            }
            for t in 0..TOKENS {
                let place = x.wrapping_add(block * TILE_BYTES + t * ROW_BYTES + pair * 4);
                // SAFETY: the tile has 16 rows of `ROW_BYTES`, of which `x` points to the first or the ninth.
                let x = unsafe { _mm512_set1_epi32(place.cast::<i32>().read_unaligned()) };
                for r in 0..R {
                    sums[r][t] = dot(sums[r][t], columns[r], x);
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..TOKENS.min(operands.tokens - token) {
            store(operands, token + t, group + r, sums[r][t]);
        }
    }
}

/// Adds the products of two BF16 to each lane.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn dot(sum: __m512, left: __m512i, right: __m512i) -> __m512 {
    // SAFETY: both types are 64 bytes of which any value is valid.
    let [left, right] = unsafe { std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([left, right]) };
    _mm512_dpbf16_ps(sum, left, right)
}
