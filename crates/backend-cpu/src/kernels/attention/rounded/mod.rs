//! Attention of many rows in rounded numbers: queries, keys, weights and values become BF16 where there is a matrix unit
//! ([`brain`]), and integers of 16 bits with AVX-512 VNNI ([`words`]); sums are f32.
//!
//! Scores are computed as keys by queries, so that a vector lane is a query row and the softmax needs no sums across
//! lanes. Weights are relative to a reference that each row keeps: its largest score so far, or one at most
//! [`SLACK`] below it, because moving the reference means to rescale the row's sums.
//!
//! The order of a row's sums is fixed, but they are not those of [`super::tile`] to the bit. So this is used only where
//! results may depend on how many rows share a step ([`Attention::rounds`]).

mod brain;
mod fill;
mod words;

use std::arch::x86_64::*;

use super::plan::Work;
use super::tile::{Run, Tile, take};
use super::{Attention, Heads, Inputs, TILE};
use crate::kernels::rows::RowsMut;
use crate::kernels::tiles::{Block as Product, Tiles};
use crate::kernels::vector::Vector;
use crate::kernels::vector::avx512::Avx512;
use crate::kernels::vector::math::tanh;

/// Fewer rows than a tile has are computed in f32.
const LEAST_ROWS: usize = 16;
/// Rows, numbers of a head or cells that are multiplied at once: two tiles.
const PAIR: usize = 32;
/// Numbers of f32 in a tile, whose numbers have 16 bits.
const TILE_FLOATS: usize = 256;
/// Numbers of a block of sums, [`PAIR`] rows by as many numbers of a value.
const BLOCK_FLOATS: usize = PAIR * PAIR;
/// How far, as a power of two, weights may exceed 1 before the reference moves.
const SLACK: f32 = 8.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// Numbers of scratch memory for `rows` rows.
pub(super) fn scratch_floats(heads: Heads, rows: usize) -> usize {
    let (rows, key, value) = extents(heads, rows);
    let rounded = rows * (key + TILE) / 2 + TILE * (key + value) / 2;
    rounded + rows * (value + TILE + LANE_VECTORS) + TILE * key.max(value) + TILE + value
}

/// Vectors of one number for each row.
const LANE_VECTORS: usize = 8;

/// Rows and numbers of keys and values, padded.
fn extents(heads: Heads, rows: usize) -> (usize, usize, usize) {
    let padded = |extent: usize| extent.next_multiple_of(PAIR);
    (padded(rows), padded(heads.key_dim), padded(heads.value_dim))
}

/// Whether the chunk is one for rounded numbers. Single tokens never are, however many heads share their keys: what is
/// generated token by token must be what a deterministic step of several tokens computes.
pub(super) fn takes(attention: &Attention<'_>, work: &Work<'_>) -> bool {
    let rows = work.block.tokens * attention.heads.group();
    attention.rounds
        && work.block.tokens > 1
        && work.split.is_none()
        && rows >= LEAST_ROWS
        && attention.relative.is_none()
        && attention.scale > 0.0
}

/// Does a chunk that [`takes`] approves, or finds that it has to be done in f32, because not all numbers are finite. In BF16 with the
/// matrix unit, or in integers (`WORDS`).
///
/// # Safety
/// Without `WORDS`, the processor has AMX and AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run<const WORDS: bool>(run: &mut Run<'_>) -> bool {
    let Run { attention, plan, inputs, output, .. } = *run;
    let work = plan.work(run.chunk);
    let block = work.block;
    let heads = attention.heads;
    let mut space = Space::<WORDS>::new(run.scratch, heads, block.tokens * heads.group());
    space.fill_lanes(attention, inputs, &work);
    if !space.fill_queries(inputs, &work, heads) {
        return false;
    }
    let _tiles = (!WORDS).then(|| Tiles::configure([(16, 64); 8]));
    let mut cells = [0; TILE];
    let mut positions = [0; TILE];
    for start in (0..block.cells).step_by(TILE) {
        let places = plan.tile_cells(block, start, &mut cells);
        let (cells, count) = (&cells[places.clone()], places.len());
        if count == 0 {
            continue;
        }
        let (mut low, mut high) = (i32::MAX, i32::MIN);
        for i in 0..count {
            positions[i] = inputs.cell_positions[cells[i] as usize];
            (low, high) = (low.min(positions[i]), high.max(positions[i]));
        }
        let (seen, masked) = Tile::visibility(attention, inputs, block, (low, high));
        if !seen {
            continue;
        }
        let possible = if WORDS {
            space.fill_keys_as_words(inputs, &work, cells) && space.fill_values_as_words(inputs, &work, cells)
        } else {
            space.fill_keys(inputs, &work, cells);
            // Values that are seen make results what they are in f32; hidden ones must not.
            space.fill_values(inputs, &work, cells) || !masked
        };
        if !possible {
            return false;
        }
        space.score();
        for lanes in (0..space.rows).step_by(16) {
            space.weigh(attention, lanes, &positions[..count], masked);
        }
        space.add_values();
    }
    space.finish(attention, output, &work);
    true
}

