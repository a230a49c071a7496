//! Operations that treat each row of the step alone. Consecutive ones run as one task: a chunk of rows goes
//! through all of them while it is in the cache.

use std::ops::Range;

use puna_graph::ops::{OpDef, PositionScale, RopePlace};
use puna_graph::{Array, Dim, Element, Operand, StateId, Symbol, ValueId, WeightId};

use crate::frame::Frame;
use crate::kernels::activation::{Binary, Unary, binary, unary};
use crate::kernels::cache;
use crate::kernels::matmul::ActivationFormat;
use crate::kernels::norm::{Norm, NormKind};
use crate::kernels::rope::Rope;
use crate::kernels::rows::{Rows, RowsMut};
use puna_backend::arena::SlotId;

/// One row-wise operation.
#[derive(Clone, Debug)]
pub enum RowOp {
    /// Decodes the rows of a table at the tokens of an axis.
    Embed { table: WeightId, symbol: Symbol, out: SlotId },
    /// Decodes the rows of a table at the step's positions; one past the end counts as the last.
    EmbedPositions { table: WeightId, out: SlotId },
    /// Copies the rows that leave the model.
    OutputRows { x: SlotId, out: SlotId },
    /// Normalises groups of each row.
    Norm {
        kind: NormKind,
        epsilon: f32,
        groups: usize,
        weight: Option<WeightId>,
        bias: Option<WeightId>,
        x: SlotId,
        out: SlotId,
    },
    /// Sines and cosines of the step's positions.
    RopeTable { rope: Rope, frequencies: Vec<f64>, magnitude: f32, place: RopePlace, out: SlotId },
    /// Rotates heads.
    Rope { rope: Rope, table: SlotId, x: SlotId, out: SlotId },
    /// Stores keys and values in their cells.
    CacheWrite { state: StateId, keys: SlotId, values: SlotId },
    /// A function of each number.
    Unary { function: Unary, x: SlotId, out: SlotId },
    /// A function of two values.
    Binary { function: Binary, a: SlotId, b: SlotId, out: SlotId },
    /// A function of a value and a vector that is repeated along each row.
    WithVector { function: Binary, x: SlotId, vector: WeightId, out: SlotId },
    /// Copies part of each group of `group` numbers.
    Slice { group: usize, start: usize, length: usize, x: SlotId, out: SlotId },
    /// Multiplies groups of each row by a factor each; the factors are a value or a vector.
    ScaleGroups { factors: Operands, x: SlotId, out: SlotId },
    /// Adds the bias of the chosen expert to each of a token's rows.
    AddExpertBias { biases: WeightId, chosen: SlotId, x: SlotId, out: SlotId },
    /// Multiplies each row by a factor that grows with its position.
    PositionScale { scale: PositionScale, x: SlotId, out: SlotId },
    /// Decodes the rows of a table that integers name, side by side; one past the end counts as the last.
    EmbedChosen { table: WeightId, chosen: SlotId, out: SlotId },
    /// Groups of `a` and of `b` in turn.
    Concat { a: SlotId, b: SlotId, groups: [usize; 2], out: SlotId },
    /// Each group of `group` numbers so many times.
    Repeat { group: usize, times: usize, x: SlotId, out: SlotId },
    /// The sum of each group of `group` numbers.
    SumGroups { group: usize, x: SlotId, out: SlotId },
    /// The sum of a row's parts as wide as the result, each times its share.
    SumParts { x: SlotId, shares: Option<SlotId>, out: SlotId },
    /// A node by its definition, row by row.
    Evaluate { node: usize, inputs: Vec<Option<SlotId>>, out: SlotId },
    /// Converts an activation for the matrices that read it.
    Prepare { x: SlotId, prepared: Prepared },
}

/// A value of the step or a vector of the file.
#[derive(Clone, Copy, Debug)]
pub enum Operands {
    /// A value.
    Slot(SlotId),
    /// A vector, the same for every row.
    Vector(WeightId),
}

