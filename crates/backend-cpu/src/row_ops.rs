//! Operations that treat each row of the step alone. Consecutive ones run as one task: a chunk of rows goes
//! through all of them while it is in the cache.

use std::ops::Range;

use puna_graph::ops::PositionScale;
use puna_graph::{StateId, Symbol, WeightId};

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
    RopeTable { rope: Rope, frequencies: Vec<f64>, magnitude: f32, out: SlotId },
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
        let format = frame.weights.matrices(reader)[0].activation(frame.features, rows);
        let form = self.forms.iter().find(|(other, _)| *other == format);
        *form.expect("every form that a matrix may ask for has memory")
    }
}

impl RowOp {
    /// Runs the operation for the rows of `range`.
    pub fn run(&self, frame: &Frame<'_>, range: Range<usize>) {
        let features = frame.features;
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
            RowOp::Norm { kind, epsilon, groups, weight, bias, x, out } => {
                let vector = |weight: &Option<WeightId>| weight.map(|weight| frame.weights.vector(weight));
                let (weight, bias) = (vector(weight), vector(bias));
                let norm = Norm { kind: *kind, epsilon: *epsilon, groups: *groups, weight, bias };
                norm.run(features, frame.rows(*x), &mut frame.rows_mut(*out), range);
            }
            RowOp::RopeTable { rope, frequencies, magnitude, out } => {
                let positions = &frame.step.positions;
                rope.fill_table(frequencies, *magnitude as f64, positions, &mut frame.rows_mut(*out), range);
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
                    binary(features, *function, x, Rows::repeated(vector, repeats), &mut out, 0..repeats);
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
            RowOp::Prepare { x, prepared } => {
                let x = frame.rows(*x);
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
                        format.prepare(features, rows, x.width(), range.clone(), frame.pointer(slot));
                    }
                }
            }
        }
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
