//! Integer formats by [`ActivationFormat::Q8`](super::super::ActivationFormat::Q8) activations on the matrix unit.
//!
//! Every block of 32 columns (or half block, where halves have scales of their own) is one product of tiles, whose
//! sums are exact; what is done with them is what the byte dot products do, in the same order. So results equal those
//! of [`avx512::integer`](super::super::avx512::integer) to the bit, and few and many tokens may share a step.

use super::super::Operands;
use super::super::activation::Q8_BYTES;
use super::super::avx512::unpack::{block_scales, quad_codes, super_scales};
use super::super::avx512::{combine, store};
use super::super::integers::{INTEGERS, with_format};
use super::super::layout::{BLOCK, GROUP, Geometry, Layout, Pieces};
use crate::kernels::tiles::Tiles;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// Tokens of one tile; a call has at least as many.
pub(in super::super) const TOKENS: usize = 16;
/// Bytes of a block of 16 rows by 32 columns as signed bytes.
pub(super) const BLOCK_BYTES: usize = GROUP * BLOCK;
/// Bytes of a panel of decoded groups, which stays in the second-level cache together with some activations.
const PANEL_BYTES: usize = 256 << 10;
/// Numbers of a tile of sums.
const SUMS: usize = TOKENS * GROUP;

/// Two blocks' (or half blocks') sums, twice: one pair is computed while the other is used.
#[repr(C, align(64))]
struct Products([[i32; 2 * SUMS]; 2]);

/// Groups of rows decoded together.
pub(super) fn panel_groups(geometry: &Geometry) -> usize {
    (PANEL_BYTES / (geometry.blocks() * BLOCK_BYTES)).clamp(1, 32)
}

/// Bytes of scratch memory that [`integer`] needs.
pub(in super::super) fn integer_scratch_bytes(geometry: &Geometry) -> usize {
    panel_groups(geometry) * geometry.blocks() * BLOCK_BYTES + 64
}

/// Integer formats by at least [`TOKENS`] tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn integer(operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups(operands, groups, scratch));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn integer_groups<const F: usize>(operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    let geometry = &operands.geometry;
    assert!(operands.tokens >= TOKENS, "{} tokens", operands.tokens);
    // Bytes of columns in one product.
    let depth = const { if INTEGERS[F].scales.halves() { BLOCK / 2 } else { BLOCK } };
    let (sums, x, weights) = ((16, 64), (16, depth as u16), (depth as u8 / 4, 64));
    let group_bytes = geometry.blocks() * BLOCK_BYTES;
    let skip = scratch.as_ptr().align_offset(64);
    let panel = &mut scratch[skip..][..panel_groups(geometry) * group_bytes];
    let _tiles = Tiles::configure([sums, sums, sums, sums, x, x, weights, weights]);
    let mut first = groups.start;
    while first < groups.end {
        let count = panel_groups(geometry).min(groups.end - first);
        for (index, codes) in panel.chunks_exact_mut(group_bytes).take(count).enumerate() {
            decode::<F>(operands, first + index, codes);
        }
        for token in (0..operands.tokens).step_by(TOKENS) {
            // The last tile ends with the last token; tokens it shares with the one before get the same results.
            let token = token.min(operands.tokens - TOKENS);
            for (index, codes) in panel.chunks_exact(group_bytes).take(count).enumerate() {
                multiply::<F>(operands, first + index, token, codes);
            }
        }
        first += count;
    }
}

/// Decodes one group to signed bytes: for each four columns, four bytes of each of 16 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn decode<const F: usize>(operands: &Operands<'_>, group: usize, codes: &mut [u8]) {
    let integer = const { INTEGERS[F] };
    // Values less their offset fit signed bytes in every format.
    let offset = _mm512_set1_epi8(integer.offset as i8);
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let packed = operands.group(group);
    for (block, codes) in codes.chunks_exact_mut(BLOCK_BYTES).enumerate().take(operands.geometry.blocks()) {
        for quad in 0..8 {
            // SAFETY: a group has the codes of `blocks()` blocks, the target has eight vectors.
            unsafe {
                let plane = packed.as_ptr().add(pieces.codes(block));
                let values = _mm512_sub_epi8(quad_codes::<F>(plane, quad), offset);
                _mm512_store_si512(codes.as_mut_ptr().add(quad * 64).cast(), values);
            }
        }
    }
}