/// An activation in the forms that its matrices may ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepared {
    /// The matrices.
    pub readers: Vec<WeightId>,
    /// Memory of each form that some number of tokens asks for.
    pub forms: Vec<(ActivationFormat, SlotId)>,
}

impl Prepared {
    /// The form a matrix asks for in this step.
    pub fn form(&self, frame: &Frame<'_>, reader: WeightId, rows: usize) -> (ActivationFormat, SlotId) {
        let format = frame.weights.activation(reader, frame.precision(), rows);
        let form = self.forms.iter().find(|(other, _)| *other == format);
        *form.expect("every form that a matrix may ask for has memory")
    }
}

impl RowOp {
    /// Runs the operation for the rows of `range`.
    pub fn run(&self, frame: &Frame<'_>, range: Range<usize>) {
        let features = frame.features;
        match self {
            RowOp::Norm { kind, epsilon, groups, weight, bias, x, out } => {
                let vector = |weight: &Option<WeightId>| weight.map(|weight| frame.weights.vector(weight));
                let (weight, bias) = (vector(weight), vector(bias));
                let norm = Norm { kind: *kind, epsilon: *epsilon, groups: *groups, weight, bias };
                norm.run(features, frame.rows(*x), &mut frame.rows_mut(*out), range);
            }
            RowOp::RopeTable { rope, frequencies, magnitude, place, out } => {
                let mut out = frame.rows_mut(*out);
                let positions = &frame.step.positions;
                let magnitude = *magnitude as f64;
                if *place == RopePlace::Own {
                    rope.fill_table(frequencies, magnitude, positions, &mut out, range);
                } else {
                    let rows = positions.iter().zip(frame.step.long_rows());
                    let positions: Vec<i32> =
                        rows.map(|(position, long)| place.at(*position, long)).collect();
                    rope.fill_table(frequencies, magnitude, &positions, &mut out, range);
                }
            }
            RowOp::Rope { rope, table, x, out } => {
                rope.run(features, frame.rows(*table), frame.rows(*x), &mut frame.rows_mut(*out), range);
            }
            RowOp::CacheWrite { state, keys, values } => {
                let cache = frame.caches.cache(*state);
                let cells = &frame.step.groups[cache.group()].write_cells;
                // SAFETY: every row of the step has a cell of its own, and nobody reads before all are written.
                let (mut key_rows, mut value_rows) = unsafe { cache.write() };
                cache::write(features, &mut key_rows, frame.rows(*keys), cells, range.clone());
                cache::write(features, &mut value_rows, frame.rows(*values), cells, range);
            }
            RowOp::Unary { function, x, out } => {
                unary(features, *function, frame.rows(*x), &mut frame.rows_mut(*out), range);
            }
            RowOp::Binary { function, a, b, out } => {
                let (a, b) = (frame.rows(*a), frame.rows(*b));
                binary(features, *function, a, b, &mut frame.rows_mut(*out), range);
            }
            RowOp::Embed { .. }
            | RowOp::EmbedPositions { .. }
            | RowOp::OutputRows { .. }
            | RowOp::EmbedChosen { .. } => self.look_up(frame, range),
            RowOp::WithVector { .. }
            | RowOp::Slice { .. }
            | RowOp::ScaleGroups { .. }
            | RowOp::AddExpertBias { .. }
            | RowOp::PositionScale { .. } => self.by_row(frame, range),
            RowOp::Concat { .. }
            | RowOp::Repeat { .. }
            | RowOp::SumGroups { .. }
            | RowOp::SumParts { .. } => self.rearrange(frame, range),
            RowOp::Evaluate { node, inputs, out } => evaluate_rows(frame, *node, inputs, *out, range),
            RowOp::Prepare { x, prepared } => prepare_rows(frame, *x, prepared, range),
        }
    }

