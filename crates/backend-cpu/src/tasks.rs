//! The stages of a program.

use std::time::Duration;

use puna_graph::ops::MaskRule;
use puna_graph::ops::OpDef;
use puna_graph::{Array, Element, Graph, Operand, StateId, Symbol, WeightId};

use crate::apart::Piece;
use crate::frame::Frame;
use crate::kernels::attention::{Attention, Heads, Inputs, Partials, Plan};
use crate::kernels::matmul::{Activation, ActivationFormat, OutputView, Plan as MatrixPlan};
use crate::pool::{Scratch, Stage};
use crate::product::Product;
use crate::recurrent_tasks::{BlockAttentionTask, RecurrentTask};
use crate::row_ops::{Prepared, RowOp};
use puna_backend::arena::SlotId;

/// One stage of a program.
#[derive(Debug)]
pub enum Task {
    /// Row-wise operations on the rows of one axis.
    Rows {
        /// The axis.
        symbol: Symbol,
        /// What to do with each row, in order.
        ops: Vec<RowOp>,
    },
    /// Matrices that read one prepared activation.
    MatMul(MatMulTask),
    /// Attention of a layer.
    Attention(AttentionTask),
    /// Second half of a layer's attention when its cells are split.
    AttentionMerge(AttentionTask),
    /// Matrices of the experts that the router chose.
    Experts(ExpertsTask),
    /// A recurrence.
    Recurrent(RecurrentTask),
    /// Attention over a window and compressed blocks.
    BlockAttention(BlockAttentionTask),
    /// An operation without a kernel, by its definition.
    Evaluate(EvaluateTask),
}

/// See [`Task::MatMul`].
#[derive(Debug)]
pub struct MatMulTask {
    /// The activation.
    pub prepared: Prepared,
    /// Its slot before preparation, for its extents.
    pub x: SlotId,
    /// Result of each matrix, in the order of `prepared.readers`.
    pub outs: Vec<SlotId>,
}

/// See [`Task::Attention`].
#[derive(Clone, Debug)]
pub struct AttentionTask {
    /// Cache of the layer.
    pub state: StateId,
    /// Heads.
    pub heads: Heads,
    /// Index of the step's attention plan for these heads and cells.
    pub plan: usize,
    /// Factor on query · key.
    pub scale: f32,
    /// Smooth limit of scores.
    pub soft_cap: Option<f32>,
    /// Visible cells.
    pub mask: MaskRule,
    /// Logit per head without a value.
    pub sinks: Option<WeightId>,
    /// ALiBi slope per head.
    pub alibi: Option<Vec<f32>>,
    /// Bias by offset, a row per head.
    pub relative: Option<Vec<f32>>,
    /// Rows of the queries.
    pub readers: Symbol,
    /// Queries.
    pub queries: SlotId,
    /// Result.
    pub out: SlotId,
}

/// See [`Task::Experts`].
#[derive(Debug)]
pub struct ExpertsTask {
    /// Experts' matrices.
    pub weight: WeightId,
    /// Activation: a row per token, or per chosen expert.
    pub x: SlotId,
    /// Chosen experts, integers; without them every token uses all in order.
    pub chosen: Option<SlotId>,
    /// Chosen experts per token.
    pub used: usize,
    /// Result: a row of the matrix per chosen expert.
    pub out: SlotId,
}

/// See [`Task::Evaluate`].
#[derive(Debug)]
pub struct EvaluateTask {
    /// Index of the node.
    pub node: usize,
    /// Slots of its inputs that are values.
    pub inputs: Vec<Option<SlotId>>,
    /// Result.
    pub out: SlotId,
}

/// A task with the step it runs for.
pub struct Bound<'a> {
    /// The task.
    pub task: &'a Task,
    /// Rows of one chunk of the task, and its chunks, where these follow from the extents alone.
    pub cut: Cut,
    /// The next task that multiplies by matrices of which each chunk reads its own part.
    pub next: Option<(&'a MatMulTask, Cut)>,
    /// The step.
    pub frame: &'a Frame<'a>,
    /// The graph, for operations that are evaluated.
    pub graph: &'a Graph,
    /// Plans of the step's attention.
    pub plans: &'a [Plan],
    /// Memory of split attention.
    pub partials: Partials,
}

