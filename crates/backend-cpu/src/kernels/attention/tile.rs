//! The work of a chunk: tiles of keys and values against rows of queries.

use std::ops::Range;

use puna_quant::DType;

use super::plan::{Block, Work, padded};
use super::products::{
    Ahead, RowPointers, add_values, is_direct, place_key, score_direct, score_integers, score_tile,
};
use super::{Attention, Heads, Inputs, Partials, Plan, SPLIT, TILE};
use crate::kernels::rows::RowsMut;
use crate::kernels::vector::math::{exp, tanh};
use crate::kernels::vector::{Kernel, Vector};

pub(super) struct Run<'a> {
    pub(super) attention: &'a Attention<'a>,
    pub(super) plan: &'a Plan,
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) output: &'a RowsMut<'a>,
    pub(super) partials: Partials,
    pub(super) chunk: usize,
    pub(super) scratch: &'a mut [f32],
}

pub(super) struct Merge<'a> {
    pub(super) attention: &'a Attention<'a>,
    pub(super) plan: &'a Plan,
    pub(super) output: &'a RowsMut<'a>,
    pub(super) partials: Partials,
    pub(super) chunk: usize,
    pub(super) scratch: &'a mut [f32],
}

/// A softmax in progress for a number of rows: sums of weighted values, largest scores, sums of weights.
struct State<'a> {
    sums: &'a mut [f32],
    largest: &'a mut [f32],
    total: &'a mut [f32],
    /// Numbers from a row of `sums` to the next, a whole number of vectors.
    stride: usize,
}

/// Cuts `count` numbers off the front of `rest`, which stays on the boundaries of cache lines.
pub(super) fn take<'a>(rest: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (front, back) = std::mem::take(rest).split_at_mut(count.next_multiple_of(16));
    *rest = back;
    &mut front[..count]
}

impl<'a> State<'a> {
    fn new(rest: &mut &'a mut [f32], rows: usize, value_dim: usize) -> Self {
        let stride = padded(value_dim);
        let (sums, largest, total) = (take(rest, rows * stride), take(rest, rows), take(rest, rows));
        let mut state = Self { sums, largest, total, stride };
        state.clear();
        state
    }

    fn clear(&mut self) {
        self.sums.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        self.total.fill(0.0);
    }

    /// Adds a partial result of row `row`: `sums` has `value_dim` numbers, its softmax the given largest score
    /// and sum of weights.
    #[inline(always)]
    fn fold<V: Vector>(&mut self, row: usize, sums: &[f32], largest: f32, total: f32) {
        if largest == f32::NEG_INFINITY {
            return;
        }
        let new = self.largest[row].max(largest);
        let (old_factor, factor) = (exp_one::<V>(self.largest[row] - new), exp_one::<V>(largest - new));
        let own = &mut self.sums[row * self.stride..][..sums.len()];
        for (own, value) in own.iter_mut().zip(sums) {
            *own = *own * old_factor + *value * factor;
        }
        self.total[row] = self.total[row] * old_factor + total * factor;
        self.largest[row] = new;
    }

    /// Writes the result of row `row`, or zeros if it saw nothing.
    #[inline(always)]
    fn finish<V: Vector>(&self, row: usize, sink: Option<f32>, output: &mut [f32]) {
        let (largest, total) = (self.largest[row], self.total[row]);
        let sums = &self.sums[row * self.stride..][..output.len()];
        if largest == f32::NEG_INFINITY {
            output.fill(0.0);
            return;
        }
        let factor = match sink {
            None => 1.0 / total,
            Some(sink) => {
                let new = largest.max(sink);
                let shrink = exp_one::<V>(largest - new);
                shrink / (total * shrink + exp_one::<V>(sink - new))
            }
        };
        for (out, sum) in output.iter_mut().zip(sums) {
            *out = sum * factor;
        }
    }
}

/// The vector exponential of one number, so that all paths agree to the bit.
#[inline(always)]
fn exp_one<V: Vector>(x: f32) -> f32 {
    exp(V::splat(x)).largest()
}

