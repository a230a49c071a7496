//! Stages that carry a state from token to token, and attention over compressed blocks.

use puna_graph::{StateId, Symbol, WeightId};

use crate::frame::Frame;
use crate::kernels::block_attention::BlockAttention;
use crate::kernels::recurrent::{
    Cells, Convolution, DeltaInputs, DeltaRule, LinearAttention, LinearInputs, Run, Rwkv7, Rwkv7Inputs,
    ScanInputs, SelectiveScan, shift_rows,
};
use crate::pool::Scratch;
use puna_backend::arena::SlotId;

/// A recurrence over the rows of a step.
#[derive(Clone, Debug)]
pub struct RecurrentTask {
    /// What is carried.
    pub state: StateId,
    /// Which recurrence.
    pub kind: Recurrence,
    /// Result.
    pub out: SlotId,
}

/// See the kernels of the same names.
#[derive(Clone, Debug)]
pub enum Recurrence {
    /// `taps` are `[kernel, channels]`.
    Convolution { x: SlotId, taps: Vec<f32>, bias: Option<WeightId>, kernel: usize, dilation: usize },
    /// The row before.
    Shift { x: SlotId },
    /// Inputs: `u`, time steps, `b`, `c`.
    Scan { inputs: [SlotId; 4], shape: ScanShape, rates: WeightId, skip: WeightId },
    /// Inputs: queries, keys, values, decays, rates.
    Delta { inputs: [SlotId; 5], rule: DeltaRule },
    /// Inputs: queries, keys, values, and decays unless heads have one each.
    Linear {
        inputs: [SlotId; 3],
        decays: Option<SlotId>,
        head_decays: Option<Vec<f32>>,
        bonus: Option<WeightId>,
        shape: LinearShape,
    },
    /// Inputs: receptances, decays, keys, values, removal keys, rates.
    Rwkv7 { inputs: [SlotId; 6], shape: Rwkv7 },
}

/// Extents of a selective scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanShape {
    pub heads: usize,
    pub dim: usize,
    pub size: usize,
    pub groups: usize,
}

/// Extents of linear attention.
#[derive(Clone, Copy, Debug)]
pub struct LinearShape {
    pub heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub scale: f32,
}

/// A chunk's part of `count` heads or channels, in parts of at least `least`.
fn part(frame: &Frame<'_>, count: usize, least: usize) -> usize {
    count.div_ceil(4 * frame.threads).next_multiple_of(least).max(least)
}

/// Channels that are worth a chunk, a multiple of every vector's lanes.
const CHANNELS: usize = 256;

impl RecurrentTask {
    /// Number of chunks.
    pub fn chunks(&self, frame: &Frame<'_>) -> usize {
        match &self.kind {
            Recurrence::Convolution { x, .. } | Recurrence::Shift { x } => {
                let width = frame.arena.slot(*x).width;
                width.div_ceil(part(frame, width, CHANNELS))
            }
            Recurrence::Scan { shape, .. } => shape.heads.div_ceil(part(frame, shape.heads, 1)),
            Recurrence::Delta { rule, .. } => rule.chunks(),
            Recurrence::Linear { shape, .. } => linear(shape, None, None).chunks(),
            Recurrence::Rwkv7 { shape, .. } => shape.chunks(),
        }
    }

    /// Bytes of scratch memory of a chunk.
    pub fn scratch_bytes(&self) -> usize {
        4 * match &self.kind {
            Recurrence::Delta { rule, .. } => rule.scratch_floats(),
            Recurrence::Rwkv7 { shape, .. } => shape.scratch_floats(),
            Recurrence::Convolution { .. }
            | Recurrence::Shift { .. }
            | Recurrence::Scan { .. }
            | Recurrence::Linear { .. } => 0,
        }
    }

