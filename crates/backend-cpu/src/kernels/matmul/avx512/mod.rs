//! AVX-512 kernels: a lane is a row, activations are broadcast.

mod activation;
mod brain;
mod float;
mod split;
pub(super) mod unpack;
mod words;

pub(super) use activation::{quantize, round_to_bf16, split as split_bytes};
pub(super) use brain::brain;
pub(super) use float::float;
pub(super) use split::{combine_split, scales, split};
pub(super) use words::{prepare_words, words, words_scratch_bytes};

use super::activation::Q8_BYTES;
use super::integers::{INTEGERS, Scales, with_format};
use super::layout::{GROUP, Layout, Pieces};
use super::{Abreast, Ahead, Operands};
use std::arch::x86_64::*;
use std::ops::Range;
use unpack::{block_scales, quad_codes, super_scales};

/// Most tokens for which weights are asked for ahead; more take long enough for the processor's own prefetching.
const FEW: usize = 15;

/// Bytes of an activation that are multiplied by all groups of a call before the next ones are: they stay in the second-level cache.
const TILE_BYTES: usize = 256 << 10;

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
    // What memory is asked for is asked for once, so few tokens are one tile.
    let tile = if few { FEW } else { (TILE_BYTES / operands.token_bytes).next_multiple_of(6).max(18) };
    for first in (0..operands.tokens).step_by(tile) {
        let end = operands.tokens.min(first + tile);
        for groups in Abreast::cut(groups.clone(), super::streams(operands.geometry.layout, operands.tokens))
        {
            // Once for each group.
            let ahead = operands.ahead(groups, steps);
            let mut token = first;
            while token < end {
                let (ask, left) = (few && token == 0, end - token);
                token += match groups.count {
                    4 => integer_block::<F, 4, 1, true>(operands, groups, token, ahead),
                    2 if ask => some_tokens::<F, 2, true>(operands, groups, token, left, ahead),
                    2 => some_tokens::<F, 2, false>(operands, groups, token, left, ahead),
                    _ if ask => some_tokens::<F, 1, true>(operands, groups, token, left, ahead),
                    _ => some_tokens::<F, 1, false>(operands, groups, token, left, ahead),
                };
            }
        }
    }
}

/// `R` groups by as many of `left` tokens from `token` on as fit the registers; with `ASK`, asks for what is read later. Returns
/// their number.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn some_tokens<const F: usize, const R: usize, const ASK: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    left: usize,
    ahead: Ahead,
) -> usize {
    match left {
        // Of nibbles, the sums of both halves are kept.
        6.. if const { R == 1 || !INTEGERS[F].scales.nibbles() } => {
            integer_block::<F, R, 6, ASK>(operands, groups, token, ahead)
        }
        4.. => integer_block::<F, R, 4, ASK>(operands, groups, token, ahead),
        3 => integer_block::<F, R, 3, ASK>(operands, groups, token, ahead),
        2 => integer_block::<F, R, 2, ASK>(operands, groups, token, ahead),
        _ => integer_block::<F, R, 1, ASK>(operands, groups, token, ahead),
    }
}