/// Memory of a chunk.
struct Space<'a, const WORDS: bool> {
    /// Rows, numbers of a key and of a value, padded.
    rows: usize,
    key_dim: usize,
    value_dim: usize,
    /// Second factor of scores: for each 16 rows and [`PAIR`] numbers a tile, a pair of numbers of 16 rows in a line.
    queries: &'a mut [f32],
    /// First factor of scores: for each 16 cells and [`PAIR`] numbers a tile, a cell in a line.
    keys: &'a mut [f32],
    /// Second factor of results: for each 16 numbers and [`PAIR`] cells a tile, a pair of cells in a line.
    values: &'a mut [f32],
    /// `[TILE, rows]`.
    scores: &'a mut [f32],
    /// First factor of results: for each 16 rows and [`PAIR`] cells a tile, a row in a line.
    weights: &'a mut [f32],
    /// Blocks of [`PAIR`] rows by [`PAIR`] numbers.
    sums: &'a mut [f32],
    /// References and sums of weights, first and last position seen, the row's own position, ALiBi slopes, what 1 stands for in the
    /// integers of a query and of weights.
    lanes: [&'a mut [f32]; LANE_VECTORS],
    /// Decoded keys or values.
    decoded: &'a mut [f32],
    /// What 1 stands for in the integers of each key, and in those of each number of values.
    key_units: &'a mut [f32],
    value_units: &'a mut [f32],
}

const REFERENCE: usize = 0;
const TOTAL: usize = 1;
const FROM: usize = 2;
const TO: usize = 3;
const POSITION: usize = 4;
const SLOPE: usize = 5;
const QUERY_UNIT: usize = 6;
const WEIGHT_UNIT: usize = 7;

impl<'a, const WORDS: bool> Space<'a, WORDS> {
    fn new(mut rest: &'a mut [f32], heads: Heads, rows: usize) -> Self {
        let (rows, key_dim, value_dim) = extents(heads, rows);
        let space = Self {
            rows,
            key_dim,
            value_dim,
            queries: take(&mut rest, rows * key_dim / 2),
            keys: take(&mut rest, TILE * key_dim / 2),
            values: take(&mut rest, TILE * value_dim / 2),
            scores: take(&mut rest, TILE * rows),
            weights: take(&mut rest, rows * TILE / 2),
            sums: take(&mut rest, rows * value_dim),
            lanes: std::array::from_fn(|_| take(&mut rest, rows)),
            decoded: take(&mut rest, TILE * key_dim.max(value_dim)),
            key_units: take(&mut rest, TILE),
            value_units: take(&mut rest, value_dim),
        };
        space.key_units.fill(0.0);
        space.sums.fill(0.0);
        // Rows of padding are multiplied as well.
        space.queries.fill(0.0);
        space.keys.fill(0.0);
        space
    }