    /// Runs one chunk.
    pub fn run(&self, frame: &Frame<'_>, chunk: usize, scratch: &mut Scratch<'_>) {
        let features = frame.features;
        let recurrent = frame.caches.recurrent();
        let runs = recurrent.runs(frame.step);
        let (runs, cells): (&[Run], Cells) = (&runs, recurrent.cells(self.state));
        let y = &frame.rows_mut(self.out);
        let vector = |weight: WeightId| frame.weights.vector(weight);
        // SAFETY of all calls: chunks have ranges or numbers of their own, and no other task runs.
        match &self.kind {
            Recurrence::Convolution { x, taps, bias, kernel, dilation } => {
                let x = frame.rows(*x);
                let size = part(frame, x.width(), CHANNELS);
                let channels = chunk * size..((chunk + 1) * size).min(x.width());
                let bias = bias.map(vector);
                let convolution = Convolution { taps, bias, kernel: *kernel, dilation: *dilation };
                // SAFETY: see above.
                unsafe { convolution.run(features, runs, cells, x, y, channels) };
            }
            Recurrence::Shift { x } => {
                let x = frame.rows(*x);
                let size = part(frame, x.width(), CHANNELS);
                // SAFETY: see above.
                unsafe { shift_rows(runs, cells, x, y, chunk * size..((chunk + 1) * size).min(x.width())) };
            }
            Recurrence::Scan { inputs, shape, rates, skip } => {
                let [u, steps, b, c] = inputs.map(|slot| frame.rows(slot));
                let ScanShape { heads, dim, size, groups } = *shape;
                let (rates, skip) = (vector(*rates), vector(*skip));
                let scan = SelectiveScan { heads, dim, size, groups, rates, skip };
                let count = part(frame, heads, 1);
                let range = chunk * count..((chunk + 1) * count).min(heads);
                // SAFETY: see above.
                unsafe { scan.run(features, runs, cells, ScanInputs { u, steps, b, c }, y, range) };
            }
            Recurrence::Delta { inputs, rule } => {
                let [queries, keys, values, decays, rates] = inputs.map(|slot| frame.rows(slot));
                let inputs = DeltaInputs { queries, keys, values, decays, rates };
                // SAFETY: see above.
                unsafe { rule.run(features, runs, cells, inputs, y, chunk, scratch.floats()) };
            }
            Recurrence::Linear { inputs, decays, head_decays, bonus, shape } => {
                let [queries, keys, values] = inputs.map(|slot| frame.rows(slot));
                let decays = decays.map(|slot| frame.rows(slot));
                let attention = linear(shape, head_decays.as_deref(), bonus.map(vector));
                let inputs = LinearInputs { queries, keys, values, decays };
                // SAFETY: see above.
                unsafe { attention.run(features, runs, cells, inputs, y, chunk) };
            }
            Recurrence::Rwkv7 { inputs, shape } => {
                let [receptances, decays, keys, values, removals, rates] =
                    inputs.map(|slot| frame.rows(slot));
                let inputs = Rwkv7Inputs { receptances, decays, keys, values, removals, rates };
                // SAFETY: see above.
                unsafe { shape.run(features, runs, cells, inputs, y, chunk, scratch.floats()) };
            }
        }
    }
}

fn linear<'a>(
    shape: &LinearShape,
    head_decays: Option<&'a [f32]>,
    bonus: Option<&'a [f32]>,
) -> LinearAttention<'a> {
    let LinearShape { heads, key_dim, value_dim, scale } = *shape;
    LinearAttention { heads, key_dim, value_dim, scale, head_decays, bonus }
}

/// Attention over a window and compressed blocks; the caches were written before.
#[derive(Clone, Debug)]
pub struct BlockAttentionTask {
    /// The operation.
    pub op: puna_graph::ops::BlockAttention,
    /// Query heads.
    pub heads: usize,
    /// Logit per head without a value.
    pub sinks: Option<WeightId>,
    /// Queries.
    pub queries: SlotId,
    /// Result.
    pub out: SlotId,
}

impl BlockAttentionTask {
    /// Heads of a chunk: those of one row share the decoded keys.
    const HEADS: usize = 8;

    fn groups(&self) -> usize {
        self.heads.div_ceil(Self::HEADS)
    }

    /// Number of chunks.
    pub fn chunks(&self, frame: &Frame<'_>) -> usize {
        frame.extent(Symbol::Tokens) * self.groups()
    }

    /// Bytes of scratch memory of a chunk.
    pub fn scratch_bytes(&self, frame: &Frame<'_>) -> usize {
        let width = frame.arena.slot(self.queries).width / self.heads.max(1);
        4 * BlockAttention::scratch_floats(width, Self::HEADS)
    }

    /// Runs one chunk: some heads of one row.
    pub fn run(&self, frame: &Frame<'_>, chunk: usize, scratch: &mut Scratch<'_>) {
        let (row, group) = (chunk / self.groups(), chunk % self.groups());
        let heads = group * Self::HEADS..((group + 1) * Self::HEADS).min(self.heads);
        let cache = frame.caches.cache(self.op.state);
        let step = &frame.step.groups[cache.group()];
        let position = frame.step.positions[row];
        let (mut near, mut blocks) = (Vec::new(), Vec::new());
        let span = step.spans.iter().find(|span| span.tokens.contains(&(row as u32)));
        for cell in span.into_iter().flat_map(|span| span.cells.iter().cloned().flatten()) {
            let (own, block) = self.op.sees(position, step.cell_positions[cell as usize]);
            near.extend(own.then_some(cell));
            blocks.extend(block.then_some(cell));
        }
        let queries = frame.rows(self.queries);
        let width = queries.width() / self.heads;
        let attention = BlockAttention {
            rows: cache.keys(),
            blocks: cache.values(),
            seen: [&near, &blocks],
            scale: self.op.scale,
            sinks: self.sinks.map(|sinks| frame.weights.vector(sinks)),
            width,
        };
        let out = frame.rows_mut(self.out);
        let (first, count) = (heads.start * width, heads.len() * width);
        // SAFETY: the chunk's heads of the row are its own; both rows have `heads · width` numbers.
        let (queries, out) = unsafe {
            (
                std::slice::from_raw_parts(queries.row(row).add(first), count),
                std::slice::from_raw_parts_mut(out.row(row).add(first), count),
            )
        };
        attention.run(frame.features, queries, out, heads, scratch.floats());
    }
}