/// Rows of a chunk, and how many chunks there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cut {
    /// Rows.
    pub size: usize,
    /// Chunks.
    pub chunks: usize,
}

impl Task {
    /// How the task is cut for this step; tasks that ask others for it have none.
    pub fn cut(&self, frame: &Frame<'_>) -> Cut {
        match self {
            Task::Rows { symbol, .. } => row_chunks(frame.extent(*symbol), frame.threads),
            Task::MatMul(task) => task.cut(frame),
            _ => Cut::default(),
        }
    }
}

/// Rows of a chunk, and how many chunks: enough for all threads to share, few enough to be worth claiming.
fn row_chunks(rows: usize, threads: usize) -> Cut {
    let size = rows.div_ceil(4 * threads).max(1);
    Cut { size, chunks: rows.div_ceil(size) }
}

impl Stage for Bound<'_> {
    fn chunks(&self) -> usize {
        match self.task {
            Task::Rows { .. } | Task::MatMul(_) => self.cut.chunks,
            Task::Attention(task) => self.plans[task.plan].chunks(),
            Task::AttentionMerge(task) => self.plans[task.plan].merge_chunks(),
            Task::Experts(task) => self.frame.weights.matrices(task.weight).len() * task.block(self.frame).1,
            Task::Recurrent(task) => task.chunks(self.frame),
            Task::BlockAttention(task) => task.chunks(self.frame),
            Task::Evaluate(_) => 1,
        }
    }

    fn run(&self, chunk: usize, scratch: &mut Scratch<'_>) {
        match self.task {
            Task::Rows { symbol, ops } => {
                let rows = self.frame.extent(*symbol);
                let size = self.cut.size;
                let range = chunk * size..((chunk + 1) * size).min(rows);
                ops.iter().for_each(|op| op.run(self.frame, range.clone()));
            }
            Task::MatMul(task) => task.run(self, chunk, scratch),
            Task::Attention(task) => task.run(self, chunk, scratch, false),
            Task::AttentionMerge(task) => task.run(self, chunk, scratch, true),
            Task::Experts(task) => task.run(self.frame, chunk, scratch),
            Task::Recurrent(task) => task.run(self.frame, chunk, scratch),
            Task::BlockAttention(task) => task.run(self.frame, chunk, scratch),
            Task::Evaluate(task) => task.run(self.frame, self.graph),
        }
    }

    fn patience(&self) -> Option<Duration> {
        match self.task {
            Task::MatMul(task) if task.in_pieces(self.frame) => Some(task.patience(self.frame, self.cut)),
            _ => None,
        }
    }

    fn piece(&self, chunk: usize, worker: usize) -> Option<Piece> {
        match self.task {
            Task::MatMul(task) if task.in_pieces(self.frame) => {
                task.product(self, chunk, worker).map(Piece::new)
            }
            _ => None,
        }
    }

    fn scratch_bytes(&self) -> usize {
        match self.task {
            Task::Rows { .. } | Task::Evaluate(_) => 0,
            Task::MatMul(task) => task.scratch_bytes(self.frame),
            Task::Attention(task) | Task::AttentionMerge(task) => 4 * self.plans[task.plan].scratch_floats(),
            Task::Experts(task) => task.scratch_bytes(self.frame),
            Task::Recurrent(task) => task.scratch_bytes(),
            Task::BlockAttention(task) => task.scratch_bytes(self.frame),
        }
    }
}

impl MatMulTask {
    /// Rows of one chunk, a multiple of what the kernels share: as much work as is worth claiming, and not so
    /// much that the other threads wait long for the last chunk.
    fn chunk_rows(&self, frame: &Frame<'_>) -> usize {
        /// Kernels for one token read up to four groups of rows at once, those for many two.
        const PANEL: usize = 4 * MatrixPlan::ROW_GRANULARITY;
        /// Weight bytes that a thread reads in some ten microseconds: streams (a quarter or half of it) worth following.
        const BYTES: usize = 384 << 10;
        /// Products that a thread computes in about twenty microseconds.
        const PRODUCTS: usize = 8 << 20;
        let slot = frame.arena.slot(self.x);
        let products = (frame.extent(slot.symbol) * slot.width).max(1);
        let matrix = &frame.weights.matrices(self.prepared.readers[0])[0];
        let row_bytes = (matrix.bytes() / matrix.rows().max(1)).max(1);
        let total: usize = self.prepared.readers.iter().map(|weight| frame.weights.rows(*weight)).sum();
        let worth = (BYTES / row_bytes).min(PRODUCTS / products);
        worth.min(total / (8 * frame.threads)).next_multiple_of(PANEL).max(PANEL)
    }