    /// What each row starts with.
    fn fill_lanes(&mut self, attention: &Attention<'_>, inputs: &Inputs<'_>, work: &Work<'_>) {
        let group = attention.heads.group();
        for row in 0..self.rows {
            let (token, head) = (row / group, work.kv_head * group + row % group);
            // Rows of padding see nothing.
            let (mut position, mut from, mut to, mut slope) = (0, 1, 0, 0.0);
            if token < work.block.tokens {
                position = inputs.token_positions[work.block.first_token + token];
                (from, to) = attention.mask.interval(position);
                slope = attention.alibi.map_or(0.0, |slopes| slopes[head]);
            }
            self.lanes[REFERENCE][row] = f32::NEG_INFINITY;
            self.lanes[TOTAL][row] = 0.0;
            // Positions are kept as the bits of numbers.
            for (lane, value) in [(FROM, from), (TO, to), (POSITION, position)] {
                self.lanes[lane][row] = f32::from_bits(value.cast_unsigned());
            }
            self.lanes[SLOPE][row] = slope;
            self.lanes[QUERY_UNIT][row] = 0.0;
        }
    }

    /// Multiplies two by two tiles, with what 1 stands for in the rows of both; the results of a row are `stride` numbers from those
    /// of the one before.
    ///
    /// # Safety
    /// The tiles, units and results are valid memory, and without `WORDS` the matrix unit is configured.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn multiply(product: &Product, units: [*const f32; 2], out: *mut f32, stride: usize) {
        // SAFETY: forwarded from the caller.
        unsafe {
            if WORDS {
                product.multiply_two_words(units, out, stride)
            } else {
                product.multiply_two(out, stride)
            }
        }
    }

    /// Products of the keys with all queries.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn score(&mut self) {
        let steps = self.key_dim / PAIR;
        let next = steps * TILE_FLOATS * 4;
        for cell in (0..TILE).step_by(PAIR) {
            for row in (0..self.rows).step_by(PAIR) {
                let product = Product {
                    x: self.keys[cell / 16 * steps * TILE_FLOATS..].as_ptr().cast(),
                    next_x: next,
                    weights: self.queries[row / 16 * steps * TILE_FLOATS..].as_ptr().cast(),
                    next_weights: next,
                    steps,
                    from: std::ptr::null(),
                };
                // SAFETY: tiles are configured; two by two of them lie in the buffers, as do the sums.
                unsafe {
                    let units = [self.key_units[cell..].as_ptr(), self.lanes[QUERY_UNIT][row..].as_ptr()];
                    let out = self.scores[cell * self.rows + row..].as_mut_ptr();
                    Self::multiply(&product, units, out, self.rows)
                }
            }
        }
    }

    /// Adds the weighted values to the sums of all rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn add_values(&mut self) {
        let steps = TILE / PAIR;
        let next = steps * TILE_FLOATS * 4;
        let blocks = self.value_dim / PAIR;
        for row in (0..self.rows).step_by(PAIR) {
            for block in 0..blocks {
                let sums = self.sums[(row / PAIR * blocks + block) * BLOCK_FLOATS..].as_mut_ptr();
                let product = Product {
                    x: self.weights[row / 16 * steps * TILE_FLOATS..].as_ptr().cast(),
                    next_x: next,
                    weights: self.values[block * 2 * steps * TILE_FLOATS..].as_ptr().cast(),
                    next_weights: next,
                    steps,
                    from: sums,
                };
                // SAFETY: as in `score`; the block of sums is read before it is written.
                unsafe {
                    let units =
                        [self.lanes[WEIGHT_UNIT][row..].as_ptr(), self.value_units[block * PAIR..].as_ptr()];
                    Self::multiply(&product, units, sums, PAIR)
                }
            }
        }
    }

    /// Turns the scores of the 16 rows from `first` on into weights, and rescales sums whose reference moves.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn weigh(&mut self, attention: &Attention<'_>, first: usize, positions: &[i32], masked: bool) {
        let stride = self.rows;
        let scores = self.scores[first..].as_mut_ptr();
        let plain =
            !masked && positions.len() == TILE && attention.softcap.is_none() && attention.alibi.is_none();
        // SAFETY: column `first` of all 64 rows of scores, and 16 numbers of each vector of lanes, exist.
        unsafe {
            let lane = |index: usize| _mm512_loadu_ps(self.lanes[index].as_ptr().add(first));
            let mut largest = _mm512_set1_ps(f32::NEG_INFINITY);
            // What scores are multiplied by to become powers of two.
            let mut factor = _mm512_set1_ps(attention.scale * LOG2_E);
            if plain {
                for cell in 0..TILE {
                    largest = _mm512_max_ps(_mm512_loadu_ps(scores.add(cell * stride)), largest);
                }
                largest = _mm512_mul_ps(largest, factor);
            } else {
                if let Some(cap) = attention.softcap {
                    let (inner, outer) = (Avx512::splat(attention.scale / cap), Avx512::splat(cap * LOG2_E));
                    for cell in 0..positions.len() {
                        let score = Avx512::load(scores.add(cell * stride));
                        tanh(score.mul(inner)).mul(outer).store(scores.add(cell * stride));
                    }
                    factor = _mm512_set1_ps(1.0);
                }
                let bits = |index: usize| _mm512_castps_si512(lane(index));
                let (from, to, position) = (bits(FROM), bits(TO), bits(POSITION));
                let slope = _mm512_mul_ps(lane(SLOPE), _mm512_set1_ps(-LOG2_E));
                let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
                for cell in 0..TILE {
                    let place = scores.add(cell * stride);
                    let Some(own) = positions.get(cell) else {
                        _mm512_storeu_ps(place, hidden);
                        continue;
                    };
                    let own = _mm512_set1_epi32(*own);
                    let mut score = _mm512_mul_ps(_mm512_loadu_ps(place), factor);
                    if attention.alibi.is_some() {
                        let distance = _mm512_abs_epi32(_mm512_sub_epi32(own, position));
                        score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(distance), slope, score);
                    }
                    let seen = _mm512_cmple_epi32_mask(from, own) & _mm512_cmple_epi32_mask(own, to);
                    score = _mm512_mask_blend_ps(seen, hidden, score);
                    largest = _mm512_max_ps(score, largest);
                    _mm512_storeu_ps(place, score);
                }
                factor = _mm512_set1_ps(1.0);
            }

            let old = lane(REFERENCE);
            let limit = _mm512_add_ps(old, _mm512_set1_ps(SLACK));
            let moved = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(largest, limit);
            let reference = _mm512_mask_blend_ps(moved, old, largest);
            let mut total = lane(TOTAL);
            if moved != 0 {
                let shrink = power_of_two(_mm512_sub_ps(old, reference));
                total = _mm512_mask_mul_ps(total, moved, total, shrink);
                let mut shrinks = [0.0_f32; 16];
                _mm512_storeu_ps(shrinks.as_mut_ptr(), shrink);
                for (row, shrink) in (first..first + 16).zip(shrinks) {
                    if moved >> (row - first) & 1 != 0 {
                        self.shrink(row, shrink);
                    }
                }
            }
            // Integers are relative to the largest weight of the tile. Where nothing was seen, all scores are as low as can be and
            // any base will do.
            let top = if WORDS { largest } else { reference };
            let none = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(top, _mm512_set1_ps(f32::NEG_INFINITY));
            let top = _mm512_mask_blend_ps(none, top, _mm512_setzero_ps());
            let base = if WORDS { _mm512_set1_ps(words::WEIGHT_BITS) } else { _mm512_setzero_ps() };
            let base = _mm512_sub_ps(base, top);
            let [mut evens, mut odds] = [_mm512_setzero_ps(); 2];
            for step in 0..TILE / PAIR {
                let mut lines = [_mm512_setzero_si512(); 16];
                for pair in 0..16 {
                    let place = scores.add((step * PAIR + 2 * pair) * stride);
                    let even = power_of_two(_mm512_fmadd_ps(_mm512_loadu_ps(place), factor, base));
                    let odd = power_of_two(_mm512_fmadd_ps(_mm512_loadu_ps(place.add(stride)), factor, base));
                    evens = _mm512_add_ps(evens, even);
                    odds = _mm512_add_ps(odds, odd);
                    lines[pair] =
                        if WORDS { words::side_by_side(even, odd) } else { brain::side_by_side(even, odd) };
                }
                let tile = (first / 16 * (TILE / PAIR) + step) * TILE_FLOATS;
                store_lines(transpose(lines), &mut self.weights[tile..][..TILE_FLOATS]);
            }
            let mut added = _mm512_add_ps(evens, odds);
            if WORDS {
                let unit = _mm512_mask_blend_ps(
                    none,
                    power_of_two(_mm512_sub_ps(_mm512_sub_ps(_mm512_setzero_ps(), base), reference)),
                    _mm512_setzero_ps(),
                );
                _mm512_storeu_ps(self.lanes[WEIGHT_UNIT].as_mut_ptr().add(first), unit);
                added = _mm512_mul_ps(added, unit);
            }
            _mm512_storeu_ps(self.lanes[TOTAL].as_mut_ptr().add(first), _mm512_add_ps(total, added));
            _mm512_storeu_ps(self.lanes[REFERENCE].as_mut_ptr().add(first), reference);
        }
    }

    /// Multiplies the sums of a row.
    fn shrink(&mut self, row: usize, factor: f32) {
        let blocks = self.value_dim / PAIR;
        for block in 0..blocks {
            let place = (row / PAIR * blocks + block) * BLOCK_FLOATS + row % PAIR * PAIR;
            self.sums[place..][..PAIR].iter_mut().for_each(|sum| *sum *= factor);
        }
    }

    /// Writes the results.
    fn finish(&self, attention: &Attention<'_>, output: &RowsMut<'_>, work: &Work<'_>) {
        let heads = attention.heads;
        let group = heads.group();
        let blocks = self.value_dim / PAIR;
        for row in 0..work.block.tokens * group {
            let (reference, total) = (self.lanes[REFERENCE][row], self.lanes[TOTAL][row]);
            let sink = attention.sinks.map(|sinks| sinks[work.kv_head * group + row % group] * LOG2_E);
            let factor = match sink {
                _ if total == 0.0 => 0.0,
                None => 1.0 / total,
                Some(sink) => {
                    let new = reference.max(sink);
                    let shrink = (reference - new).exp2();
                    shrink / (total * shrink + (sink - new).exp2())
                }
            };
            let out = super::tile::output_row(output, heads, work, row);
            for (block, out) in out.chunks_mut(PAIR).enumerate() {
                let place = (row / PAIR * blocks + block) * BLOCK_FLOATS + row % PAIR * PAIR;
                for (out, sum) in out.iter_mut().zip(&self.sums[place..]) {
                    *out = sum * factor;
                }
            }
        }
    }
}

