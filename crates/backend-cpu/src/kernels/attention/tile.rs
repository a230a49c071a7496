//! The work of a chunk: tiles of keys and values against rows of queries.

use super::plan::{Block, Work, padded};
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

/// Cuts `count` numbers off the front of `rest`.
fn take<'a>(rest: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (front, back) = std::mem::take(rest).split_at_mut(count);
    *rest = back;
    front
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
fn output_row<'a>(output: &'a RowsMut<'_>, heads: Heads, work: &Work<'_>, row: usize) -> &'a mut [f32] {
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
            keys: take(&mut scratch, TILE * key_stride),
            values: take(&mut scratch, TILE * value_stride),
            scores: take(&mut scratch, rows * TILE),
            distances: take(&mut scratch, TILE),
            cells: [0; TILE],
            positions: [0; TILE],
        };
        tile.queries.fill(0.0);
        tile.keys.fill(0.0);
        tile.values.fill(0.0);
        for row in 0..rows {
            let (token, head) = (block.first_token + row / group, work.kv_head * group + row % group);
            let query = inputs.queries.row(token);
            let target = &mut tile.queries[row * key_stride..][..heads.key_dim];
            // SAFETY: the head's part of the row lies in it.
            unsafe {
                let query = query.add(head * heads.key_dim);
                std::ptr::copy_nonoverlapping(query, target.as_mut_ptr(), heads.key_dim);
            }
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

/// Memory for one tile; rows of queries, keys and values are padded with zeros to whole vectors.
struct Tile<'a> {
    queries: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// `[rows, TILE]`: scores, then weights.
    scores: &'a mut [f32],
    /// Distance in positions of each cell from the token at hand.
    distances: &'a mut [f32],
    cells: [u32; TILE],
    positions: [i32; TILE],
}

