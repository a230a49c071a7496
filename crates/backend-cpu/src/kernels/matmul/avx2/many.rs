//! Integer formats by many tokens. The integer sums are exact, and the rest is what few tokens do, in the same order.

use super::super::Operands;
use super::super::activation::Q8_BYTES;
use super::super::integers::INTEGERS;
use super::super::layout::{GROUP, Pieces};
use super::super::many::{self, Blocks};
use super::unpack::{block_scales, quad_codes};
use super::{LANES, combine, dot_vnni, less_offset, signed, together};
use std::arch::x86_64::*;
use std::hint::black_box;
use std::ops::Range;

/// Bytes of a vector.
const BYTES: usize = 32;

/// The groups by all tokens.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<const F: usize, const V: bool>(operands: &Operands<'_>, groups: Range<usize>) {
    // One sum for each token and half of the rows at a time, or two: as many as fit the registers.
    let wide = const { !INTEGERS[F].scales.halves() && (V || matches!(together::<F, V>(), 1 | 8)) };
    many::multiply(
        operands,
        groups,
        (operands.geometry.blocks(), many::BLOCKS),
        &mut Blocks::new(),
        |piece, group, blocks| unpack::<F, V>(operands, group, blocks, piece),
        // SAFETY: forwarded from the caller.
        |piece, token, blocks, sums| unsafe {
            match sums.len() {
                4.. if wide => add_blocks::<F, 4, V>(operands, token, blocks, piece, sums),
                2.. => add_blocks::<F, 2, V>(operands, token, blocks, piece, sums),
                _ => add_blocks::<F, 1, V>(operands, token, blocks, piece, sums),
            }
        },
    );
}

/// Unpacks some blocks of a group. Codes of formats that are [`signed`] become signed bytes.
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack<const F: usize, const V: bool>(
    operands: &Operands<'_>,
    group: usize,
    blocks: Range<usize>,
    piece: &mut Blocks,
) {
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let packed = operands.group(group).as_ptr();
    let top = _mm256_set1_epi8(-128);
    for ((block, codes), scales) in blocks.zip(&mut piece.codes).zip(&mut piece.scales) {
        for side in 0..2 {
            // SAFETY: a group has `blocks()` blocks and one record for every `per_record` of them; each half of the places
            // has as many bytes as a vector.
            unsafe {
                let record = packed.add(pieces.record(block));
                let unpacked = block_scales::<F>(record, block % per_record, side * LANES);
                for (place, vector) in scales.iter_mut().zip(unpacked) {
                    _mm256_storeu_ps(place.as_mut_ptr().add(side * LANES), vector);
                }
                let plane = packed.add(pieces.codes(block) + side * BYTES);
                for (quad, place) in codes.iter_mut().enumerate() {
                    let values = quad_codes::<F>(plane, quad);
                    let values =
                        if const { signed::<F, V>() } { _mm256_xor_si256(values, top) } else { values };
                    _mm256_storeu_si256(place.as_mut_ptr().add(side * BYTES).cast(), values);
                }
            }
        }
    }
}

/// Adds the unpacked blocks to the sums of `T` tokens from `token` on. Returns `T`.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_blocks<const F: usize, const T: usize, const V: bool>(
    operands: &Operands<'_>,
    token: usize,
    blocks: Range<usize>,
    piece: &Blocks,
    sums: &mut [[f32; GROUP]],
) -> usize {
    let mut x = [std::ptr::null(); T];
    let mut total = [[_mm256_setzero_ps(); T]; 2];
    for t in 0..T {
        // Hidden from the compiler, which would compute each from the one before at every read.
        x[t] = black_box(operands.activation_row(token + t)[blocks.start * Q8_BYTES..].as_ptr());
        for side in 0..2 {
            // SAFETY: each is sixteen numbers.
            total[side][t] = unsafe { _mm256_loadu_ps(sums[t].as_ptr().add(side * LANES)) };
        }
    }
    for (block, (codes, scales)) in piece.codes[..blocks.len()].iter().zip(&piece.scales).enumerate() {
        // SAFETY: the activation has as many blocks; scales are sixteen numbers each.
        unsafe {
            let mut places = [std::ptr::null(); T];
            for t in 0..T {
                places[t] = x[t].add(block * Q8_BYTES);
            }
            let dots = dots::<F, T, V>(codes.as_ptr().cast(), places);
            for side in 0..2 {
                let scales =
                    [0, 1, 2].map(|index: usize| _mm256_loadu_ps(scales[index].as_ptr().add(side * LANES)));
                for t in 0..T {
                    let mut dots = [dots[side][0][t], dots[side][1][t]];
                    if const { !signed::<F, V>() } {
                        dots = less_offset::<F>(dots, places[t]);
                    }
                    total[side][t] = combine::<F>(dots, scales, places[t], total[side][t]);
                }
            }
        }
    }
    for t in 0..T {
        for side in 0..2 {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(sums[t].as_mut_ptr().add(side * LANES), total[side][t]) }
        }
    }
    T
}

/// The integer sums of both halves of the rows of a block by `T` tokens: of the halves of the block apart or all in the
/// first, of the codes as they are unpacked.
///
/// # Safety
/// `codes` points to the unpacked codes of the block, each `x` to a block of a Q8 activation; with `V`, the processor has
/// AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn dots<const F: usize, const T: usize, const V: bool>(
    codes: *const __m256i,
    x: [*const u8; T],
) -> [[[__m256i; T]; 2]; 2] {
    let zero = _mm256_setzero_si256();
    let (signed, together) = const { (signed::<F, V>(), together::<F, V>()) };
    let halves = const { INTEGERS[F].scales.halves() };
    let mut dots = [[[zero; T]; 2]; 2];
    let mut narrow = [[zero; T]; 2];
    for quad in 0..8 {
        let half = if halves { quad / 4 } else { 0 };
        // SAFETY: the codes have eight quads.
        let codes =
            unsafe { [_mm256_load_si256(codes.add(quad * 2)), _mm256_load_si256(codes.add(quad * 2 + 1))] };
        for t in 0..T {
            // SAFETY: the block of the activation starts with 32 bytes.
            let word = unsafe { _mm256_set1_epi32(x[t].add(quad * 4).cast::<i32>().read_unaligned()) };
            for side in 0..2 {
                let (codes, narrow, dots) = (codes[side], &mut narrow[side][t], &mut dots[side][half][t]);
                if V {
                    // SAFETY: forwarded from the caller.
                    *dots = unsafe { dot_vnni(*dots, codes, word) };
                    continue;
                }
                let pairs = if signed {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(word, codes))
                } else {
                    _mm256_maddubs_epi16(codes, word)
                };
                *narrow = if quad % together == 0 { pairs } else { _mm256_add_epi16(*narrow, pairs) };
                if quad % together == together - 1 {
                    *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(*narrow, _mm256_set1_epi16(1)));
                }
            }
        }
    }
    dots
}