    /// Operations that choose rows.
    fn look_up(&self, frame: &Frame<'_>, range: Range<usize>) {
        match self {
            RowOp::Embed { table, symbol, out } => {
                let tokens = match symbol {
                    Symbol::EncoderTokens => &frame.step.encoder_tokens,
                    Symbol::Tokens | Symbol::Outputs => &frame.step.tokens,
                };
                let out = frame.rows_mut(*out);
                for row in range {
                    // SAFETY: the row is this chunk's own.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.row(row), out.width()) };
                    frame.weights.decode_row(*table, tokens[row] as usize, out);
                }
            }
            RowOp::EmbedPositions { table, out } => {
                let out = frame.rows_mut(*out);
                let last = frame.weights.rows(*table).saturating_sub(1);
                for row in range {
                    // SAFETY: the row is this chunk's own.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.row(row), out.width()) };
                    let position = usize::try_from(frame.step.positions[row]).unwrap_or(0);
                    frame.weights.decode_row(*table, position.min(last), out);
                }
            }
            RowOp::OutputRows { x, out } => {
                let (x, out) = (frame.rows(*x), frame.rows_mut(*out));
                for row in range {
                    let source = x.row(frame.step.output_rows[row] as usize);
                    // SAFETY: both rows have the same width and lie in different slots.
                    unsafe { std::ptr::copy_nonoverlapping(source, out.row(row), x.width()) };
                }
            }
            RowOp::EmbedChosen { table, chosen, out } => {
                let (chosen, out) = (frame.integers(*chosen), frame.rows_mut(*out));
                let last = frame.weights.rows(*table).saturating_sub(1);
                let count = chosen.len() / out.rows().max(1);
                for row in range {
                    // SAFETY: the row is this chunk's own.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.row(row), out.width()) };
                    let parts = out.chunks_exact_mut((out.len() / count.max(1)).max(1));
                    for (part, index) in parts.zip(&chosen[row * count..][..count]) {
                        let index = usize::try_from(*index).unwrap_or(0).min(last);
                        frame.weights.decode_row(*table, index, part);
                    }
                }
            }
            _ => unreachable!("{self:?} does not choose rows"),
        }
    }

