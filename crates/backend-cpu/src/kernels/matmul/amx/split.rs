//! Weights of 8 bits by [`ActivationFormat::Q8Split`](super::super::ActivationFormat::Q8Split) activations on the matrix unit:
//! two products of tiles for every block of 32 columns, whose sums are exact. Results equal those of
//! [`avx512::split`](super::super::avx512::split) to the bit.

use super::super::Operands;
use super::super::activation::SPLIT_BYTES;
use super::super::avx512::{combine_split, scales, store};
use super::super::integers::{EIGHT_BITS, INTEGERS};
use super::super::layout::{BLOCK, GROUP, Pieces};
use super::integers::{BLOCK_BYTES, TOKENS, decode, panel_groups};
use crate::kernels::tiles::Tiles;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// Numbers of a tile of sums.
const SUMS: usize = TOKENS * GROUP;

/// The sums of a block by the first and by the second bytes, twice: one pair is computed while the other is used.
#[repr(C, align(64))]
struct Products([[i32; 2 * SUMS]; 2]);

/// The groups of rows by at least [`TOKENS`] tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn split(operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    let geometry = &operands.geometry;
    assert!(operands.tokens >= TOKENS, "{} tokens", operands.tokens);
    let (sums, x, weights) = ((16, 64), (16, BLOCK as u16), (BLOCK as u8 / 4, 64));
    let group_bytes = geometry.blocks() * BLOCK_BYTES;
    let skip = scratch.as_ptr().align_offset(64);
    let panel = &mut scratch[skip..][..panel_groups(geometry) * group_bytes];
    let _tiles = Tiles::configure([sums, sums, sums, sums, x, x, weights, weights]);
    let mut first = groups.start;
    while first < groups.end {
        let count = panel_groups(geometry).min(groups.end - first);
        for (index, codes) in panel.chunks_exact_mut(group_bytes).take(count).enumerate() {
            decode::<EIGHT_BITS>(operands, first + index, codes);
        }
        for token in (0..operands.tokens).step_by(TOKENS) {
            // The last tile ends with the last token; tokens it shares with the one before get the same results.
            let token = token.min(operands.tokens - TOKENS);
            for (index, codes) in panel.chunks_exact(group_bytes).take(count).enumerate() {
                multiply(operands, first + index, token, codes);
            }
        }
        first += count;
    }
}

/// One group by 16 tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply(operands: &Operands<'_>, group: usize, token: usize, codes: &[u8]) {
    let geometry = operands.geometry;
    let pieces = const { Pieces::of(&INTEGERS[EIGHT_BITS]) };
    let packed = operands.group(group);
    let stride = operands.token_bytes;
    let x = operands.activation[token * stride..][..TOKENS * stride].as_ptr();
    let blocks = geometry.blocks();
    let mut products = Products([[0; 2 * SUMS]; 2]);
    let compute = |block: usize, products: &mut Products| {
        // SAFETY: 16 tokens have `blocks` blocks each, the group as many; the tiles are configured for them.
        unsafe {
            let (x, codes) = (x.add(block * SPLIT_BYTES), codes.as_ptr().add(block * BLOCK_BYTES));
            dots(x, stride, codes, products.0[block % 2].as_mut_ptr());
        }
    };
    compute(0, &mut products);
    let mut sums = [_mm512_setzero_ps(); TOKENS];
    for block in 0..blocks {
        if block + 1 < blocks {
            compute(block + 1, &mut products);
        }
        // SAFETY: a group has a record for every block, whose products were computed.
        unsafe {
            let scale = scales(packed.as_ptr().add(pieces.record(block)));
            let dots = products.0[block % 2].as_ptr();
            for t in 0..TOKENS {
                let first = _mm512_load_si512(dots.add(t * GROUP).cast());
                let second = _mm512_load_si512(dots.add(SUMS + t * GROUP).cast());
                let x = x.add(t * stride + block * SPLIT_BYTES);
                sums[t] = combine_split(first, second, scale, x, sums[t]);
            }
        }
    }
    for t in 0..TOKENS {
        store(operands, token + t, group, sums[t]);
    }
}

/// The products of one block with the first and the second bytes of 16 tokens that are `stride` bytes apart, to two tiles of sums.
///
/// # Safety
/// Tiles are configured, and all tiles named are valid memory.
#[inline(always)]
unsafe fn dots(x: *const u8, stride: usize, weights: *const u8, sums: *mut i32) {
    // SAFETY: forwarded from the caller.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm6, [{weights} + {line}]",
            "tileloadd tmm4, [{x} + {stride}]",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{x} + {stride} + 32]",
            "tdpbssd tmm1, tmm5, tmm6",
            "tilestored [{sums} + {line}], tmm0",
            "tilestored [{sums} + {line} + 1024], tmm1",
            x = in(reg) x,
            weights = in(reg) weights,
            sums = in(reg) sums,
            line = in(reg) 64_usize,
            stride = in(reg) stride,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack, preserves_flags)
        );
    }
}
