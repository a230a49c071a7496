//! Products of tiles with AVX-512: of BF16 for processors without the matrix unit, and of 16-bit integers. The tiles are those of
//! [`super::tiles`]: of the first factor 16 rows by 32 columns, of the second 16 pairs of columns by 16 rows.

use std::arch::x86_64::*;

/// Rows of the first factor whose sums are kept in registers: half a tile, so that all lie at fixed places from the first.
pub(super) const ROWS: usize = 8;
/// Bytes of a tile.
const TILE_BYTES: usize = 1024;
/// Bytes of a row of the first factor, or of a pair of columns of the second.
const LINE_BYTES: usize = 64;

/// A function for one form of numbers. A macro, because what a processor needs for them is part of a function's type.
macro_rules! products {
    ($(#[$text:meta])* $name:ident, $features:literal, $sum:ty, $dot:expr) => {
        $(#[$text])*
        ///
        /// # Safety
        /// All these tiles are valid memory.
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) unsafe fn $name<const R: usize>(
            x: *const u8,
            others: [*const u8; R],
            steps: usize,
            sums: &mut [[$sum; ROWS]; R],
        ) {
            for step in 0..steps {
                for pair in 0..TILE_BYTES / LINE_BYTES {
                    let mut columns = [_mm512_setzero_si512(); R];
                    for r in 0..R {
                        let line = others[r].wrapping_add(step * TILE_BYTES + pair * LINE_BYTES);
                        // SAFETY: promised by the caller.
                        columns[r] = unsafe { _mm512_loadu_si512(line.cast()) };
                    }
                    for t in 0..ROWS {
                        let place = x.wrapping_add(step * TILE_BYTES + t * LINE_BYTES + pair * 4);
                        // SAFETY: promised by the caller.
                        let x = unsafe { _mm512_set1_epi32(place.cast::<i32>().read_unaligned()) };
                        for r in 0..R {
                            sums[r][t] = $dot(sums[r][t], columns[r], x);
                        }
                    }
                }
            }
        }
    };
}

products! {
    /// Adds the products of [`ROWS`] rows of the first factor, whose first is at `x`, by 16 rows of the second at each of `others`,
    /// over `steps` tiles that lie one after the other. Numbers are BF16.
    add, "avx512f,avx512bf16", __m512, dot
}

products! {
    /// What [`add`] does with integers of 16 bits, whose sums must not leave 32.
    add_words, "avx512f,avx512vnni", __m512i, _mm512_dpwssd_epi32
}

/// Adds the products of two BF16 to each lane.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn dot(sum: __m512, left: __m512i, right: __m512i) -> __m512 {
    // SAFETY: both types are 64 bytes of which any value is valid.
    let [left, right] = unsafe { std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([left, right]) };
    _mm512_dpbf16_ps(sum, left, right)
}