/// One group by 16 tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply<const F: usize>(operands: &Operands<'_>, group: usize, token: usize, codes: &[u8]) {
    let geometry = operands.geometry;
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let halves = const { INTEGERS[F].scales.halves() };
    let packed = operands.group(group);
    let stride = operands.token_bytes;
    let x = operands.activation[token * stride..][..TOKENS * stride].as_ptr();
    let blocks = geometry.blocks();
    let mut products = Products([[0; 2 * SUMS]; 2]);
    // Where the sums of a block are computed and found: a pair of blocks, or of half blocks, at a time.
    let compute = |block: usize, products: &mut Products| {
        // SAFETY: 16 tokens have `blocks` blocks each, the group as many; the tiles are configured for them.
        unsafe {
            let (x, codes) = (x.add(block * Q8_BYTES), codes.as_ptr().add(block * BLOCK_BYTES));
            if halves {
                let target = products.0[block % 2].as_mut_ptr();
                dot_two([x, x.add(BLOCK / 2)], stride, [codes, codes.add(BLOCK_BYTES / 2)], target);
            } else if block.is_multiple_of(2) {
                // The last of an odd number is computed twice.
                let next = usize::from(block + 1 < blocks);
                let target = products.0[block / 2 % 2].as_mut_ptr();
                let codes = [codes, codes.add(next * BLOCK_BYTES)];
                dot_two([x, x.add(next * Q8_BYTES)], stride, codes, target);
            }
        }
    };
    let ahead = if halves { 1 } else { 2 };
    compute(0, &mut products);
    let mut sums = [_mm512_setzero_ps(); TOKENS];
    for record in 0..blocks / per_record {
        // SAFETY: a group has one record for every `per_record` blocks.
        let record_scales = unsafe { packed.as_ptr().add(pieces.record(record * per_record)) };
        // SAFETY: as above.
        let first = unsafe { super_scales::<F>(record_scales) };
        for part in 0..per_record {
            let block = record * per_record + part;
            if block + ahead < blocks {
                compute(block + ahead, &mut products);
            }
            // SAFETY: as above; the products of this block were computed.
            unsafe {
                let scales = block_scales::<F>(record_scales, first, part);
                let dots = if halves {
                    products.0[block % 2].as_ptr()
                } else {
                    products.0[block / 2 % 2].as_ptr().add(block % 2 * SUMS)
                };
                for t in 0..TOKENS {
                    let left = _mm512_load_si512(dots.add(t * GROUP).cast());
                    let right = if halves {
                        _mm512_load_si512(dots.add(SUMS + t * GROUP).cast())
                    } else {
                        _mm512_setzero_si512()
                    };
                    sums[t] =
                        combine::<F>([left, right], scales, x.add(t * stride + block * Q8_BYTES), sums[t]);
                }
            }
        }
    }
    for t in 0..TOKENS {
        store(operands, token + t, group, sums[t]);
    }
}

/// Two products of 16 tokens, `stride` bytes apart, by 16 rows, to two tiles of sums.
///
/// # Safety
/// Tiles are configured, and all tiles named are valid memory.
#[inline(always)]
unsafe fn dot_two(x: [*const u8; 2], stride: usize, weights: [*const u8; 2], sums: *mut i32) {
    // SAFETY: forwarded from the caller.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm4, [{x0} + {stride}]",
            "tileloadd tmm6, [{w0} + {line}]",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{x1} + {stride}]",
            "tileloadd tmm7, [{w1} + {line}]",
            "tdpbssd tmm1, tmm5, tmm7",
            "tilestored [{sums} + {line}], tmm0",
            "tilestored [{sums} + {line} + 1024], tmm1",
            x0 = in(reg) x[0],
            x1 = in(reg) x[1],
            w0 = in(reg) weights[0],
            w1 = in(reg) weights[1],
            sums = in(reg) sums,
            line = in(reg) 64_usize,
            stride = in(reg) stride,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags)
        );
    }
}
