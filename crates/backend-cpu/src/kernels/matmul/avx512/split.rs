//! Weights of 8 bits by [`ActivationFormat::Q8Split`](super::super::ActivationFormat::Q8Split) activations.

use super::super::activation::{SPLIT_BITS, SPLIT_BYTES};
use super::super::integers::{EIGHT_BITS, INTEGERS};
use super::super::layout::{BLOCK, Pieces};
use super::super::{Abreast, Ahead, Operands};
use super::store;
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of the codes of one block.
const CODE_BYTES: usize = INTEGERS[EIGHT_BITS].code_bytes();
const PIECES: Pieces = Pieces::of(&INTEGERS[EIGHT_BITS]);

/// The groups of rows by all tokens (AVX-512 VNNI).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn split(operands: &Operands<'_>, groups: Range<usize>) {
    let steps = (operands.geometry.blocks(), CODE_BYTES);
    for groups in Abreast::cut(groups, super::super::streams(operands.tokens)) {
        // Once for each group. Several groups at once take all tokens at once.
        let ahead = operands.ahead(groups, steps);
        let mut token = 0;
        while token < operands.tokens {
            token += match (groups.count, operands.tokens - token) {
                (4, _) => blocks::<4, 1, true>(operands, groups, token, ahead),
                (2, 4..) => blocks::<2, 4, true>(operands, groups, token, ahead),
                (2, 3) => blocks::<2, 3, true>(operands, groups, token, ahead),
                (2, 2) => blocks::<2, 2, true>(operands, groups, token, ahead),
                (2, _) => blocks::<2, 1, true>(operands, groups, token, ahead),
                _ if token == 0 => one_group::<true>(operands, groups, token, ahead),
                _ => one_group::<false>(operands, groups, token, ahead),
            };
        }
    }
}

/// One group by as many tokens from `token` on as fit the registers; with `ASK`, asks for what is read later. Returns
/// their number.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn one_group<const ASK: bool>(operands: &Operands<'_>, groups: Abreast, token: usize, ahead: Ahead) -> usize {
    match operands.tokens - token {
        8.. => blocks::<1, 8, ASK>(operands, groups, token, ahead),
        4.. => blocks::<1, 4, ASK>(operands, groups, token, ahead),
        2..4 => blocks::<1, 2, ASK>(operands, groups, token, ahead),
        _ => blocks::<1, 1, ASK>(operands, groups, token, ahead),
    }
}

/// The `R` groups by the tokens `token..token + T`; with `ASK`, asks for what is read later. Returns `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn blocks<const R: usize, const T: usize, const ASK: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Ahead,
) -> usize {
    let geometry = operands.geometry;
    let mut packed = [std::ptr::null(); R];
    for r in 0..R {
        packed[r] = operands.group(groups.group(r)).as_ptr();
    }
    let mut x: [&[u8]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t);
    }
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for block in 0..geometry.blocks() {
        for r in 0..R {
            let later = if ASK { Some((ahead, ahead.codes(PIECES, packed[r], block))) } else { None };
            // SAFETY: a group has `blocks()` blocks with a record each, an activation row as many of `SPLIT_BYTES`.
            unsafe {
                let scale = scales(packed[r].add(PIECES.record(block)));
                let plane = packed[r].add(PIECES.codes(block));
                let mut places = [std::ptr::null(); T];
                for t in 0..T {
                    places[t] = x[t].as_ptr().add(block * SPLIT_BYTES);
                }
                add_block(plane, later, scale, places, &mut sums[r]);
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
/// `plane` points to a block of codes, each `x` to a block of the activation.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn add_block<const T: usize>(
    plane: *const u8,
    later: Option<(Ahead, *const u8)>,
    scale: __m512,
    x: [*const u8; T],
    sums: &mut [__m512; T],
) {
    // SAFETY: offsets up to `SPLIT_BYTES` lie in the activation block.
    let word =
        |t: usize, at: usize| unsafe { _mm512_set1_epi32(x[t].add(at).cast::<i32>().read_unaligned()) };
    let zero = _mm512_setzero_si512();
    // Of one token alone, two sums each: it would wait for its own sum at every step.
    let (mut first, mut second) = ([[zero; T]; 2], [[zero; T]; 2]);
    for t in 0..T {
        // What the offset of the codes is too much.
        second[0][t] = word(t, 68);
    }
    for quad in 0..8 {
        if let Some((ahead, later)) = later {
            ahead.line(later.wrapping_add(quad * 64));
        }
        // SAFETY: forwarded from the caller.
        let codes = unsafe { _mm512_loadu_si512(plane.add(quad * 64).cast()) };
        let side = if T == 1 { quad / 4 } else { 0 };
        for t in 0..T {
            first[side][t] = _mm512_dpbusd_epi32(first[side][t], codes, word(t, quad * 4));
            second[side][t] = _mm512_dpbusd_epi32(second[side][t], codes, word(t, BLOCK + quad * 4));
        }
    }
    for t in 0..T {
        if T == 1 {
            first[0][t] = _mm512_add_epi32(first[0][t], first[1][t]);
            second[0][t] = _mm512_add_epi32(second[0][t], second[1][t]);
        }
        // SAFETY: forwarded from the caller.
        sums[t] = unsafe { combine_split(first[0][t], second[0][t], scale, x[t], sums[t]) };
    }
}

/// The scales of a block.
///
/// # Safety
/// `record` points to 16 F16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(in super::super) unsafe fn scales(record: *const u8) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(record.cast())) }
}

/// Adds the integer sums of one block by the first and by the second bytes to the sum of 16 rows.
///
/// # Safety
/// `x` points to a block of the activation.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(in super::super) unsafe fn combine_split(
    first: __m512i,
    second: __m512i,
    scale: __m512,
    x: *const u8,
    sum: __m512,
) -> __m512 {
    let dots = _mm512_add_epi32(second, _mm512_slli_epi32::<SPLIT_BITS>(first));
    // SAFETY: the scale lies in the activation block.
    let factor = unsafe { _mm512_set1_ps(x.add(64).cast::<f32>().read_unaligned()) };
    _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), factor), scale, sum)
}