/// Row `row` of a block is token `row / group`, query head `kv_head * group + row % group`. The part of the
/// output row that belongs to it.
#[allow(clippy::mut_from_ref)] // chunks share the view and write different parts
pub(super) fn output_row<'a>(
    output: &'a RowsMut<'_>,
    heads: Heads,
    work: &Work<'_>,
    row: usize,
) -> &'a mut [f32] {
    let group = heads.group();
    let (token, head) = (work.block.first_token + row / group, work.kv_head * group + row % group);
    // SAFETY: the head's part of the row lies in it, and only the chunk of this token and head touches it.
    unsafe { std::slice::from_raw_parts_mut(output.row(token).add(head * heads.value_dim), heads.value_dim) }
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { attention, plan, output, partials, chunk, mut scratch } = self;
        let heads = attention.heads;
        let work = plan.merge_work(chunk);
        let rows = work.block.tokens * heads.group();
        let mut state = State::new(&mut scratch, rows, heads.value_dim);
        for split in 0..work.block.cells.div_ceil(SPLIT) {
            let length = rows * (heads.value_dim + 2);
            let data = partials.at(plan.partial_offset(work.block, work.kv_head, split), length);
            // SAFETY: written by the chunk of this split, which is complete.
            let data = unsafe { std::slice::from_raw_parts(data, length) };
            let (sums, rest) = data.split_at(rows * heads.value_dim);
            let (largest, total) = rest.split_at(rows);
            for row in 0..rows {
                let sums = &sums[row * heads.value_dim..][..heads.value_dim];
                state.fold::<V>(row, sums, largest[row], total[row]);
            }
        }
        finish_all::<V>(attention, &state, output, &work, rows);
    }
}

#[inline(always)]
fn finish_all<V: Vector>(
    attention: &Attention<'_>,
    state: &State<'_>,
    output: &RowsMut<'_>,
    work: &Work<'_>,
    rows: usize,
) {
    let group = attention.heads.group();
    for row in 0..rows {
        let sink = attention.sinks.map(|sinks| sinks[work.kv_head * group + row % group]);
        state.finish::<V>(row, sink, output_row(output, attention.heads, work, row));
    }
}

impl Kernel for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { attention, plan, inputs, output, partials, chunk, mut scratch } = self;
        let heads = attention.heads;
        let group = heads.group();
        let work = plan.work(chunk);
        let block = work.block;
        let rows = block.tokens * group;
        let (key_stride, value_stride) = (padded(heads.key_dim), padded(heads.value_dim));

        let mut part = State::new(&mut scratch, rows, heads.value_dim);
        let mut whole = State::new(&mut scratch, rows, heads.value_dim);
        let mut tile = Tile {
            queries: take(&mut scratch, rows * key_stride),
            integers: bytemuck::cast_slice_mut(take(&mut scratch, rows * key_stride / 2)),
            factors: take(&mut scratch, rows),
            key: take(&mut scratch, key_stride),
            keys: take(&mut scratch, TILE * key_stride),
            values: take(&mut scratch, TILE * value_stride),
            zeros: take(&mut scratch, value_stride),
            scores: take(&mut scratch, rows * TILE),
            distances: take(&mut scratch, TILE),
            begin: 0,
            cells: [0; TILE],
            positions: [0; TILE],
            key_rows: [std::ptr::null(); TILE],
            value_rows: [std::ptr::null(); TILE],
            few_rows: rows <= FEW_ROWS,
        };
        tile.clear_padding(heads);
        for row in 0..rows {
            let (token, head) = (block.first_token + row / group, work.kv_head * group + row % group);
            let query = inputs.queries.row(token);
            let target = &mut tile.queries[row * key_stride..][..heads.key_dim];
            // SAFETY: the head's part of the row lies in it.
            unsafe {
                let query = query.add(head * heads.key_dim);
                std::ptr::copy_nonoverlapping(query, target.as_mut_ptr(), heads.key_dim);
            }
            tile.factors[row] = attention.scale;
        }
        if inputs.keys.format().dtype() == DType::Q8_0 {
            tile.round_queries::<V>(key_stride, attention.scale);
        }

        let splits = block.cells.div_ceil(SPLIT);
        let only = splits == 1 || work.split.is_some();
        let (first, last) = work.split.map_or((0, splits), |split| (split, split + 1));
        for split in first..last {
            if split != first {
                part.clear();
            }
            let end = block.cells.min((split + 1) * SPLIT);
            for start in (split * SPLIT..end).step_by(TILE) {
                tile.add::<V>(attention, plan, inputs, &work, start, &mut part);
            }
            if !only {
                for row in 0..rows {
                    let sums = &part.sums[row * part.stride..][..heads.value_dim];
                    whole.fold::<V>(row, sums, part.largest[row], part.total[row]);
                }
            }
        }

        match work.split {
            Some(split) => {
                let length = rows * (heads.value_dim + 2);
                let data = partials.at(plan.partial_offset(block, work.kv_head, split), length);
                // SAFETY: this chunk alone writes this part.
                let data = unsafe { std::slice::from_raw_parts_mut(data, length) };
                let (sums, rest) = data.split_at_mut(rows * heads.value_dim);
                for row in 0..rows {
                    sums[row * heads.value_dim..][..heads.value_dim]
                        .copy_from_slice(&part.sums[row * part.stride..][..heads.value_dim]);
                }
                rest[..rows].copy_from_slice(part.largest);
                rest[rows..].copy_from_slice(part.total);
            }
            None => {
                // With one split, folding it into nothing would give the same bits.
                let state = if only { &part } else { &whole };
                finish_all::<V>(attention, state, output, &work, rows);
            }
        }
    }
}

