//! AMX kernels. With BF16: rows are decoded to BF16 tiles, a panel at a time, and every token is multiplied by the panel.
//! With integers ([`integers`], [`split`]): the arithmetic of the byte dot products, only faster.
//!
//! One tile of weights is 32 columns (as 16 pairs) of one group of rows, one tile of activations 16 tokens by 32
//! columns. Four tiles of sums (32 tokens by 32 rows) are in flight, so each tile loaded is used twice.

mod integers;
mod split;

pub(super) use integers::{integer, integer_scratch_bytes};
pub(super) use split::split;

use super::Operands;
use super::activation::{TILE_BYTES, TILE_TOKENS};
use super::avx512::unpack::{half_scales, quad_codes, super_scales};
use super::integers::{INTEGERS, with_format};
use super::layout::{GROUP, Geometry, Layout, Pieces};
use crate::kernels::tiles::{Block, Tiles};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of a panel, which stays in the second-level cache together with some activations.
const PANEL_BYTES: usize = 512 << 10;
/// Bytes of four tiles of sums.
const SUM_BYTES: usize = 4 * TILE_BYTES;
/// Tiles across the columns that are multiplied for the whole panel before the next ones, so that the activations of
/// 32 tokens (here 16 KiB) stay in the first-level cache while the panel passes by.
const STEPS: usize = 8;
/// Matrices of no more tiles across the columns are multiplied at once: their activations nearly fit.
const FEW_STEPS: usize = 20;

/// Bytes of the tiles of one group.
fn group_bytes(geometry: &Geometry) -> usize {
    geometry.blocks() * TILE_BYTES
}

/// Groups of rows decoded together.
fn panel_groups(geometry: &Geometry) -> usize {
    (PANEL_BYTES / group_bytes(geometry)).clamp(2, 32) & !1
}

/// Bytes of scratch memory that [`multiply`] needs.
pub(super) fn scratch_bytes(geometry: &Geometry) -> usize {
    let columns = geometry.padded_columns();
    let groups = panel_groups(geometry);
    let panel = groups * group_bytes(geometry);
    // Formats without a packed layout are decoded through f32.
    let decoded = if geometry.layout == Layout::Rows { columns * (GROUP + 1) * 4 } else { 0 };
    groups / 2 * SUM_BYTES + panel + decoded + 64
}

/// Every layout but F16 and F32 by [`super::ActivationFormat::Bf16`] activations.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn multiply(operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    let geometry = &operands.geometry;
    let group_bytes = group_bytes(geometry);
    let skip = scratch.as_ptr().align_offset(64);
    let (sums, scratch) = scratch[skip..].split_at_mut(panel_groups(geometry) / 2 * SUM_BYTES);
    let (panel, decoded) = scratch.split_at_mut(panel_groups(geometry) * group_bytes);
    let _tiles = Tiles::configure([(16, 64); 8]);
    let mut first = groups.start;
    while first < groups.end {
        let count = panel_groups(geometry).min(groups.end - first);
        let weights = if geometry.layout == Layout::Brain {
            // Packed BF16 has the layout of tiles already.
            &operands.matrix[first * group_bytes..][..count * group_bytes]
        } else {
            for (index, tiles) in panel.chunks_exact_mut(group_bytes).take(count).enumerate() {
                decode(operands, first + index, tiles, decoded);
            }
            &panel[..count * group_bytes]
        };
        for token in (0..operands.tokens).step_by(2 * TILE_TOKENS) {
            multiply_panel(operands, first, token, weights, sums);
        }
        first += count;
    }
}

/// The groups from `first` on, whose tiles are `weights`, by 32 tokens.
fn multiply_panel(operands: &Operands<'_>, first: usize, token: usize, weights: &[u8], sums: &mut [u8]) {
    let geometry = &operands.geometry;
    let group_bytes = group_bytes(geometry);
    let count = weights.len() / group_bytes;
    let x = &operands.activation[token * operands.token_bytes..][..2 * TILE_TOKENS * operands.token_bytes];
    let steps = group_bytes / TILE_BYTES;
    let span = if steps <= FEW_STEPS { FEW_STEPS } else { STEPS };
    for step in (0..steps).step_by(span) {
        let last = step + span >= steps;
        for index in (0..count).step_by(2) {
            let (pair, group) = ((count - index).min(2), first + index);
            let whole = token + 2 * TILE_TOKENS <= operands.tokens
                && pair == 2
                && (group + 2) * GROUP <= geometry.rows;
            let sums = sums[index / 2 * SUM_BYTES..][..SUM_BYTES].as_mut_ptr().cast::<f32>();
            // SAFETY: the slices hold the tiles of all columns, the caller has configured the tile registers, and
            // results of a whole block are the caller's to write; others go through the scratch memory.
            unsafe {
                let tiles = Block {
                    x: x.as_ptr().add(step * TILE_BYTES),
                    next_x: TILE_TOKENS * operands.token_bytes,
                    weights: weights.as_ptr().add(index * group_bytes + step * TILE_BYTES),
                    next_weights: group_bytes,
                    steps: (steps - step).min(span),
                    from: if step == 0 { std::ptr::null() } else { sums },
                };
                let (out, stride) = if last && whole {
                    (operands.result(token, group * GROUP), operands.out.stride)
                } else {
                    (sums, 2 * GROUP)
                };
                if pair == 2 {
                    tiles.multiply_two(out, stride)
                } else {
                    tiles.multiply_one(out, stride)
                }
                if last && !whole {
                    copy_edge(operands, token, group, pair, sums);
                }
            }
        }
    }
}

