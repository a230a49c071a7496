//! Numbers as integers of 16 bits ([`ActivationFormat::Q16`](super::ActivationFormat::Q16)), for weights of more than 8
//! significant bits.
//!
//! Blocks of 64 columns share what 1 stands for. It is chosen by the block's length, the root of the sum of squares: sums of
//! products of two blocks are at most the product of their lengths (Cauchy and Schwarz), so each number keeps more bits than if
//! the largest products had to fit 64 times. Of the power of a block this loses `64 / (12 * 2^31)`, 2.5e-9, and twice that where
//! one number has most of it; F16 for each number would lose 4e-8. Beside a number that is much larger than the others of its block,
//! these lose more than F16 would, as in all formats of blocks.
//!
//! Rows are in tiles of 8 tokens by 64 columns: of each token 64 integers, then of each what 1 stands for (f32).

use super::activation::{inverse, padded};
#[cfg(target_arch = "x86_64")]
use super::avx512;
use crate::isa::Features;
use std::ops::Range;

/// Columns of a block.
pub(super) const COLUMNS: usize = 64;
/// Length of a block in its integers, at most. Rounding adds half to each and so 4 at most; still less than 2^15.5. So no sum of
/// products of two blocks, however far it has got, reaches 2^31.
pub(super) const LENGTH: f32 = 46336.0;
/// The largest integer; what limits blocks of which one number has most of the length.
pub(super) const LARGEST: f32 = 32767.0;
/// Tokens of a tile.
pub(super) const TOKENS: usize = 8;
/// Bytes of a block of one token.
pub(super) const BYTES: usize = 2 * COLUMNS + 4;

/// Blocks across the columns; the last is padded with zeros.
pub(super) fn blocks(columns: usize) -> usize {
    columns.div_ceil(COLUMNS)
}

/// Does what [`ActivationFormat::prepare`](super::ActivationFormat::prepare) says.
///
/// # Safety
/// As there.
pub(super) unsafe fn prepare(
    features: Features,
    x: &[f32],
    columns: usize,
    tokens: Range<usize>,
    destination: *mut u8,
) {
    // SAFETY: forwarded from the caller; `features` proves that the processor has the instructions.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if features.avx512 {
            return avx512::prepare_words(x, columns, tokens, destination);
        }
        let _ = features;
        prepare_rows(x, columns, tokens, destination, words);
    }
}

/// Prepares rows with `words`, which gives a block's integers and what 1 stands for.
///
/// # Safety
/// As for [`prepare`].
#[inline(always)]
pub(super) unsafe fn prepare_rows(
    x: &[f32],
    columns: usize,
    tokens: Range<usize>,
    destination: *mut u8,
    words: impl Fn(&[f32; COLUMNS]) -> ([i16; COLUMNS], f32),
) {
    for (token, row) in tokens.zip(x.chunks_exact(columns.max(1))) {
        let (first, token) = (token / TOKENS * TOKENS, token % TOKENS);
        for (block, values) in row.chunks(COLUMNS).enumerate() {
            let mut room = [0.0; COLUMNS];
            let (codes, scale) = words(padded(values, &mut room));
            // SAFETY: the tile lies inside the activation, whose extent the caller vouches for, at a multiple of 4 bytes.
            unsafe {
                let tile = destination.add((first * blocks(columns) + block * TOKENS) * BYTES);
                tile.add(token * 2 * COLUMNS).cast::<[i16; COLUMNS]>().write(codes);
                tile.add(TOKENS * 2 * COLUMNS + token * 4).cast::<f32>().write(scale);
            }
        }
    }
}

/// A block's integers and what 1 stands for.
#[inline(always)]
fn words(values: &[f32; COLUMNS]) -> ([i16; COLUMNS], f32) {
    let largest =
        values.iter().fold(0.0f32, |most, value| if value.abs() > most { value.abs() } else { most });
    let unit = unit(largest);
    let mut squares = values.map(|value| (value * unit) * (value * unit));
    for width in [32, 16, 8, 4, 2, 1] {
        for lane in 0..width {
            squares[lane] += squares[lane + width];
        }
    }
    let (factor, scale) = scale(largest, unit, squares[0]);
    (values.map(|value| (value * factor).round_ties_even() as i16), scale)
}

/// What a block's numbers are multiplied by before they are squared, so that no square overflows.
#[inline(always)]
pub(super) fn unit(largest: f32) -> f32 {
    inverse(largest, LARGEST) * (1.0 / LARGEST)
}

/// What a block's numbers are multiplied by to become integers, and what 1 stands for; `squares` is the sum of their squares. If
/// one of them is infinite or not a number, 1 stands for not-a-number.
#[inline(always)]
pub(super) fn scale(largest: f32, unit: f32, squares: f32) -> (f32, f32) {
    let length = squares.sqrt();
    let most = if length * LARGEST > LENGTH { LENGTH / length } else { LARGEST };
    // The product is 0, or not a number.
    (unit * most, largest / most + length * 0.0)
}