    fn cut(&self, frame: &Frame<'_>) -> Cut {
        if frame.extent(frame.arena.slot(self.x).symbol) == 0 {
            return Cut::default();
        }
        let size = self.chunk_rows(frame);
        let rows = self.prepared.readers.iter().map(|weight| frame.weights.rows(*weight));
        Cut { size, chunks: rows.map(|rows| rows.div_ceil(size)).sum() }
    }

    /// Which matrix a chunk belongs to, and its first row.
    fn chunk_place(&self, frame: &Frame<'_>, cut: Cut, mut chunk: usize) -> Option<(usize, usize)> {
        for (index, weight) in self.prepared.readers.iter().enumerate() {
            let chunks = frame.weights.rows(*weight).div_ceil(cut.size);
            if chunk < chunks {
                return Some((index, chunk * cut.size));
            }
            chunk -= chunks;
        }
        None
    }

    /// Where the weights of a chunk lie; null if there is no such chunk.
    fn weights_of(&self, frame: &Frame<'_>, cut: Cut, chunk: usize) -> *const u8 {
        let Some((index, row)) = self.chunk_place(frame, cut, chunk) else { return std::ptr::null() };
        frame.weights.matrices(self.prepared.readers[index])[0].place(row)
    }

    fn scratch_bytes(&self, frame: &Frame<'_>) -> usize {
        let rows = frame.extent(frame.arena.slot(self.x).symbol);
        let pieces = self.in_pieces(frame).then(|| self.cut(frame).size);
        let bytes = self.prepared.readers.iter().map(|reader| {
            let matrix = &frame.weights.matrices(*reader)[0];
            let format = frame.weights.activation(*reader, frame.precision(), rows);
            let apart = pieces.map_or(0, |size| Product::apart_bytes(format, rows, matrix.columns(), size));
            matrix.scratch_bytes(format) + apart
        });
        bytes.max().unwrap_or(0)
    }

    /// How long to wait for a chunk that another worker has at hand: longer than it should take, but little beside the
    /// milliseconds for which the system takes a core away.
    fn patience(&self, frame: &Frame<'_>, cut: Cut) -> Duration {
        /// What a thread reads of a matrix in a microsecond at least, unless it has no core.
        const BYTES: usize = 4096;
        let matrix = &frame.weights.matrices(self.prepared.readers[0])[0];
        let bytes = matrix.bytes() / matrix.rows().max(1) * cut.size;
        Duration::from_micros(20 + (bytes / BYTES) as u64)
    }

    /// Whether chunks are computed apart: where the step has so few rows that a chunk takes microseconds.
    fn in_pieces(&self, frame: &Frame<'_>) -> bool {
        const ROWS: usize = 8;
        frame.extent(frame.arena.slot(self.x).symbol) <= ROWS
    }

    fn run(&self, bound: &Bound<'_>, chunk: usize, scratch: &mut Scratch<'_>) {
        if let Some(product) = self.product(bound, chunk, scratch.worker) {
            // SAFETY: the stage is open, and its chunks write other rows of the results.
            unsafe { product.compute_in_place(scratch.bytes) }
        }
    }

    /// A chunk as `worker` computes it; none if there is no such chunk.
    fn product(&self, bound: &Bound<'_>, chunk: usize, worker: usize) -> Option<Product> {
        let (frame, cut) = (bound.frame, bound.cut);
        let slot = frame.arena.slot(self.x);
        let (tokens, columns) = (frame.extent(slot.symbol), slot.width);
        let (index, row) = self.chunk_place(frame, cut, chunk)?;
        let weight = self.prepared.readers[index];
        let rows = frame.weights.rows(weight);
        let (format, place) = self.prepared.form(frame, weight, tokens);
        // The worker most likely goes on with the next chunk of its share, then with its share of the next task.
        let share = |cut: Cut, worker: usize| worker * cut.chunks / frame.threads;
        let next = match bound.next {
            _ if chunk + 1 < share(cut, worker + 1) => self.weights_of(frame, cut, chunk + 1),
            Some((task, cut)) => task.weights_of(frame, cut, share(cut, worker)),
            None => std::ptr::null(),
        };
        Some(Product {
            features: frame.features,
            matrix: &frame.weights.matrices(weight)[0],
            format,
            tokens,
            columns,
            activation: frame.pointer(place),
            first: row,
            count: cut.size.min(rows - row),
            out: frame.pointer(self.outs[index]).cast(),
            stride: rows,
            next,
        })
    }
}

