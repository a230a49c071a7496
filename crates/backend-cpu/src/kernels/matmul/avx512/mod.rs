//! AVX-512 kernels: a lane is a row, activations are broadcast.

mod activation;
mod brain;
mod float;
mod split;
pub(super) mod unpack;

pub(super) use activation::{quantize, round_to_bf16, split as split_bytes};
pub(super) use brain::brain;
pub(super) use float::float;
pub(super) use split::{combine_split, scales, split};

use super::activation::Q8_BYTES;
use super::integers::{INTEGERS, Scales, with_format};
use super::layout::{GROUP, Layout, Pieces};
use super::{Abreast, Ahead, Operands};
use std::arch::x86_64::*;
use std::ops::Range;
use unpack::{block_scales, quad_codes, super_scales};

/// Most tokens for which weights are asked for ahead; more take long enough for the processor's own prefetching.
const FEW: usize = 15;

/// Integer formats by [`super::ActivationFormat::Q8`] activations (AVX-512 VNNI).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn integer(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups(operands, groups));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn integer_groups<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    let few = operands.tokens <= FEW;
    let steps = (operands.geometry.blocks(), const { INTEGERS[F].code_bytes() });
    for groups in Abreast::cut(groups, super::streams(operands.tokens)) {
        // Once for each group. Several groups at once take all tokens at once.
        let ahead = operands.ahead(groups, steps);
        let mut token = 0;
        while token < operands.tokens {
            token += match (groups.count, operands.tokens - token) {
                (4, _) => integer_block::<F, 4, 1, true>(operands, groups, token, ahead),
                (2, 4..) => integer_block::<F, 2, 4, true>(operands, groups, token, ahead),
                (2, 3) => integer_block::<F, 2, 3, true>(operands, groups, token, ahead),
                (2, 2) => integer_block::<F, 2, 2, true>(operands, groups, token, ahead),
                (2, _) => integer_block::<F, 2, 1, true>(operands, groups, token, ahead),
                _ if few && token == 0 => one_group::<F, true>(operands, groups, token, ahead),
                _ => one_group::<F, false>(operands, groups, token, ahead),
            };
        }
    }
}

/// One group by as many tokens from `token` on as fit the registers; with `ASK`, asks for what is read later. Returns
/// their number.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn one_group<const F: usize, const ASK: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Ahead,
) -> usize {
    // Two sums for each token: eight tokens would not fit.
    let halves = const { INTEGERS[F].scales.halves() };
    match operands.tokens - token {
        8.. if !halves => integer_block::<F, 1, 8, ASK>(operands, groups, token, ahead),
        6.. if halves => integer_block::<F, 1, 6, ASK>(operands, groups, token, ahead),
        4.. => integer_block::<F, 1, 4, ASK>(operands, groups, token, ahead),
        2..4 => integer_block::<F, 1, 2, ASK>(operands, groups, token, ahead),
        _ => integer_block::<F, 1, 1, ASK>(operands, groups, token, ahead),
    }
}

