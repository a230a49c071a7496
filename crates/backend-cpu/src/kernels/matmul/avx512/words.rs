//! F16 matrices by [`ActivationFormat::Q16`](super::super::ActivationFormat::Q16) activations (AVX-512 VNNI): products of
//! pairs of 16-bit integers, twice as many an instruction as in f32.
//!
//! Weights stay F16 in memory. A panel of them becomes integers once for all tokens, in the way in which activations do
//! ([`words`](super::super::words)), each row for itself.

use super::super::Operands;
use super::super::layout::{GROUP, Geometry};
use super::super::words::{self, BYTES, COLUMNS, LARGEST, LENGTH, TOKENS};
use super::store;
use crate::kernels::prefetch::{self, Cache};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of a panel, which stays in the second-level cache together with some activations.
const PANEL_BYTES: usize = 512 << 10;
/// Bytes of two columns of a group, as F16 and as integers.
const PAIR_BYTES: usize = 4 * GROUP;
/// Pairs of columns of a block.
const PAIRS: usize = COLUMNS / 2;
/// Bytes of a block of a group: its integers, and what 1 stands for in each row.
const BLOCK_BYTES: usize = (PAIRS + 1) * PAIR_BYTES;
/// Bytes of a tile of activations.
const TILE_BYTES: usize = TOKENS * BYTES;
/// Bytes between the weights that become integers and those asked for.
const AHEAD: usize = 2048;

/// Bytes of a group as integers.
fn group_bytes(geometry: &Geometry) -> usize {
    words::blocks(geometry.columns) * BLOCK_BYTES
}

/// Groups of rows in a panel.
fn panel_groups(geometry: &Geometry) -> usize {
    (PANEL_BYTES / group_bytes(geometry)).clamp(2, 32) & !1
}

/// Bytes of scratch memory that [`words`] needs.
pub(in super::super) fn words_scratch_bytes(geometry: &Geometry) -> usize {
    panel_groups(geometry) * group_bytes(geometry) + 64
}

/// The groups of rows by all tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn words(operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    let geometry = &operands.geometry;
    let group_bytes = group_bytes(geometry);
    let skip = scratch.as_ptr().align_offset(64);
    let panel = &mut scratch[skip..][..panel_groups(geometry) * group_bytes];
    for first in groups.clone().step_by(panel_groups(geometry)) {
        let count = panel_groups(geometry).min(groups.end - first);
        for (index, place) in panel.chunks_exact_mut(group_bytes).take(count).enumerate() {
            convert(operands.group(first + index), place);
        }
        for token in (0..operands.tokens).step_by(TOKENS) {
            for index in (0..count).step_by(2) {
                let weights = &panel[index * group_bytes..];
                if index + 1 < count {
                    multiply::<2>(operands, first + index, token, weights);
                } else {
                    multiply::<1>(operands, first + index, token, weights);
                }
            }
        }
    }
}

/// Writes the blocks of a group as integers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn convert(group: &[u8], place: &mut [u8]) {
    for (block, place) in group.chunks(PAIRS * PAIR_BYTES).zip(place.chunks_exact_mut(BLOCK_BYTES)) {
        // The last block may have half the columns.
        let pairs = block.len() / PAIR_BYTES;
        // SAFETY: the block has so many pairs of columns of 16 F16.
        let pair = |pair: usize| unsafe { _mm512_loadu_si512(block.as_ptr().add(pair * PAIR_BYTES).cast()) };
        let zero = _mm512_setzero_ps();
        // Magnitudes of F16 are in the order of their bits.
        let mut largest = _mm512_setzero_si512();
        let (mut even_squares, mut odd_squares) = (zero, zero);
        for index in 0..pairs {
            prefetch::line(Cache::First, block.as_ptr().wrapping_add(AHEAD + index * PAIR_BYTES));
            let pair = pair(index);
            largest = _mm512_max_epu16(largest, _mm512_and_si512(pair, _mm512_set1_epi16(0x7fff)));
            let [even, odd] = numbers(pair);
            even_squares = _mm512_fmadd_ps(even, even, even_squares);
            odd_squares = _mm512_fmadd_ps(odd, odd, odd_squares);
        }
        let [even, odd] = numbers(largest);
        let length = _mm512_sqrt_ps(_mm512_add_ps(even_squares, odd_squares));
        let scale = _mm512_max_ps(
            _mm512_mul_ps(_mm512_max_ps(even, odd), _mm512_set1_ps(1.0 / LARGEST)),
            _mm512_mul_ps(length, _mm512_set1_ps(1.0 / LENGTH)),
        );
        let some = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(scale, zero);
        let inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0), scale);
        // The difference is 0, or not a number where a weight is infinite or none.
        let scale = _mm512_add_ps(scale, _mm512_sub_ps(length, length));
        let place = place.as_mut_ptr();
        // SAFETY: the place has room for all pairs of a block and the scales.
        unsafe {
            for index in 0..pairs {
                let [even, odd] = numbers(pair(index));
                let even = _mm512_cvtps_epi32(_mm512_mul_ps(even, inverse));
                let odd = _mm512_cvtps_epi32(_mm512_mul_ps(odd, inverse));
                let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, even, _mm512_slli_epi32::<16>(odd));
                _mm512_storeu_si512(place.add(index * PAIR_BYTES).cast(), both);
            }
            for index in pairs..PAIRS {
                _mm512_storeu_si512(place.add(index * PAIR_BYTES).cast(), _mm512_setzero_si512());
            }
            _mm512_storeu_ps(place.add(PAIRS * PAIR_BYTES).cast(), scale);
        }
    }
}

