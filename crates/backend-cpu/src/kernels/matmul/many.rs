//! Many tokens: what a piece of a group holds is unpacked once for all of them, into memory that the first-level cache
//! keeps, and multiplied from there. Sums of a token go on from piece to piece in the order of the columns, so results are
//! the same to the bit as those of few tokens.

use super::Operands;
use super::layout::GROUP;
use std::ops::Range;

/// From this number of tokens on unpacking first is faster.
pub(super) const TOKENS: usize = 8;
/// Tokens whose sums are kept meanwhile: 8 KiB.
const TILE: usize = 128;
/// Blocks of 32 columns that are unpacked at once: 16 KiB of codes.
pub(super) const BLOCKS: usize = 32;
/// Columns of numbers that are unpacked at once: 16 KiB.
pub(super) const COLUMNS: usize = 256;

/// For each token the sums of 16 rows.
#[repr(C, align(64))]
struct Sums([[f32; GROUP]; TILE]);

/// Unpacked blocks of an integer format: codes as single bytes, and what [`super::scales`] says of them.
#[repr(C, align(64))]
pub(super) struct Blocks {
    /// For each block its eight quads: four columns of 16 rows.
    pub(super) codes: [[[u8; 4 * GROUP]; 8]; BLOCKS],
    /// For each block three numbers of each row.
    pub(super) scales: [[[f32; GROUP]; 3]; BLOCKS],
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self { codes: [[[0; 4 * GROUP]; 8]; BLOCKS], scales: [[[0.0; GROUP]; 3]; BLOCKS] }
    }
}

/// Unpacked columns of numbers.
#[repr(C, align(64))]
pub(super) struct Columns(pub(super) [[f32; GROUP]; COLUMNS]);

impl Columns {
    pub(super) fn new() -> Self {
        Self([[0.0; GROUP]; COLUMNS])
    }
}

/// Multiplies the groups by all tokens, in pieces of `step` of `units` blocks or columns. `unpack` fills a piece with units of
/// a group. `add` adds units of the piece to the sums of as many tokens from the given one on as it likes, at most as many as there
/// are sums, and returns their number.
#[inline(always)]
pub(super) fn multiply<P>(
    operands: &Operands<'_>,
    groups: Range<usize>,
    (units, step): (usize, usize),
    piece: &mut P,
    unpack: impl Fn(&mut P, usize, Range<usize>),
    add: impl Fn(&P, usize, Range<usize>, &mut [[f32; GROUP]]) -> usize,
) {
    let mut sums = Sums([[0.0; GROUP]; TILE]);
    for tile in (0..operands.tokens).step_by(TILE) {
        let tokens = TILE.min(operands.tokens - tile);
        for group in groups.clone() {
            sums.0[..tokens].fill([0.0; GROUP]);
            for first in (0..units).step_by(step) {
                let range = first..units.min(first + step);
                unpack(piece, group, range.clone());
                let mut token = 0;
                while token < tokens {
                    token += add(piece, tile + token, range.clone(), &mut sums.0[token..tokens]);
                }
            }
            let rows = operands.geometry.rows - group * GROUP;
            for (token, sums) in sums.0[..tokens].iter().enumerate() {
                let place = operands.result(tile + token, group * GROUP);
                // SAFETY: the caller of `multiply` vouches for the results of its rows. Whole groups apart, so that they
                // are vectors instead of a call of the C library.
                unsafe {
                    if rows >= GROUP {
                        place.cast::<[f32; GROUP]>().write_unaligned(*sums);
                    } else {
                        std::ptr::copy_nonoverlapping(sums.as_ptr(), place, rows);
                    }
                }
            }
        }
    }
}