/// The `R` groups by the tokens `token..token + T`; with `ASK`, asks for what is read later. Returns `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn integer_block<const F: usize, const R: usize, const T: usize, const ASK: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Ahead,
) -> usize {
    let geometry = operands.geometry;
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let mut packed = [std::ptr::null(); R];
    for r in 0..R {
        packed[r] = operands.group(groups.group(r)).as_ptr();
    }
    let mut x: [&[u8]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t);
    }
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for record in 0..geometry.blocks() / per_record {
        let mut record_places = [std::ptr::null(); R];
        let mut firsts = [[_mm512_setzero_ps(); 2]; R];
        for r in 0..R {
            // SAFETY: a group has one record for every `per_record` blocks.
            unsafe {
                record_places[r] = packed[r].add(pieces.record(record * per_record));
                firsts[r] = super_scales::<F>(record_places[r]);
            }
        }
        for part in 0..per_record {
            let block = record * per_record + part;
            for r in 0..R {
                let later = if ASK { Some((ahead, ahead.codes(pieces, packed[r], block))) } else { None };
                // SAFETY: a group has `blocks()` blocks, an activation row as many of `Q8_BYTES`.
                unsafe {
                    let scales = block_scales::<F>(record_places[r], firsts[r], part);
                    let plane = packed[r].add(pieces.codes(block));
                    let mut places = [std::ptr::null(); T];
                    for t in 0..T {
                        places[t] = x[t].as_ptr().add(block * Q8_BYTES);
                    }
                    add_block::<F, T>(plane, later, scales, places, &mut sums[r]);
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

/// Adds one block of 32 columns to the sums of 16 rows by `T` tokens; asks for the block at `later`, which need not be
/// valid, line by line between its own reads.
///
/// # Safety
/// `plane` points to a block of codes of format `F`, each `x` to a block of a Q8 activation.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn add_block<const F: usize, const T: usize>(
    plane: *const u8,
    later: Option<(Ahead, *const u8)>,
    scales: [__m512; 3],
    x: [*const u8; T],
    sums: &mut [__m512; T],
) {
    let integer = const { INTEGERS[F] };
    let halves = integer.scales.halves();
    // SAFETY: offsets up to `Q8_BYTES` lie in the activation block.
    let word =
        |t: usize, at: usize| unsafe { _mm512_set1_epi32(x[t].add(at).cast::<i32>().read_unaligned()) };
    let mut dots = [[_mm512_setzero_si512(); T]; 2];
    // Values less their offset fit signed bytes in every format, so that all offsets can be made 128, whose product with the
    // sums of an activation it has ready. Of few tokens one product is less than an addition for each quad.
    let ready = const { INTEGERS[F].offset != 0 && T >= 4 };
    let more = _mm512_set1_epi8(const { 128 - INTEGERS[F].offset } as i8);
    for t in 0..T {
        if ready && halves {
            (dots[0][t], dots[1][t]) = (word(t, 48), word(t, 52));
        } else if ready {
            dots[0][t] = word(t, 44);
        } else if integer.offset != 0 {
            // The two 16-bit sums of the activation times minus the offset.
            let offset = -integer.offset as i16 as u16 as i32;
            let zero = _mm512_setzero_si512();
            if halves {
                dots[0][t] = _mm512_dpwssd_epi32(zero, word(t, 40), _mm512_set1_epi32(offset));
                dots[1][t] = _mm512_dpwssd_epi32(zero, word(t, 40), _mm512_set1_epi32(offset << 16));
            } else {
                dots[0][t] = _mm512_dpwssd_epi32(zero, word(t, 40), _mm512_set1_epi32(offset | offset << 16));
            }
        }
    }
    for quad in 0..8 {
        if let Some((ahead, later)) = later
            && quad * 64 < integer.code_bytes()
        {
            ahead.line(later.wrapping_add(quad * 64));
        }
        // SAFETY: forwarded from the caller.
        let mut codes = unsafe { quad_codes::<F>(plane, quad) };
        if ready && integer.offset != 128 {
            codes = _mm512_add_epi8(codes, more);
        }
        // One token alone would wait for its own sum at every step; two sums halve the wait.
        let side = if halves || T == 1 { quad / 4 } else { 0 };
        for t in 0..T {
            dots[side][t] = _mm512_dpbusd_epi32(dots[side][t], codes, word(t, quad * 4));
        }
    }
    for t in 0..T {
        if T == 1 && !halves {
            dots[0][t] = _mm512_add_epi32(dots[0][t], dots[1][t]);
        }
        // SAFETY: forwarded from the caller.
        sums[t] = unsafe { combine::<F>([dots[0][t], dots[1][t]], scales, x[t], sums[t]) };
    }
}

/// Adds the integer sums of one block, apart for its halves or all in the first, to the sum of 16 rows.
///
/// # Safety
/// `x` points to a block of a Q8 activation.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) unsafe fn combine<const F: usize>(
    dots: [__m512i; 2],
    scales: [__m512; 3],
    x: *const u8,
    sum: __m512,
) -> __m512 {
    let integer = const { INTEGERS[F] };
    // SAFETY: offsets up to 44 lie in the activation block.
    let word = |at: usize| unsafe { _mm512_set1_epi32(x.add(at).cast::<i32>().read_unaligned()) };
    // SAFETY: as above.
    let float = |at: usize| unsafe { _mm512_set1_ps(x.add(at).cast::<f32>().read_unaligned()) };
    if integer.scales == Scales::SuperNibbles {
        // Each half's sum fits 16 bits: 16 products of 3 by 127.
        let (factors, minima) = unpack::nibble_pairs(scales[2]);
        let right = _mm512_slli_epi32::<16>(dots[1]);
        let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, dots[0], right);
        let zero = _mm512_setzero_si512();
        let product = _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(zero, factors, both));
        let minimum = _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(zero, minima, word(40)));
        let value = _mm512_fmadd_ps(product, scales[0], _mm512_mul_ps(minimum, scales[1]));
        _mm512_fmadd_ps(value, float(32), sum)
    } else if integer.scales.halves() {
        let first = _mm512_mul_ps(scales[0], _mm512_cvtepi32_ps(dots[0]));
        let product = _mm512_fmadd_ps(scales[1], _mm512_cvtepi32_ps(dots[1]), first);
        _mm512_fmadd_ps(product, float(32), sum)
    } else {
        let product = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[0]), float(32));
        let sum = _mm512_fmadd_ps(product, scales[0], sum);
        if matches!(integer.scales, Scales::Affine | Scales::SuperAffine) {
            _mm512_fmadd_ps(scales[1], float(36), sum)
        } else {
            sum
        }
    }
}

/// Writes the results of one group for one token.
#[target_feature(enable = "avx512f")]
pub(super) fn store(operands: &Operands<'_>, token: usize, group: usize, values: __m512) {
    let rows = operands.geometry.rows - group * GROUP;
    let mask = if rows >= GROUP { u16::MAX } else { (1 << rows) - 1 };
    // SAFETY: the caller of `multiply` vouches for the results of its rows; the mask keeps to them.
    unsafe { _mm512_mask_storeu_ps(operands.result(token, group * GROUP), mask, values) }
}
