//! Products of queries with keys, and sums of weighted values.
//!
//! Each comes in two forms that do the same additions in the same order, hence agree to the bit: on rows as they
//! lie in the cache, converted in registers (few query rows), and on a tile converted to f32 once (many).

use puna_quant::DType;

use super::TILE;
use crate::kernels::prefetch::{self, Cache};
use crate::kernels::vector::Vector;

/// Rows of the cache at hand: the cells of a tile.
pub(super) type RowPointers = [*const u8; TILE];

/// Rows that are needed soon: while the kernel works on cell `i`, it asks for row `i` of these.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    pub(super) rows: &'a RowPointers,
    /// Bytes to add to the pointers.
    pub(super) offset: usize,
    /// Bytes of a row.
    pub(super) bytes: usize,
}

impl Ahead<'_> {
    #[inline(always)]
    fn ask(&self, cell: usize) {
        let row = self.rows[cell].wrapping_add(self.offset);
        prefetch::lines(Cache::First, row, self.bytes);
    }

    /// The first block of query rows asks for all.
    #[inline(always)]
    fn once(self, row: usize) -> Self {
        Self { bytes: if row == 0 { self.bytes } else { 0 }, ..self }
    }
}

/// How a whole vector is read from a row of the cache.
trait Loader {
    /// # Safety
    /// Numbers `d..d + V::LANES` of the row exist; `d` is a multiple of the lanes.
    unsafe fn load<V: Vector>(row: *const u8, d: usize) -> V;
}

struct F32;
struct F16;
struct BF16;
struct Q8;

impl Loader for F32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(row: *const u8, d: usize) -> V {
        // SAFETY: promised by the caller.
        unsafe { V::load(row.cast::<f32>().add(d)) }
    }
}

impl Loader for F16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(row: *const u8, d: usize) -> V {
        // SAFETY: promised by the caller.
        unsafe { V::load_f16(row.cast::<u16>().add(d)) }
    }
}

impl Loader for BF16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(row: *const u8, d: usize) -> V {
        // SAFETY: promised by the caller.
        unsafe { V::load_bf16(row.cast::<u16>().add(d)) }
    }
}

/// Numbers and bytes of a block of Q8_0: a scale in f16 and 32 integers.
const Q8_BLOCK: usize = 32;
const Q8_BYTES: usize = 34;

impl Loader for Q8 {
    #[inline(always)]
    unsafe fn load<V: Vector>(row: *const u8, d: usize) -> V {
        // SAFETY: promised by the caller; a vector never reaches over its block.
        unsafe {
            let block = row.add(d / Q8_BLOCK * Q8_BYTES);
            V::load_i8(block.add(2 + d % Q8_BLOCK).cast()).mul(V::splat_f16(block.cast()))
        }
    }
}

/// Whether rows of `dim` numbers in this format can be read in whole vectors straight from the cache.
#[inline(always)]
pub(super) fn is_direct<V: Vector>(dtype: DType, dim: usize) -> bool {
    dim.is_multiple_of(V::LANES) && matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0)
}

/// Calls `$function::<V, loader, rows>` for blocks of up to four rows.
macro_rules! each_block {
    ($V:ident, $dtype:expr, $rows:expr, $function:ident, |$row:ident| ($($argument:expr),*)) => {
        match $dtype {
            DType::F32 => each_block!(@ $V, F32, $rows, $function, $row, ($($argument),*)),
            DType::F16 => each_block!(@ $V, F16, $rows, $function, $row, ($($argument),*)),
            DType::BF16 => each_block!(@ $V, BF16, $rows, $function, $row, ($($argument),*)),
            _ => each_block!(@ $V, Q8, $rows, $function, $row, ($($argument),*)),
        }
    };
    (@ $V:ident, $loader:ident, $rows:expr, $function:ident, $row:ident, ($($argument:expr),*)) => {{
        let mut $row = 0;
        while $row < $rows {
            match $rows - $row {
                1 => $function::<$V, $loader, 1>($($argument),*),
                2 => $function::<$V, $loader, 2>($($argument),*),
                3 => $function::<$V, $loader, 3>($($argument),*),
                _ => $function::<$V, $loader, 4>($($argument),*),
            }
            $row += 4;
        }
    }};
}

/// Products of `rows` query rows with `count` keys as they lie in the cache, to `scores` (`[rows, TILE]`); up to
/// a whole vector of products is written.
///
/// # Safety
/// [`is_direct`] holds for the keys; `queries` is `[rows, dim]` with `stride` numbers from row to row; `keys` are
/// valid up to `count` rounded up to the lanes.
#[inline(always)]
pub(super) unsafe fn score_direct<V: Vector>(
    dtype: DType,
    queries: *const f32,
    keys: &RowPointers,
    (rows, dim, stride): (usize, usize, usize),
    count: usize,
    scores: *mut f32,
    ahead: Ahead<'_>,
) {
    // SAFETY: promised by the caller.
    unsafe {
        each_block!(V, dtype, rows, score_block, |row| (
            queries.add(row * stride),
            keys,
            (dim, stride),
            count,
            scores.add(row * TILE),
            ahead.once(row)
        ));
    }
}