/// The F16 of two columns.
#[target_feature(enable = "avx512f")]
#[inline]
fn numbers(pair: __m512i) -> [__m512; 2] {
    [_mm512_cvtph_ps(_mm512_castsi512_si256(pair)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(pair))]
}

/// `R` groups from `group` on, whose integers begin `weights`, by the tokens from `token`, which is a multiple of [`TOKENS`], on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply<const R: usize>(operands: &Operands<'_>, group: usize, token: usize, weights: &[u8]) {
    let blocks = words::blocks(operands.geometry.columns);
    // Tiles are whole also where the last has fewer tokens.
    let x = operands.activation[token * operands.token_bytes..][..blocks * TILE_BYTES].as_ptr();
    let mut places = [std::ptr::null(); R];
    for r in 0..R {
        places[r] = weights[r * blocks * BLOCK_BYTES..][..blocks * BLOCK_BYTES].as_ptr();
    }
    let mut sums = [[_mm512_setzero_ps(); TOKENS]; R];
    for block in 0..blocks {
        // SAFETY: the slices were cut to `blocks` blocks.
        unsafe {
            let x = x.add(block * TILE_BYTES);
            let word = |at: usize| _mm512_set1_epi32(x.add(at).cast::<i32>().read_unaligned());
            let mut dots = [[_mm512_setzero_si512(); TOKENS]; R];
            for pair in 0..PAIRS {
                let mut codes = [_mm512_setzero_si512(); R];
                for r in 0..R {
                    let place = places[r].add(block * BLOCK_BYTES + pair * PAIR_BYTES);
                    codes[r] = _mm512_loadu_si512(place.cast());
                }
                for t in 0..TOKENS {
                    let x = word(t * 2 * COLUMNS + pair * 4);
                    for r in 0..R {
                        dots[r][t] = _mm512_dpwssd_epi32(dots[r][t], codes[r], x);
                    }
                }
            }
            for r in 0..R {
                let scale = _mm512_loadu_ps(places[r].add(block * BLOCK_BYTES + PAIRS * PAIR_BYTES).cast());
                for t in 0..TOKENS {
                    let factor = _mm512_castsi512_ps(word(TOKENS * 2 * COLUMNS + t * 4));
                    let product = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][t]), factor);
                    sums[r][t] = _mm512_fmadd_ps(product, scale, sums[r][t]);
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

/// [`words::prepare`] with AVX-512, with the same result as the scalar form; integers of blocks whose scale is not a number are
/// unspecified.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn prepare_words(
    x: &[f32],
    columns: usize,
    tokens: Range<usize>,
    destination: *mut u8,
) {
    // A closure has the instructions of this function, which the function itself does not.
    // SAFETY: forwarded from the caller.
    unsafe { words::prepare_rows(x, columns, tokens, destination, |values| block_words(values)) }
}

/// A block's integers and what 1 stands for.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn block_words(values: &[f32; COLUMNS]) -> ([i16; COLUMNS], f32) {
    const PARTS: usize = COLUMNS / 16;
    let mut parts = [_mm512_setzero_ps(); PARTS];
    let mut most = _mm512_setzero_ps();
    for part in 0..PARTS {
        // SAFETY: each part has 16 numbers.
        parts[part] = unsafe { _mm512_loadu_ps(values.as_ptr().add(part * 16)) };
        most = _mm512_max_ps(_mm512_abs_ps(parts[part]), most);
    }
    let largest = _mm512_reduce_max_ps(most);
    let unit = words::unit(largest);
    let mut squares = [_mm512_setzero_ps(); PARTS];
    for part in 0..PARTS {
        let number = _mm512_mul_ps(parts[part], _mm512_set1_ps(unit));
        squares[part] = _mm512_mul_ps(number, number);
    }
    let first = _mm512_add_ps(squares[0], squares[2]);
    let second = _mm512_add_ps(squares[1], squares[3]);
    let (factor, scale) = words::scale(largest, unit, _mm512_reduce_add_ps(_mm512_add_ps(first, second)));
    let mut codes = [0; COLUMNS];
    for part in 0..PARTS {
        let integers = _mm512_cvtps_epi32(_mm512_mul_ps(parts[part], _mm512_set1_ps(factor)));
        // SAFETY: each part has 16 places.
        unsafe {
            let place = codes.as_mut_ptr().add(part * 16);
            _mm256_storeu_si256(place.cast(), _mm512_cvtsepi32_epi16(integers));
        }
    }
    (codes, scale)
}