/// The `R` groups by the tokens `token..token + T`; with `ASK`, asks for what is read later, line by line between its own reads.
/// Returns `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn integer_block<const F: usize, const R: usize, const T: usize, const ASK: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Ahead,
) -> usize {
    let integer = const { INTEGERS[F] };
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let (halves, nibbles) = const { (INTEGERS[F].scales.halves(), INTEGERS[F].scales.nibbles()) };
    // Values less their offset fit signed bytes in every format, so that all offsets can be made 128, whose product with the
    // sums of an activation it has ready. Of few tokens one product is less than an addition for each quad.
    let ready = const { INTEGERS[F].offset != 0 && T >= 4 };
    let more = _mm512_set1_epi8(const { 128 - INTEGERS[F].offset } as i8);
    let zero = _mm512_setzero_si512();
    let mut packed = [std::ptr::null(); R];
    for r in 0..R {
        packed[r] = operands.group(groups.group(r)).as_ptr();
    }
    let mut x = [std::ptr::null(); T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t).as_ptr();
    }
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for record in 0..operands.geometry.blocks() / per_record {
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
            // SAFETY: an activation row has `blocks()` blocks, of which offsets up to `Q8_BYTES` are read.
            let word = |t: usize, at: usize| unsafe {
                _mm512_set1_epi32(x[t].add(block * Q8_BYTES + at).cast::<i32>().read_unaligned())
            };
            let (mut planes, mut later) = ([std::ptr::null(); R], [std::ptr::null(); R]);
            for r in 0..R {
                // SAFETY: a group has `blocks()` blocks.
                planes[r] = unsafe { packed[r].add(pieces.codes(block)) };
                if ASK {
                    later[r] = ahead.codes(pieces, packed[r], block);
                }
            }
            let mut dots = [[zero; T]; R];
            let mut first_half = dots;
            each!(quad in 0 1 2 3 4 5 6 7 => {
                // One half after the other, so that only its own sums need registers.
                if quad == 4 && nibbles {
                    first_half = dots;
                } else if quad == 4 && halves {
                    for r in 0..R {
                        // SAFETY: a record has the scales of its blocks, and the activation as many blocks.
                        unsafe {
                            let scales = block_scales::<F>(record_places[r], firsts[r], part);
                            for t in 0..T {
                                let x = x[t].add(block * Q8_BYTES);
                                sums[r][t] = add_part(dots[r][t], scales[0], x, sums[r][t]);
                            }
                        }
                    }
                }
                if quad == 0 || quad == 4 && halves {
                    for t in 0..T {
                        let first = if ready && halves {
                            word(t, 48 + quad / 4 * 4)
                        } else if ready {
                            word(t, 44)
                        } else if integer.offset != 0 {
                            // The two 16-bit sums of the activation times minus the offset.
                            let offset = -integer.offset as i16 as u16 as i32;
                            let both = if halves { offset << (quad / 4 * 16) } else { offset | offset << 16 };
                            _mm512_dpwssd_epi32(zero, word(t, 40), _mm512_set1_epi32(both))
                        } else {
                            zero
                        };
                        for r in 0..R {
                            dots[r][t] = first;
                        }
                    }
                }
                let mut codes = [zero; R];
                for r in 0..R {
                    if ASK && quad * 64 < integer.code_bytes() {
                        ahead.line(later[r].wrapping_add(quad * 64));
                    }
                    // SAFETY: a block has eight quads.
                    codes[r] = unsafe { quad_codes::<F>(planes[r], quad) };
                    if ready && integer.offset != 128 {
                        codes[r] = _mm512_add_epi8(codes[r], more);
                    }
                }
                for t in 0..T {
                    let word = word(t, quad * 4);
                    for r in 0..R {
                        dots[r][t] = _mm512_dpbusd_epi32(dots[r][t], codes[r], word);
                    }
                }
            });
            for r in 0..R {
                // SAFETY: as above.
                unsafe {
                    let scales = block_scales::<F>(record_places[r], firsts[r], part);
                    for t in 0..T {
                        let (x, sum) = (x[t].add(block * Q8_BYTES), sums[r][t]);
                        sums[r][t] = if nibbles {
                            add_nibbles([first_half[r][t], dots[r][t]], scales, x, sum)
                        } else if halves {
                            add_part(dots[r][t], scales[1], x, sum)
                        } else {
                            add_whole::<F>(dots[r][t], scales, x, sum)
                        };
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
    // SAFETY: forwarded from the caller.
    unsafe {
        if const { INTEGERS[F].scales.nibbles() } {
            add_nibbles(dots, scales, x, sum)
        } else if const { INTEGERS[F].scales.halves() } {
            add_part(dots[1], scales[1], x, add_part(dots[0], scales[0], x, sum))
        } else {
            add_whole::<F>(dots[0], scales, x, sum)
        }
    }
}

/// Adds integer sums of columns with one scale to the sum of 16 rows.
///
/// # Safety
/// `x` points to a block of a Q8 activation.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn add_part(dots: __m512i, scale: __m512, x: *const u8, sum: __m512) -> __m512 {
    // SAFETY: the scale lies in the activation block.
    let factor = unsafe { _mm512_set1_ps(x.add(32).cast::<f32>().read_unaligned()) };
    _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), factor), scale, sum)
}

/// The same with what the minima add, for formats that have them.
///
/// # Safety
/// As for [`add_part`].
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn add_whole<const F: usize>(dots: __m512i, scales: [__m512; 3], x: *const u8, sum: __m512) -> __m512 {
    // SAFETY: forwarded from the caller; the sum of the numbers lies in the activation block.
    unsafe {
        let sum = add_part(dots, scales[0], x, sum);
        if const { matches!(INTEGERS[F].scales, Scales::Affine | Scales::SuperAffine) } {
            _mm512_fmadd_ps(scales[1], _mm512_set1_ps(x.add(36).cast::<f32>().read_unaligned()), sum)
        } else {
            sum
        }
    }
}

/// The same for both halves of a block of [`Scales::SuperNibbles`]. Each half's sum fits 16 bits: 16 products of 3 by 127.
///
/// # Safety
/// As for [`add_part`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
unsafe fn add_nibbles(dots: [__m512i; 2], scales: [__m512; 3], x: *const u8, sum: __m512) -> __m512 {
    let (factors, minima) = unpack::nibble_pairs(scales[2]);
    let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, dots[0], _mm512_slli_epi32::<16>(dots[1]));
    let zero = _mm512_setzero_si512();
    let product = _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(zero, factors, both));
    // SAFETY: scale and sums lie in the activation block.
    let (factor, sums) = unsafe {
        (
            _mm512_set1_ps(x.add(32).cast::<f32>().read_unaligned()),
            _mm512_set1_epi32(x.add(40).cast::<i32>().read_unaligned()),
        )
    };
    let minimum = _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(zero, minima, sums));
    let value = _mm512_fmadd_ps(product, scales[0], _mm512_mul_ps(minimum, scales[1]));
    _mm512_fmadd_ps(value, factor, sum)
}

/// Writes the results of one group for one token.
#[target_feature(enable = "avx512f")]
pub(super) fn store(operands: &Operands<'_>, token: usize, group: usize, values: __m512) {
    let rows = operands.geometry.rows - group * GROUP;
    let mask = if rows >= GROUP { u16::MAX } else { (1 << rows) - 1 };
    // SAFETY: the caller of `multiply` vouches for the results of its rows; the mask keeps to them.
    unsafe { _mm512_mask_storeu_ps(operands.result(token, group * GROUP), mask, values) }
}