/// Up to this many query rows, keys and values are converted in registers each time instead of once to memory.
const FEW_ROWS: usize = 8;

/// Memory for one tile; rows of queries, keys and values are padded with zeros to whole vectors.
pub(super) struct Tile<'a> {
    queries: &'a mut [f32],
    /// The queries as integers, for keys in integers.
    integers: &'a mut [i16],
    /// What each row's products with the keys are multiplied by.
    factors: &'a mut [f32],
    /// A key, and the tile of keys in the order that the products want.
    key: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// Stands for a hidden value that is not finite.
    zeros: &'a mut [f32],
    /// `[rows, TILE]`: scores, then weights.
    scores: &'a mut [f32],
    /// Distance in positions of each cell from the token at hand.
    distances: &'a mut [f32],
    /// The place of the first cell; none is seen before it.
    begin: usize,
    cells: [u32; TILE],
    positions: [i32; TILE],
    key_rows: RowPointers,
    value_rows: RowPointers,
    few_rows: bool,
}

impl Tile<'_> {
    /// Zeros where rows are longer than the heads.
    fn clear_padding(&mut self, heads: Heads) {
        for (rows, dim) in [
            (&mut *self.queries, heads.key_dim),
            (&mut *self.key, heads.key_dim),
            (&mut *self.values, heads.value_dim),
        ] {
            for row in rows.chunks_mut(padded(dim)) {
                row[dim..].fill(0.0);
            }
        }
    }

    /// Rounds the queries to 16-bit integers with one scale for each row: 1.5e-5 of its largest number, far
    /// finer than the 8-bit keys they meet.
    #[inline(always)]
    fn round_queries<V: Vector>(&mut self, stride: usize, scale: f32) {
        for (row, query) in self.queries.chunks(stride).enumerate() {
            let integers = self.integers[row * stride..][..stride].as_mut_ptr();
            // SAFETY: the row is a whole number of vectors.
            unsafe {
                let mut largest = V::splat(0.0);
                for d in (0..stride).step_by(V::LANES) {
                    largest = largest.max(V::load(query.as_ptr().add(d)).abs());
                }
                let step = largest.largest() / 32766.0;
                let inverse = V::splat(if step > 0.0 { 1.0 / step } else { 0.0 });
                for d in (0..stride).step_by(V::LANES) {
                    V::load(query.as_ptr().add(d)).mul(inverse).store_i16(integers.add(d));
                }
                self.factors[row] = step * scale;
            }
        }
    }

    /// Adds the cells from number `start` of the block's span on to all rows.
    #[inline(always)]
    fn add<V: Vector>(
        &mut self,
        attention: &Attention<'_>,
        plan: &Plan,
        inputs: &Inputs<'_>,
        work: &Work<'_>,
        start: usize,
        state: &mut State<'_>,
    ) {
        let (heads, block) = (attention.heads, work.block);
        let Range { start: begin, end: count } = plan.tile_cells(block, start, &mut self.cells);
        if begin == count {
            return;
        }
        let (mut low, mut high) = (i32::MAX, i32::MIN);
        for i in begin..count {
            let position = inputs.cell_positions[self.cells[i] as usize];
            self.positions[i] = position;
            (low, high) = (low.min(position), high.max(position));
        }
        let (seen, masked) = Self::visibility(attention, inputs, block, (low, high));
        if !seen {
            return;
        }

        for i in begin..count {
            let cell = self.cells[i] as usize;
            self.key_rows[i] = inputs.keys.row(work.kv_head, cell);
            self.value_rows[i] = inputs.values.row(work.kv_head, cell);
        }
        // Places before the span's first cell are hidden ones, with what that cell has.
        self.begin = begin;
        let (position, key, value) = (self.positions[begin], self.key_rows[begin], self.value_rows[begin]);
        self.positions[..begin].fill(position);
        self.key_rows[..begin].fill(key);
        self.value_rows[..begin].fill(value);
        // Whole vectors of products are computed; those of the tile's rest are ignored.
        self.key_rows[count..].fill(key);
        self.score::<V>(inputs, heads, count);
        self.weigh::<V>(attention, inputs, work, (low, high), count, state);
        if !masked && begin == 0 {
            return self.add_weighted::<V>(inputs, heads, count, state);
        }
        self.decode_values::<V>(inputs, heads, count);
        if self.are_values_finite::<V>(heads, count) {
            self.add_decoded::<V>(inputs, 0..self.factors.len(), count, state);
        } else {
            self.add_seen::<V>(attention, inputs, block, count, state);
        }
    }

    /// Products of all queries with the keys of the tile.
    #[inline(always)]
    fn score<V: Vector>(&mut self, inputs: &Inputs<'_>, heads: Heads, count: usize) {
        let format = inputs.keys.format();
        let stride = padded(heads.key_dim);
        let rows = self.factors.len();
        let extents = (rows, heads.key_dim, stride);
        let (queries, scores) = (self.queries.as_ptr(), self.scores.as_mut_ptr());
        // The values of the tile come next.
        let ahead = Ahead { rows: &self.value_rows, offset: 0, bytes: inputs.values.format().bytes() };
        // SAFETY: the tile has `rows` padded queries and `TILE` keys, all of which are rows of the cache.
        unsafe {
            if format.dtype() == DType::Q8_0 {
                score_integers::<V>(self.integers.as_ptr(), &self.key_rows, extents, count, scores, ahead);
            } else if self.few_rows && is_direct::<V>(format.dtype(), heads.key_dim) {
                score_direct::<V>(format.dtype(), queries, &self.key_rows, extents, count, scores, ahead);
            } else {
                let key = self.key.as_mut_ptr();
                for (i, &row) in self.key_rows[..count].iter().enumerate() {
                    format.decode_with::<V>(row, key);
                    place_key::<V>(key, stride, i, self.keys.as_mut_ptr());
                }
                score_tile::<V>(queries, self.keys.as_ptr(), stride, rows, count, scores);
            }
        }
    }

    /// Adds the weighted values of the tile to the sums of all rows.
    #[inline(always)]
    fn add_weighted<V: Vector>(
        &mut self,
        inputs: &Inputs<'_>,
        heads: Heads,
        count: usize,
        state: &mut State<'_>,
    ) {
        let format = inputs.values.format();
        let (dim, stride) = (heads.value_dim, state.stride);
        let rows = self.factors.len();
        let (weights, sums) = (self.scores.as_ptr(), state.sums.as_mut_ptr());
        // Then come the keys of the next tile, most likely in the cells that follow.
        let offset = TILE * inputs.keys.row_stride();
        let ahead = Ahead { rows: &self.key_rows, offset, bytes: inputs.keys.format().bytes() };
        // SAFETY: the tile has `rows` rows of weights and sums, and `count` values, rows of the cache.
        unsafe {
            let is_ready = self.few_rows || format.dtype() == DType::F32;
            if is_ready && is_direct::<V>(format.dtype(), dim) {
                let extents = (rows, dim, stride);
                add_values::<V>(format.dtype(), weights, &self.value_rows, extents, count, sums, ahead);
                return;
            }
        }
        self.decode_values::<V>(inputs, heads, count);
        self.add_decoded::<V>(inputs, 0..rows, count, state);
    }

    /// Converts the values of the tile and points at the results.
    #[inline(always)]
    fn decode_values<V: Vector>(&mut self, inputs: &Inputs<'_>, heads: Heads, count: usize) {
        let (dim, stride) = (heads.value_dim, padded(heads.value_dim));
        for (i, row) in self.value_rows[..count].iter_mut().enumerate() {
            let value = self.values[i * stride..][..dim].as_mut_ptr();
            // SAFETY: a row of the cache, and room for its numbers.
            unsafe { inputs.values.format().decode_with::<V>(*row, value) };
            *row = value.cast_const().cast();
        }
    }

    /// Adds the converted values to the sums of some rows.
    #[inline(always)]
    fn add_decoded<V: Vector>(
        &self,
        inputs: &Inputs<'_>,
        rows: Range<usize>,
        count: usize,
        state: &mut State<'_>,
    ) {
        let stride = state.stride;
        let offset = TILE * inputs.keys.row_stride();
        let bytes = if rows.start == 0 { inputs.keys.format().bytes() } else { 0 };
        let ahead = Ahead { rows: &self.key_rows, offset, bytes };
        let weights = self.scores[rows.start * TILE..][..rows.len() * TILE].as_ptr();
        let sums = state.sums[rows.start * stride..][..rows.len() * stride].as_mut_ptr();
        let extents = (rows.len(), stride, stride);
        // SAFETY: these rows of weights and sums exist, and the values are padded rows of the tile.
        unsafe { add_values::<V>(DType::F32, weights, &self.value_rows, extents, count, sums, ahead) };
    }

    /// Whether all converted values of the tile are finite.
    #[inline(always)]
    fn are_values_finite<V: Vector>(&self, heads: Heads, count: usize) -> bool {
        let mut zeros = V::splat(0.0);
        for i in (0..count * padded(heads.value_dim)).step_by(V::LANES) {
            // SAFETY: the rows of the tile are whole vectors.
            let value = unsafe { V::load(self.values.as_ptr().add(i)) };
            zeros = value.fma(V::splat(0.0), zeros);
        }
        zeros.sum() == 0.0
    }

    /// As [`Tile::add_decoded`] for all rows, where a hidden value may be anything: a weight of zero would not keep
    /// an infinite one out of the sum.
    #[inline(always)]
    fn add_seen<V: Vector>(
        &mut self,
        attention: &Attention<'_>,
        inputs: &Inputs<'_>,
        block: &Block,
        count: usize,
        state: &mut State<'_>,
    ) {
        let group = attention.heads.group();
        let values = self.value_rows;
        self.zeros.fill(0.0);
        let zeros: *const u8 = self.zeros.as_ptr().cast();
        for token in 0..block.tokens {
            let (from, to) = attention.mask.interval(inputs.token_positions[block.first_token + token]);
            for i in 0..count {
                let is_seen = i >= self.begin && from <= self.positions[i] && self.positions[i] <= to;
                self.value_rows[i] = if is_seen { values[i] } else { zeros };
            }
            self.add_decoded::<V>(inputs, token * group..(token + 1) * group, count, state);
        }
    }

    /// Whether any token of the block sees a position in `low..=high`, and whether any does not see all of them.
    #[inline(always)]
    pub(super) fn visibility(
        attention: &Attention<'_>,
        inputs: &Inputs<'_>,
        block: &Block,
        (low, high): (i32, i32),
    ) -> (bool, bool) {
        let (mut seen, mut masked) = (false, false);
        for token in block.first_token..block.first_token + block.tokens {
            let (from, to) = attention.mask.interval(inputs.token_positions[token]);
            seen |= from <= high && low <= to;
            masked |= low < from || to < high;
        }
        (seen, masked)
    }

    /// Puts the bias of each cell, seen from a position, where distances are for ALiBi.
    #[inline(always)]
    fn look_up(&mut self, table: &[f32], heads: usize, head: usize, position: i32, count: usize) {
        let width = table.len() / heads;
        let (row, reach) = (&table[head * width..][..width], (width / 2) as i64);
        for i in 0..count {
            let offset = i64::from(self.positions[i]) - i64::from(position);
            self.distances[i] = row[(offset.clamp(-reach, reach) + reach) as usize];
        }
        self.distances[count..].fill(0.0);
    }

    /// Turns scores into weights relative to each row's largest score so far, and rescales the rows' sums if that
    /// has grown.
    #[inline(always)]
    fn weigh<V: Vector>(
        &mut self,
        attention: &Attention<'_>,
        inputs: &Inputs<'_>,
        work: &Work<'_>,
        (low, high): (i32, i32),
        count: usize,
        state: &mut State<'_>,
    ) {
        let group = attention.heads.group();
        let used = count.next_multiple_of(V::LANES);
        for token in 0..work.block.tokens {
            let position = inputs.token_positions[work.block.first_token + token];
            let (from, to) = attention.mask.interval(position);
            let is_masked = low < from || to < high || self.begin > 0;
            // Negative where the cell is hidden from the token.
            let mut seen = [-1.0; TILE];
            for i in self.begin..count {
                let cell = self.positions[i];
                seen[i] = if from <= cell && cell <= to { 1.0 } else { -1.0 };
            }
            if attention.alibi.is_some() {
                for i in 0..count {
                    self.distances[i] = (i64::from(self.positions[i]) - i64::from(position)).abs() as f32;
                }
                self.distances[count..].fill(0.0);
            }
            for in_group in 0..group {
                let row = token * group + in_group;
                if let Some(table) = attention.relative {
                    let head = work.kv_head * group + in_group;
                    self.look_up(table, attention.heads.heads, head, position, count);
                }
                let scores = self.scores[row * TILE..][..TILE].as_mut_ptr();
                let scale = V::splat(self.factors[row]);
                let alibi = attention.alibi.map(|slopes| -slopes[work.kv_head * group + in_group]);
                let slope = alibi.or(attention.relative.map(|_| 1.0));
                let mut largest = V::splat(f32::NEG_INFINITY);
                for i in (0..used).step_by(V::LANES) {
                    // SAFETY: `used` is at most `TILE`, a whole number of vectors.
                    unsafe {
                        let mut score = V::load(scores.add(i)).mul(scale);
                        if let Some(cap) = attention.softcap {
                            let cap = V::splat(cap);
                            score = tanh(score.div(cap)).mul(cap);
                        }
                        if let Some(slope) = slope {
                            score = V::load(self.distances.as_ptr().add(i)).fma(V::splat(slope), score);
                        }
                        if is_masked || i + V::LANES > count {
                            let hidden = V::splat(f32::NEG_INFINITY);
                            score = V::load(seen.as_ptr().add(i)).select_less(V::splat(0.0), hidden, score);
                        }
                        largest = largest.max(score);
                        score.store(scores.add(i));
                    }
                }
                let old = state.largest[row];
                let new = old.max(largest.largest());
                if new == f32::NEG_INFINITY {
                    self.scores[row * TILE..][..used].fill(0.0);
                    // A maximum passes over what is not a number: if there were scores, none of them was one, and
                    // so the result must not be either.
                    if seen[..count].contains(&1.0) {
                        (state.largest[row], state.total[row]) = (0.0, f32::NAN);
                    }
                    continue;
                }
                let shift = V::splat(new);
                let mut total = V::splat(0.0);
                for i in (0..used).step_by(V::LANES) {
                    // SAFETY: as above.
                    unsafe {
                        let weight = exp(V::load(scores.add(i)).sub(shift));
                        total = total.add(weight);
                        weight.store(scores.add(i));
                    }
                }
                if new > old {
                    let factor = exp_one::<V>(old - new);
                    for sum in &mut state.sums[row * state.stride..][..state.stride] {
                        *sum *= factor;
                    }
                    state.total[row] *= factor;
                    state.largest[row] = new;
                }
                state.total[row] += total.sum();
            }
        }
    }
}