impl AttentionTask {
    fn run(&self, bound: &Bound<'_>, chunk: usize, scratch: &mut Scratch<'_>, merge: bool) {
        let frame = bound.frame;
        let cache = frame.caches.cache(self.state);
        let attention = Attention {
            heads: self.heads,
            scale: self.scale,
            softcap: self.soft_cap,
            mask: self.mask,
            sinks: self.sinks.map(|sinks| frame.weights.vector(sinks)),
            alibi: self.alibi.as_deref(),
            relative: self.relative.as_deref(),
            rounds: frame.precision().attention_rounds(cache.keys().format().dtype()),
        };
        let plan = &bound.plans[self.plan];
        let output = frame.rows_mut(self.out);
        if merge {
            attention.merge(frame.features, plan, &output, bound.partials, chunk, scratch.floats());
            return;
        }
        let inputs = Inputs {
            queries: frame.rows(self.queries),
            keys: cache.keys(),
            values: cache.values(),
            token_positions: frame.step.positions_of(self.readers),
            cell_positions: &frame.step.groups[cache.group()].cell_positions,
        };
        attention.run(frame.features, plan, &inputs, &output, bound.partials, chunk, scratch.floats());
    }
}

impl ExpertsTask {
    /// Rows of the activation and of the result at most multiplied at once.
    const BATCH: usize = 64;

    /// Form of the activations, by the rows that an expert gets on average.
    fn format(&self, frame: &Frame<'_>) -> ActivationFormat {
        let matrices = frame.weights.matrices(self.weight);
        let rows = frame.extent(frame.arena.slot(self.out).symbol) * self.used;
        let rows = frame.precision().rows(rows.div_ceil(matrices.len()));
        matrices[0].activation_of_experts(frame.features, rows)
    }

    fn format_bytes(&self, frame: &Frame<'_>) -> (usize, usize, usize) {
        let matrix = &frame.weights.matrices(self.weight)[0];
        let format = self.format(frame);
        let prepared = format.bytes(Self::BATCH, matrix.columns()).next_multiple_of(64);
        let results = (Self::BATCH * matrix.rows() * 4).next_multiple_of(64);
        (prepared, results, matrix.scratch_bytes(format))
    }

    fn scratch_bytes(&self, frame: &Frame<'_>) -> usize {
        let (prepared, results, kernel) = self.format_bytes(frame);
        prepared + results + kernel
    }

    /// Rows of one chunk of an expert's matrix, and chunks of the matrix: a token uses few experts, so the threads
    /// share each of them.
    fn block(&self, frame: &Frame<'_>) -> (usize, usize) {
        let rows = frame.weights.matrices(self.weight)[0].rows();
        let size = rows.div_ceil(2 * frame.threads).next_multiple_of(2 * MatrixPlan::ROW_GRANULARITY);
        (size, rows.div_ceil(size))
    }