/// Copies those results of a block of 32 tokens by `pair` groups that exist.
///
/// # Safety
/// `sums` holds 32 tokens by 32 rows, and the caller of `multiply` vouches for the results.
unsafe fn copy_edge(operands: &Operands<'_>, token: usize, group: usize, pair: usize, sums: *const f32) {
    let rows = (operands.geometry.rows - group * GROUP).min(pair * GROUP);
    for index in 0..(operands.tokens - token).min(2 * TILE_TOKENS) {
        // SAFETY: forwarded from the caller.
        unsafe {
            let from = sums.add(index * 2 * GROUP);
            std::ptr::copy_nonoverlapping(from, operands.result(token + index, group * GROUP), rows);
        }
    }
}

/// Decodes one group to BF16 tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn decode(operands: &Operands<'_>, group: usize, tiles: &mut [u8], scratch: &mut [u8]) {
    match operands.geometry.layout {
        Layout::Integer(format) => {
            let geometry = &operands.geometry;
            let group = operands.group(group);
            with_format!(format, decode_integer(geometry, group, tiles));
        }
        Layout::Single | Layout::Half | Layout::Brain => unreachable!("multiplied without decoding"),
        Layout::Rows => {
            // SAFETY: any bytes are valid f32s; the middle part is aligned.
            let scratch = unsafe { scratch.align_to_mut::<f32>().1 };
            let (decoded, line) = scratch.split_at_mut(operands.geometry.padded_columns() * GROUP);
            let rows = operands.geometry.rows - group * GROUP;
            super::pack::decode_group(&operands.geometry, operands.group(group), rows, line, decoded);
            decode_single(bytemuck::cast_slice(decoded), tiles);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn decode_integer<const F: usize>(geometry: &Geometry, group: &[u8], tiles: &mut [u8]) {
    let integer = const { INTEGERS[F] };
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = integer.scales.blocks();
    assert!(tiles.len() >= geometry.blocks() * TILE_BYTES);
    for record in 0..geometry.blocks() / per_record {
        // SAFETY: a group has one record for every `per_record` blocks.
        let scales = unsafe { group.as_ptr().add(pieces.record(record * per_record)) };
        // SAFETY: as above.
        let first = unsafe { super_scales::<F>(scales) };
        for part in 0..per_record {
            let block = record * per_record + part;
            // SAFETY: a group has `blocks()` blocks, and a tile is written for each.
            unsafe {
                let halves = half_scales::<F>(scales, first, part);
                let plane = group.as_ptr().add(pieces.codes(block));
                let tile = tiles.as_mut_ptr().add(block * TILE_BYTES);
                for quad in 0..8 {
                    let (scale, base) = halves[quad / 4];
                    let codes = quad_codes::<F>(plane, quad);
                    let byte = _mm512_set1_epi32(255);
                    let columns = [
                        _mm512_and_si512(codes, byte),
                        _mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte),
                        _mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte),
                        _mm512_srli_epi32::<24>(codes),
                    ];
                    for pair in 0..2 {
                        let even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(columns[pair * 2]), scale, base);
                        let odd = _mm512_fmadd_ps(_mm512_cvtepi32_ps(columns[pair * 2 + 1]), scale, base);
                        _mm512_storeu_si512(tile.add((quad * 2 + pair) * 64).cast(), bf16_pair(even, odd));
                    }
                }
            }
        }
    }
}

/// Two columns as pairs of BF16, rounded to the nearest.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn bf16_pair(even: __m512, odd: __m512) -> __m512i {
    let half = _mm512_set1_epi32(0x8000);
    let even = _mm512_add_epi32(_mm512_castps_si512(even), half);
    let odd = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn decode_single(group: &[u8], tiles: &mut [u8]) {
    for (pair, tile) in group.chunks_exact(128).zip(tiles.chunks_exact_mut(64)) {
        // SAFETY: the slices have 128 and 64 bytes.
        unsafe {
            let even = _mm512_loadu_ps(pair.as_ptr().cast());
            let odd = _mm512_loadu_ps(pair.as_ptr().add(64).cast());
            _mm512_storeu_si512(tile.as_mut_ptr().cast(), bf16_pair(even, odd));
        }
    }
}