    /// Operations on the numbers of each row with a few others.
    fn by_row(&self, frame: &Frame<'_>, range: Range<usize>) {
        match self {
            RowOp::WithVector { function, x, vector, out } => {
                let x = frame.rows(*x);
                let vector = frame.weights.vector(*vector);
                // A vector of one head repeats along the row: see the row as so many rows.
                let repeats = x.width() / vector.len().max(1);
                let out = frame.rows_mut(*out);
                for row in range {
                    // SAFETY: the row's numbers, seen as `repeats` rows of the vector's length.
                    let (x, mut out) = unsafe {
                        let width = vector.len();
                        (
                            Rows::from_raw(x.row(row), repeats, width, width),
                            RowsMut::from_raw(out.row(row), repeats, width, width),
                        )
                    };
                    binary(
                        frame.features,
                        *function,
                        x,
                        Rows::repeated(vector, repeats),
                        &mut out,
                        0..repeats,
                    );
                }
            }
            RowOp::Slice { group, start, length, x, out } => {
                let (x, out) = (frame.rows(*x), frame.rows_mut(*out));
                for row in range {
                    // SAFETY: both rows are this chunk's own and lie in different slots.
                    let (x, out) = unsafe { row_pair(x, &out, row) };
                    for (x, out) in x.chunks_exact(*group).zip(out.chunks_exact_mut(*length)) {
                        out.copy_from_slice(&x[*start..start + length]);
                    }
                }
            }
            RowOp::ScaleGroups { factors, x, out } => {
                let (x, out) = (frame.rows(*x), frame.rows_mut(*out));
                for row in range {
                    // SAFETY: both rows are this chunk's own and lie in different slots.
                    let (x, out) = unsafe { row_pair(x, &out, row) };
                    let factors = match factors {
                        Operands::Slot(slot) => {
                            let factors = frame.rows(*slot);
                            // SAFETY: the row has `width` numbers that nobody writes now.
                            unsafe { std::slice::from_raw_parts(factors.row(row), factors.width()) }
                        }
                        Operands::Vector(weight) => frame.weights.vector(*weight),
                    };
                    let group = x.len() / factors.len().max(1);
                    let groups = x.chunks_exact(group).zip(out.chunks_exact_mut(group));
                    for ((x, out), factor) in groups.zip(factors) {
                        out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
                    }
                }
            }
            RowOp::AddExpertBias { biases, chosen, x, out } => {
                let (x, out) = (frame.rows(*x), frame.rows_mut(*out));
                let biases = frame.weights.vector(*biases);
                let chosen = frame.integers(*chosen);
                let used = chosen.len() / x.rows().max(1);
                for row in range {
                    // SAFETY: both rows are this chunk's own and lie in different slots.
                    let (x, out) = unsafe { row_pair(x, &out, row) };
                    let width = x.len() / used.max(1);
                    let groups = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
                    for ((x, out), expert) in groups.zip(&chosen[row * used..]) {
                        let bias = &biases[*expert as usize * width..][..width];
                        out.iter_mut().zip(x).zip(bias).for_each(|((out, x), bias)| *out = x + bias);
                    }
                }
            }
            RowOp::PositionScale { scale, x, out } => {
                let (x, out) = (frame.rows(*x), frame.rows_mut(*out));
                for row in range {
                    // SAFETY: both rows are this chunk's own and lie in different slots.
                    let (x, out) = unsafe { row_pair(x, &out, row) };
                    let factor = scale.factor(frame.step.positions[row]) as f32;
                    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
                }
            }
            _ => unreachable!("{self:?} is none of these"),
        }
    }

    /// Operations that only move or add numbers.
    fn rearrange(&self, frame: &Frame<'_>, range: Range<usize>) {
        let read = |slot: SlotId, row: usize| {
            let rows = frame.rows(slot);
            // SAFETY: the row has `width` numbers that nobody writes now.
            unsafe { std::slice::from_raw_parts(rows.row(row), rows.width()) }
        };
        let write = |slot: SlotId, row: usize| {
            let rows = frame.rows_mut(slot);
            // SAFETY: the row is this chunk's own and lies in another slot than what is read.
            unsafe { std::slice::from_raw_parts_mut(rows.row(row), rows.width()) }
        };
        for row in range {
            match self {
                RowOp::Concat { a, b, groups: [first, second], out } => {
                    let parts = read(*a, row).chunks_exact(*first).zip(read(*b, row).chunks_exact(*second));
                    let out = write(*out, row).chunks_exact_mut(first + second);
                    for (out, (a, b)) in out.zip(parts) {
                        out[..*first].copy_from_slice(a);
                        out[*first..].copy_from_slice(b);
                    }
                }
                RowOp::Repeat { group, times, x, out } => {
                    let out = write(*out, row).chunks_exact_mut(group * times);
                    for (out, x) in out.zip(read(*x, row).chunks_exact(*group)) {
                        out.chunks_exact_mut(*group).for_each(|out| out.copy_from_slice(x));
                    }
                }
                RowOp::SumGroups { group, x, out } => {
                    let sums = read(*x, row).chunks_exact(*group).map(|x| x.iter().sum());
                    write(*out, row).iter_mut().zip(sums).for_each(|(out, sum): (&mut f32, f32)| *out = sum);
                }
                RowOp::SumParts { x, shares, out } => {
                    let out = write(*out, row);
                    out.fill(0.0);
                    for (part, x) in read(*x, row).chunks_exact(out.len()).enumerate() {
                        let share = shares.map_or(1.0, |shares| read(shares, row)[part]);
                        out.iter_mut().zip(x).for_each(|(out, x)| *out += share * x);
                    }
                }
                _ => unreachable!("{self:?} does more than move and add"),
            }
        }
    }
}