impl Tile<'_> {
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
        let count = plan.tile_cells(block, start, &mut self.cells);
        let (mut low, mut high) = (i32::MAX, i32::MIN);
        for i in 0..count {
            let position = inputs.cell_positions[self.cells[i] as usize];
            self.positions[i] = position;
            (low, high) = (low.min(position), high.max(position));
        }
        if !Self::is_seen(attention, inputs, block, low, high) {
            return;
        }

        let rows = block.tokens * heads.group();
        let (key_stride, value_stride) = (padded(heads.key_dim), padded(heads.value_dim));
        for i in 0..count {
            let cell = self.cells[i] as usize;
            let (key, value) = (inputs.keys.row(work.kv_head, cell), inputs.values.row(work.kv_head, cell));
            let own_key = self.keys[i * key_stride..][..heads.key_dim].as_mut_ptr();
            let own_value = self.values[i * value_stride..][..heads.value_dim].as_mut_ptr();
            // SAFETY: rows of the cache decode to as many numbers as the slices have.
            unsafe {
                inputs.keys.format().decode_with::<V>(key, own_key);
                inputs.values.format().decode_with::<V>(value, own_value);
            }
        }
        let used = count.next_multiple_of(V::LANES);
        self.keys[count * key_stride..used * key_stride].fill(0.0);
        // SAFETY: the tile has `rows` padded queries and `TILE` padded keys and values.
        unsafe {
            score_rows::<V>(self.queries, self.keys, key_stride, used, self.scores);
        }
        self.weigh::<V>(attention, inputs, work, (low, high), count, state);
        let (weights, values) = (self.scores.as_ptr(), self.values.as_ptr());
        // SAFETY: as above; the sums are padded like the values.
        unsafe { add_values::<V>(weights, values, state.sums.as_mut_ptr(), rows, count, value_stride) }
    }

    /// Whether any token of the block sees a position in `low..=high`.
    #[inline(always)]
    fn is_seen(attention: &Attention<'_>, inputs: &Inputs<'_>, block: &Block, low: i32, high: i32) -> bool {
        for token in block.first_token..block.first_token + block.tokens {
            let (from, to) = attention.mask.interval(inputs.token_positions[token]);
            if from <= high && low <= to {
                return true;
            }
        }
        false
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
        let scale = V::splat(attention.scale);
        for token in 0..work.block.tokens {
            let position = inputs.token_positions[work.block.first_token + token];
            let (from, to) = attention.mask.interval(position);
            let is_masked = low < from || to < high;
            // Negative where the cell is hidden from the token.
            let mut seen = [-1.0; TILE];
            for i in 0..count {
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
                let scores = self.scores[row * TILE..][..TILE].as_mut_ptr();
                let slope = attention.alibi.map(|slopes| -slopes[work.kv_head * group + in_group]);
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

/// Products of every query row with `count` keys (a multiple of the lanes), to `scores` (`[rows, TILE]`).
///
/// # Safety
/// `queries` is rows of `stride` numbers, `keys` at least `count` of them, `scores` has a row for each query.
#[inline(always)]
unsafe fn score_rows<V: Vector>(
    queries: &[f32],
    keys: &[f32],
    stride: usize,
    count: usize,
    scores: &mut [f32],
) {
    let rows = queries.len() / stride;
    let (queries, keys, scores) = (queries.as_ptr(), keys.as_ptr(), scores.as_mut_ptr());
    for row in 0..rows {
        for cell in (0..count).step_by(V::LANES) {
            // SAFETY: promised by the caller.
            unsafe {
                let query = queries.add(row * stride);
                let key = keys.add(cell * stride);
                let mut sums = [V::splat(0.0); 16];
                for d in (0..stride).step_by(V::LANES) {
                    let query = V::load(query.add(d));
                    for lane in 0..V::LANES {
                        sums[lane] = V::load(key.add(lane * stride + d)).fma(query, sums[lane]);
                    }
                }
                V::sums(&sums[..V::LANES]).store(scores.add(row * TILE + cell));
            }
        }
    }
}

/// Adds `weights[row][cell] * values[cell]` for all cells, in their order, to each row of `sums`.
///
/// # Safety
/// `weights` is `[rows, TILE]`, `values` `[count, stride]`, `sums` `[rows, stride]`; `stride` is a multiple of 16.
#[inline(always)]
unsafe fn add_values<V: Vector>(
    weights: *const f32,
    values: *const f32,
    sums: *mut f32,
    rows: usize,
    count: usize,
    stride: usize,
) {
    let mut row = 0;
    // SAFETY: promised by the caller.
    unsafe {
        while row < rows {
            let (weights, sums) = (weights.add(row * TILE), sums.add(row * stride));
            match rows - row {
                1 => add_values_rows::<V, 1>(weights, values, sums, count, stride),
                2 => add_values_rows::<V, 2>(weights, values, sums, count, stride),
                3 => add_values_rows::<V, 3>(weights, values, sums, count, stride),
                _ => add_values_rows::<V, 4>(weights, values, sums, count, stride),
            }
            row += 4;
        }
    }
}

/// # Safety
/// As [`add_values`] with `ROWS` rows.
#[inline(always)]
unsafe fn add_values_rows<V: Vector, const ROWS: usize>(
    weights: *const f32,
    values: *const f32,
    sums: *mut f32,
    count: usize,
    stride: usize,
) {
    let mut d = 0;
    // SAFETY: promised by the caller; blocks of columns never reach over the stride.
    unsafe {
        // Four vectors side by side fill the 32 registers of AVX-512, two the 16 of AVX2.
        if V::LANES == 16 {
            while d + 4 * V::LANES <= stride {
                add_values_block::<V, ROWS, 4>(weights, values.add(d), sums.add(d), count, stride);
                d += 4 * V::LANES;
            }
        }
        while d + 2 * V::LANES <= stride {
            add_values_block::<V, ROWS, 2>(weights, values.add(d), sums.add(d), count, stride);
            d += 2 * V::LANES;
        }
        while d < stride {
            add_values_block::<V, ROWS, 1>(weights, values.add(d), sums.add(d), count, stride);
            d += V::LANES;
        }
    }
}

/// # Safety
/// As [`add_values`] with `ROWS` rows and `COLUMNS` vectors of each row.
#[inline(always)]
unsafe fn add_values_block<V: Vector, const ROWS: usize, const COLUMNS: usize>(
    weights: *const f32,
    values: *const f32,
    sums: *mut f32,
    count: usize,
    stride: usize,
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
            let mut value = [V::splat(0.0); COLUMNS];
            for column in 0..COLUMNS {
                value[column] = V::load(values.add(cell * stride + column * V::LANES));
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