    /// Rows of one expert: gathers the activations that chose it, multiplies them and puts the results in their
    /// places.
    fn run(&self, frame: &Frame<'_>, chunk: usize, scratch: &mut Scratch<'_>) {
        let (size, blocks) = self.block(frame);
        let (expert, block) = (chunk / blocks, chunk % blocks);
        let matrix = &frame.weights.matrices(self.weight)[expert];
        let range = block * size..((block + 1) * size).min(matrix.rows());
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let x = frame.floats(self.x);
        let (per_slot, slots): (bool, Vec<usize>) = match self.chosen {
            Some(chosen) => {
                let chosen = frame.integers(chosen);
                let slots = (0..chosen.len()).filter(|slot| chosen[*slot] as usize == expert);
                (x.len() == chosen.len() * columns, slots.collect())
            }
            None => (true, (expert..x.len() / columns).step_by(self.used).collect()),
        };
        let (prepared_bytes, result_bytes, _) = self.format_bytes(frame);
        let format = self.format(frame);
        let (prepared, rest) = scratch.bytes.split_at_mut(prepared_bytes);
        let (results, kernel) = rest.split_at_mut(result_bytes);
        for slots in slots.chunks(Self::BATCH) {
            for (row, slot) in slots.iter().enumerate() {
                let source = if per_slot { *slot } else { slot / self.used };
                let x = &x[source * columns..][..columns];
                // SAFETY: `prepared` has room for BATCH rows and is this worker's own.
                unsafe { format.prepare(frame.features, x, columns, row..row + 1, prepared.as_mut_ptr()) };
            }
            let bytes = &prepared[..format.bytes(slots.len(), columns)];
            let activation = Activation { format, tokens: slots.len(), columns, bytes };
            let view = OutputView { pointer: results.as_mut_ptr().cast(), stride: rows };
            // SAFETY: `results` has room for BATCH rows and is this worker's own.
            unsafe {
                matrix.multiply(frame.features, &activation, range.clone(), view, std::ptr::null(), kernel)
            };
            for (row, slot) in slots.iter().enumerate() {
                // SAFETY: the result has a row for each slot; no other expert has this slot, and no other chunk
                // of the expert this range.
                unsafe {
                    let target = frame.pointer(self.out).cast::<f32>().add(slot * rows + range.start);
                    let source = results.as_ptr().cast::<f32>().add(row * rows + range.start);
                    std::ptr::copy_nonoverlapping(source, target, range.len());
                }
            }
        }
    }
}

impl EvaluateTask {
    fn run(&self, frame: &Frame<'_>, graph: &Graph) {
        let node = &graph.nodes[self.node];
        let inputs: Vec<Array> = node
            .inputs
            .iter()
            .zip(&self.inputs)
            .map(|(operand, slot)| match (operand, slot) {
                (Operand::Value(value), Some(slot)) => read_slot(frame, graph, *value, *slot),
                (Operand::Weight(weight), _) => {
                    let shape = graph.weights[weight.index()].shape.iter().map(|n| *n as usize).collect();
                    Array::f32(shape, frame.weights.vector(*weight).to_vec())
                }
                (Operand::Input(input), _) => {
                    let data = frame.step.input(*input);
                    Array::i32(vec![data.len()], data)
                }
                (Operand::Value(_), None) => unreachable!("values have slots"),
            })
            .collect();
        let inputs: Vec<&Array> = inputs.iter().collect();
        let result = frame.caches.recurrent().with(|memory| {
            let mut context = puna_graph::evaluate::Context { graph, step: frame.step, memory };
            node.op.evaluate(&inputs, &mut context)
        });
        write_slot(frame, &result, node.ty.element, self.out);
    }
}

/// The concrete extents of a value in this step.
pub fn extents(frame: &Frame<'_>, graph: &Graph, value: puna_graph::ValueId) -> Vec<usize> {
    let dims = graph.value_type(value).shape.iter();
    dims.map(|dim| match dim {
        puna_graph::Dim::Fixed(extent) => *extent as usize,
        puna_graph::Dim::Of(symbol) => frame.extent(*symbol),
    })
    .collect()
}

/// A slot's value as an array.
pub fn read_slot(frame: &Frame<'_>, graph: &Graph, value: puna_graph::ValueId, slot: SlotId) -> Array {
    let shape = extents(frame, graph, value);
    match graph.value_type(value).element {
        Element::F32 => Array::f32(shape, frame.floats(slot).to_vec()),
        Element::I32 => Array::i32(shape, frame.integers(slot).to_vec()),
    }
}

/// Stores an array in a slot of as many numbers.
pub fn write_slot(frame: &Frame<'_>, array: &Array, element: Element, slot: SlotId) {
    let (source, count): (*const u8, usize) = match element {
        Element::F32 => (array.floats().as_ptr().cast(), array.floats().len()),
        Element::I32 => (array.integers().as_ptr().cast(), array.integers().len()),
    };
    let place = frame.arena.slot(slot);
    assert_eq!(count, frame.extent(place.symbol) * place.width, "numbers of the value");
    // SAFETY: the slot has room for so many numbers of four bytes, and no other chunk runs.
    unsafe { std::ptr::copy_nonoverlapping(source, frame.pointer(slot), count * 4) };
}