/// # Safety
/// As [`score_direct`] with `ROWS` rows.
#[inline(always)]
unsafe fn score_block<V: Vector, L: Loader, const ROWS: usize>(
    queries: *const f32,
    keys: &RowPointers,
    (dim, stride): (usize, usize),
    count: usize,
    scores: *mut f32,
    ahead: Ahead<'_>,
) {
    for first in (0..count).step_by(V::LANES) {
        let mut sums = [[V::splat(0.0); 16]; ROWS];
        // SAFETY: promised by the caller.
        unsafe {
            for lane in 0..V::LANES {
                ahead.ask(first + lane);
                let key = keys[first + lane];
                let mut sum = [V::splat(0.0); ROWS];
                for d in (0..dim).step_by(V::LANES) {
                    let key = L::load::<V>(key, d);
                    for row in 0..ROWS {
                        sum[row] = key.fma(V::load(queries.add(row * stride + d)), sum[row]);
                    }
                }
                for row in 0..ROWS {
                    sums[row][lane] = sum[row];
                }
            }
            for row in 0..ROWS {
                V::sums(&sums[row][..V::LANES]).store(scores.add(row * TILE + first));
            }
        }
    }
}

/// Products of 16-bit integer queries with `count` keys in Q8_0, to `scores`, without the queries' own scales.
///
/// # Safety
/// As [`score_direct`], with whole blocks and `queries` in integers.
#[inline(always)]
pub(super) unsafe fn score_integers<V: Vector>(
    queries: *const i16,
    keys: &RowPointers,
    (rows, dim, stride): (usize, usize, usize),
    count: usize,
    scores: *mut f32,
    ahead: Ahead<'_>,
) {
    let mut row = 0;
    // SAFETY: promised by the caller.
    unsafe {
        while row < rows {
            let (queries, scores, ahead) =
                (queries.add(row * stride), scores.add(row * TILE), ahead.once(row));
            match rows - row {
                1 => score_integers_block::<V, 1>(queries, keys, (dim, stride), count, scores, ahead),
                2 => score_integers_block::<V, 2>(queries, keys, (dim, stride), count, scores, ahead),
                3 => score_integers_block::<V, 3>(queries, keys, (dim, stride), count, scores, ahead),
                _ => score_integers_block::<V, 4>(queries, keys, (dim, stride), count, scores, ahead),
            }
            row += 4;
        }
    }
}

/// # Safety
/// As [`score_integers`] with `ROWS` rows.
#[inline(always)]
unsafe fn score_integers_block<V: Vector, const ROWS: usize>(
    queries: *const i16,
    keys: &RowPointers,
    (dim, stride): (usize, usize),
    count: usize,
    scores: *mut f32,
    ahead: Ahead<'_>,
) {
    for first in (0..count).step_by(V::LANES) {
        let mut sums = [[V::splat(0.0); 16]; ROWS];
        // SAFETY: promised by the caller.
        unsafe {
            for lane in 0..V::LANES {
                ahead.ask(first + lane);
                let key = keys[first + lane];
                let mut sum = [V::splat(0.0); ROWS];
                for block in 0..dim / Q8_BLOCK {
                    let key = key.add(block * Q8_BYTES);
                    let scale = V::splat_f16(key.cast());
                    for row in 0..ROWS {
                        let query = queries.add(row * stride + block * Q8_BLOCK);
                        sum[row] = V::dot32(query, key.add(2).cast()).fma(scale, sum[row]);
                    }
                }
                for row in 0..ROWS {
                    sums[row][lane] = sum[row];
                }
            }
            for row in 0..ROWS {
                V::sums(&sums[row][..V::LANES]).store(scores.add(row * TILE + first));
            }
        }
    }
}

/// Keys that [`score_tile`] multiplies with one or two rows at a time: half a vector of products for each of two.
const fn keys_at_once(lanes: usize) -> usize {
    if lanes == 1 { 1 } else { lanes / 2 }
}

/// Puts a key, `stride` numbers and a whole number of vectors, to place `index` of a tile as [`score_tile`] reads
/// it: vector `d` of the keys that are multiplied at once lie side by side.
///
/// # Safety
/// `key` has `stride` numbers, the tile room for [`TILE`] such rows, and `index` is below that.
#[inline(always)]
pub(super) unsafe fn place_key<V: Vector>(key: *const f32, stride: usize, index: usize, tile: *mut f32) {
    let group = keys_at_once(V::LANES);
    let (first, lane) = (index / group * group, index % group);
    for d in (0..stride).step_by(V::LANES) {
        // SAFETY: promised by the caller.
        unsafe { V::load(key.add(d)).store(tile.add(first * stride + d * group + lane * V::LANES)) }
    }
}