/// 2 to the power `x`, to 4e-6 of itself, far below what is kept of it; 0 for minus infinity.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn power_of_two(x: __m512) -> __m512 {
    /// Rounds down to integers and raises no exceptions.
    const FRACTION: i32 = 0x09;
    let f = _mm512_reduce_ps::<FRACTION>(x);
    let mut p = _mm512_set1_ps(1.353_416_7e-2);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.201_146_4e-2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.414_427_5e-1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.930_038_3e-1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.000_002_6));
    _mm512_scalef_ps(p, x)
}

/// Writes 16 vectors one after the other.
#[target_feature(enable = "avx512f")]
#[inline]
fn store_lines(lines: [__m512i; 16], target: &mut [f32]) {
    for (line, target) in lines.into_iter().zip(target.chunks_exact_mut(16)) {
        // SAFETY: 16 numbers have the bytes of a vector.
        unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), line) }
    }
}

/// Exchanges rows and columns of 16 by 16 numbers of 32 bits.
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    let (mut t, mut u, mut out) = ([zero; 16], [zero; 16], [zero; 16]);
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // Quarter q of u[4 i + j] has column 4 q + j of rows 4 i to 4 i + 3.
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for j in 0..4 {
        const EVEN: i32 = 0x88;
        const ODD: i32 = 0xdd;
        let a = _mm512_shuffle_i32x4::<EVEN>(u[j], u[4 + j]);
        let b = _mm512_shuffle_i32x4::<EVEN>(u[8 + j], u[12 + j]);
        let c = _mm512_shuffle_i32x4::<ODD>(u[j], u[4 + j]);
        let d = _mm512_shuffle_i32x4::<ODD>(u[8 + j], u[12 + j]);
        out[j] = _mm512_shuffle_i32x4::<EVEN>(a, b);
        out[4 + j] = _mm512_shuffle_i32x4::<EVEN>(c, d);
        out[8 + j] = _mm512_shuffle_i32x4::<ODD>(a, b);
        out[12 + j] = _mm512_shuffle_i32x4::<ODD>(c, d);
    }
    out
}