/// Converts rows `range` of an activation for the matrices that read it.
fn prepare_rows(frame: &Frame<'_>, x: SlotId, prepared: &Prepared, range: Range<usize>) {
    let x = frame.rows(x);
    let mut done: Vec<ActivationFormat> = Vec::new();
    for reader in &prepared.readers {
        let (format, slot) = prepared.form(frame, *reader, x.rows());
        if done.contains(&format) {
            continue;
        }
        done.push(format);
        let needed = format.bytes(x.rows(), x.width());
        assert!(needed <= frame.arena.slot(slot).bytes, "room for a prepared activation");
        // SAFETY: the rows lie side by side (stride equals width); the slot has room for every row
        // of the step and this chunk prepares rows of its own.
        unsafe {
            let rows = std::slice::from_raw_parts(x.row(range.start), range.len() * x.width());
            format.prepare(frame.features, rows, x.width(), range.clone(), frame.pointer(slot));
        }
    }
}

/// Rows `range` of a node that treats each row alone, by its definition.
fn evaluate_rows(
    frame: &Frame<'_>,
    node: usize,
    inputs: &[Option<SlotId>],
    out: SlotId,
    range: Range<usize>,
) {
    let graph = frame.weights.graph();
    let node = &graph.nodes[node];
    let fixed = |dim: &Dim| match dim {
        Dim::Fixed(extent) => *extent as usize,
        Dim::Of(_) => range.len(),
    };
    let array = |value: ValueId, slot: SlotId| {
        let ty = graph.value_type(value);
        let shape = ty.shape.iter().map(fixed).collect();
        let width = frame.arena.slot(slot).width;
        let part = range.start * width..range.end * width;
        match ty.element {
            Element::F32 => Array::f32(shape, frame.floats(slot)[part].to_vec()),
            Element::I32 => Array::i32(shape, frame.integers(slot)[part].to_vec()),
        }
    };
    let inputs: Vec<Array> = node
        .inputs
        .iter()
        .zip(inputs)
        .map(|(operand, slot)| match (operand, slot) {
            (Operand::Value(value), Some(slot)) => array(*value, *slot),
            (Operand::Weight(weight), _) => {
                let shape = graph.weights[weight.index()].shape.iter().map(|n| *n as usize).collect();
                Array::f32(shape, frame.weights.vector(*weight).to_vec())
            }
            _ => unreachable!("lowering keeps operations that read the step apart"),
        })
        .collect();
    let inputs: Vec<&Array> = inputs.iter().collect();
    let mut context = puna_graph::evaluate::Context { graph, step: frame.step, memory: &mut [] };
    let result = node.op.evaluate(&inputs, &mut context);
    let (source, count): (*const u8, usize) = match node.ty.element {
        Element::F32 => (result.floats().as_ptr().cast(), result.floats().len()),
        Element::I32 => (result.integers().as_ptr().cast(), result.integers().len()),
    };
    let width = frame.arena.slot(out).width;
    assert_eq!(count, range.len() * width, "numbers of the value");
    // SAFETY: the slot has room for these rows, numbers have four bytes, and the rows are this chunk's own.
    unsafe {
        std::ptr::copy_nonoverlapping(source, frame.pointer(out).add(range.start * width * 4), count * 4);
    }
}

/// A row of a value and the same row of another.
///
/// # Safety
/// The rows lie in different slots and nobody else uses that of `out`.
unsafe fn row_pair<'a>(x: Rows<'a>, out: &RowsMut<'a>, row: usize) -> (&'a [f32], &'a mut [f32]) {
    // SAFETY: a row has `width` numbers; the caller guarantees the rest.
    unsafe {
        (
            std::slice::from_raw_parts(x.row(row), x.width()),
            std::slice::from_raw_parts_mut(out.row(row), out.width()),
        )
    }
}