/// Products of `rows` query rows with `count` keys of a tile, to `scores` (`[rows, TILE]`); up to a whole vector of
/// products is written.
///
/// # Safety
/// `queries` is rows of `stride` numbers, a whole number of vectors, padded with zeros; `keys` is a tile filled by
/// [`place_key`].
#[inline(always)]
pub(super) unsafe fn score_tile<V: Vector>(
    queries: *const f32,
    keys: *const f32,
    stride: usize,
    rows: usize,
    count: usize,
    scores: *mut f32,
) {
    let group = keys_at_once(V::LANES);
    for row in (0..rows).step_by(2) {
        // The last of an odd number of rows is computed twice.
        let other = (row + 1).min(rows - 1);
        for first in (0..count).step_by(group) {
            // SAFETY: promised by the caller.
            unsafe {
                let (query, other_query) = (queries.add(row * stride), queries.add(other * stride));
                let mut keys = keys.add(first * stride);
                let mut sums = [V::splat(0.0); 16];
                for d in (0..stride).step_by(V::LANES) {
                    let (query, other_query) = (V::load(query.add(d)), V::load(other_query.add(d)));
                    for lane in 0..group {
                        let key = V::load(keys.add(lane * V::LANES));
                        sums[lane] = key.fma(query, sums[lane]);
                        sums[group + lane] = key.fma(other_query, sums[group + lane]);
                    }
                    keys = keys.add(group * V::LANES);
                }
                // Numbers of the first row, then of the other.
                let mut products = [0.0; 16];
                if V::LANES == 1 {
                    (products[0], products[1]) = (sums[0].sum(), sums[1].sum());
                } else {
                    V::sums(&sums[..V::LANES]).store(products.as_mut_ptr());
                }
                for (row, products) in [(row, &products[..group]), (other, &products[group..2 * group])] {
                    let target = scores.add(row * TILE + first);
                    std::ptr::copy_nonoverlapping(products.as_ptr(), target, group);
                }
            }
        }
    }
}

/// Adds `weights[row][cell] * values[cell]` for all cells, in their order, to each row of `sums`.
///
/// # Safety
/// [`is_direct`] holds for the values; `weights` is `[rows, TILE]`, `sums` `[rows, dim]` with `stride` numbers from
/// row to row.
#[inline(always)]
pub(super) unsafe fn add_values<V: Vector>(
    dtype: DType,
    weights: *const f32,
    values: &RowPointers,
    (rows, dim, stride): (usize, usize, usize),
    count: usize,
    sums: *mut f32,
    ahead: Ahead<'_>,
) {
    // SAFETY: promised by the caller.
    unsafe {
        each_block!(V, dtype, rows, add_values_rows, |row| (
            weights.add(row * TILE),
            values,
            (dim, stride),
            count,
            sums.add(row * stride),
            ahead.once(row)
        ));
    }
}

/// # Safety
/// As [`add_values`] with `ROWS` rows.
#[inline(always)]
unsafe fn add_values_rows<V: Vector, L: Loader, const ROWS: usize>(
    weights: *const f32,
    values: &RowPointers,
    (dim, stride): (usize, usize),
    count: usize,
    sums: *mut f32,
    mut ahead: Ahead<'_>,
) {
    let mut d = 0;
    // SAFETY: promised by the caller; blocks of columns never reach over the row.
    unsafe {
        // Four vectors side by side fill the 32 registers of AVX-512, two the 16 of AVX2.
        if V::LANES == 16 {
            while d + 4 * V::LANES <= dim {
                add_values_block::<V, L, ROWS, 4>(weights, values, d, stride, count, sums.add(d), ahead);
                ahead.bytes = 0;
                d += 4 * V::LANES;
            }
        }
        while d + 2 * V::LANES <= dim {
            add_values_block::<V, L, ROWS, 2>(weights, values, d, stride, count, sums.add(d), ahead);
            ahead.bytes = 0;
            d += 2 * V::LANES;
        }
        while d < dim {
            add_values_block::<V, L, ROWS, 1>(weights, values, d, stride, count, sums.add(d), ahead);
            ahead.bytes = 0;
            d += V::LANES;
        }
    }
}

/// # Safety
/// As [`add_values`] with `ROWS` rows and `COLUMNS` vectors from number `d` of each value on.
#[inline(always)]
unsafe fn add_values_block<V: Vector, L: Loader, const ROWS: usize, const COLUMNS: usize>(
    weights: *const f32,
    values: &RowPointers,
    d: usize,
    stride: usize,
    count: usize,
    sums: *mut f32,
    ahead: Ahead<'_>,
) {
    let mut total = [[V::splat(0.0); COLUMNS]; ROWS];
    // SAFETY: promised by the caller.
    unsafe {
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                total[row][column] = V::load(sums.add(row * stride + column * V::LANES));
            }
        }
        for cell in 0..count {
            ahead.ask(cell);
            let mut value = [V::splat(0.0); COLUMNS];
            for column in 0..COLUMNS {
                value[column] = L::load::<V>(*values.get_unchecked(cell), d + column * V::LANES);
            }
            for row in 0..ROWS {
                let weight = V::splat(*weights.add(row * TILE + cell));
                for column in 0..COLUMNS {
                    total[row][column] = value[column].fma(weight, total[row][column]);
                }
            }
        }
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                total[row][column].store(sums.add(row * stride + column * V::LANES));
            }
        }
    }
}
