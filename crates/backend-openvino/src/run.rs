//! What goes into a run and what comes out of it.

use std::collections::HashMap;

use half::{bf16, f16};
use puna_backend::{BackendError, Boundary};
use puna_graph::{Dim, Input, Step, Symbol, ValueId};

use crate::backend::Device;
use crate::ffi::{self, Bytes};
use crate::ir::Element;
use crate::memory::Kept;
use crate::pages::{BLOCK, Run};
use crate::partition::{OpenVinoPartition, Program};
use crate::pieces::Piece;
use crate::render::{Columns, rotations};
use crate::translate::{CacheForm, Feed, Product};

/// Data of one input: made for the run, or where it is kept.
pub(crate) enum Data {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    /// In the partition's caches.
    Kept,
}

impl OpenVinoPartition {
    /// Extents and data of one parameter.
    pub(crate) fn render(
        &self,
        feed: &Feed,
        program: &Program,
        piece: &Piece,
        step: &Step,
        outputs: &[u32],
        boundary: &Boundary,
        runs: &[Vec<Run>],
    ) -> Result<(Vec<i64>, Data), BackendError> {
        let rows = program.choices.tokens.map_or(piece.rows.len(), |tokens| tokens as usize);
        let positions = &step.positions[piece.rows.clone()];
        let long = step.long_rows();
        let groups = self.segment.graph.groups();
        let in_model = |group: usize| program.choices.form == CacheForm::Stateful && groups[group].is_kept();
        let cells = |group: usize| if in_model(group) { self.appended } else { self.capacity[group] };
        let columns = |group: usize| Columns {
            step,
            group: &step.groups[group],
            piece,
            cells: cells(group),
            places: in_model(group).then(|| &self.columns[group]),
            rows,
        };
        let wide = |group: usize| vec![rows as i64, (cells(group) + rows) as i64];
        Ok(match feed {
            Feed::Step(Input::OutputRows) => {
                // A model always computes one row; nobody reads it if none is asked for.
                let length = program.choices.outputs.map_or(outputs.len().max(1), |outputs| outputs as usize);
                let data: Vec<i32> = padded(outputs.iter().map(|row| *row as i32), length);
                (vec![length as i64], Data::I32(data))
            }
            Feed::Step(Input::Tokens) => {
                let tokens = step.tokens[piece.rows.clone()].iter().map(|token| *token as i32);
                (vec![rows as i64], Data::I32(padded(tokens, rows)))
            }
            Feed::Step(Input::EncoderTokens) => return Err(self.failed("an encoder's rows are elsewhere")),
            Feed::Step(Input::Positions) => {
                (vec![rows as i64], Data::I32(padded(positions.iter().copied(), rows)))
            }
            Feed::Value(value) => return self.boundary_rows(*value, piece, rows, outputs, program, boundary),
            Feed::Cosines(table) | Feed::Sines(table) => {
                let [cosines, sines] =
                    rotations(&program.ropes[*table], positions, &long[piece.rows.clone()], rows);
                let width = 2 * program.ropes[*table].frequencies.len() as i64;
                let data = if matches!(feed, Feed::Cosines(_)) { cosines } else { sines };
                (vec![rows as i64, 1, 1, width], Data::F32(data))
            }
            Feed::PositionScale(scale) => {
                let factors = positions.iter().map(|position| scale.factor(*position) as f32);
                (vec![rows as i64, 1], Data::F32(padded(factors, rows)))
            }
            Feed::Mask { group, rule } => (wide(*group), Data::F32(columns(*group).mask(*rule))),
            Feed::Distances { group } => (wide(*group), Data::F32(columns(*group).distances())),
            Feed::PastKeys(_) | Feed::PastValues(_) | Feed::KeyBlocks(_) | Feed::ValueBlocks(_) => {
                (Vec::new(), Data::Kept)
            }
            Feed::PastLengths { group } => list(runs[*group].iter().map(|run| run.past as i32).collect()),
            Feed::BlockIndexes { group } => {
                list(runs[*group].iter().flat_map(|run| &run.blocks).map(|block| *block as i32).collect())
            }
            Feed::BlockBegins { group } => list(begins(runs[*group].iter().map(|run| run.blocks.len()))),
            Feed::RunBegins => list(begins(self.span_lengths(step, piece))),
            Feed::LongestRun { group } => {
                let lengths = self.span_lengths(step, piece);
                let is_prompt = lengths.iter().any(|rows| *rows > 1);
                let longest = runs[*group].iter().zip(lengths).map(|(run, new)| run.past + new).max();
                // The plugin makes its kernels again whenever this outgrows what they were made for. Of a prompt it
                // decides nothing else, so there it says more.
                let least = if is_prompt { self.reserved_context(*group) } else { 0 };
                list(vec![longest.unwrap_or(0).max(least) as i32])
            }
            Feed::Recurrent(state) => match &self.kept[state.index()] {
                Kept::Recurrent { elements, numbers } => {
                    let mut data = vec![0.0; piece.starts.len() * elements];
                    for (data, cell) in data.chunks_exact_mut((*elements).max(1)).zip(&piece.starts) {
                        if let Some(cell) = cell {
                            data.copy_from_slice(&numbers[*cell as usize * elements..][..*elements]);
                        }
                    }
                    (vec![piece.starts.len() as i64, *elements as i64], Data::F32(data))
                }
                _ => return Err(self.failed("a recurrent state is in another segment")),
            },
            Feed::Spans => (vec![1], Data::I64(vec![piece.starts.len().max(1) as i64])),
        })
    }

    /// Cells that kernels of paged attention are made for in advance: as many as the context has, unless the scores of
    /// 32 rows would take too much memory.
    fn reserved_context(&self, group: usize) -> usize {
        let heads = self.segment.graph.nodes[self.segment.nodes.clone()].iter().filter_map(|node| {
            let queries = self.segment.graph.operand_type(*node.inputs.first()?);
            match (&node.op, queries.shape.get(1)) {
                (puna_graph::Op::Attention(_), Some(Dim::Fixed(heads))) => Some(*heads as usize),
                _ => None,
            }
        });
        let row_bytes = 4 * BLOCK * self.device.threads.max(1) * heads.max().unwrap_or(1);
        (self.options.cells[group] as usize).min(RESERVED_BYTES / row_bytes)
    }

    /// Rows of each span that is in a run.
    fn span_lengths(&self, step: &Step, piece: &Piece) -> Vec<usize> {
        let spans = step.groups.first().map_or(&[][..], |group| &group.spans);
        let within = |span: &puna_graph::Span| {
            let end = piece.rows.end.min(span.tokens.end as usize);
            end.saturating_sub(piece.rows.start.max(span.tokens.start as usize))
        };
        spans.iter().map(within).filter(|rows| *rows > 0).collect()
    }

    /// A run's rows of a value that an earlier segment made.
    fn boundary_rows(
        &self,
        value: ValueId,
        piece: &Piece,
        rows: usize,
        outputs: &[u32],
        program: &Program,
        boundary: &Boundary,
    ) -> Result<(Vec<i64>, Data), BackendError> {
        let array = boundary
            .values
            .get(&value)
            .ok_or_else(|| self.failed("a value of an earlier segment is missing"))?;
        let ty = self.segment.graph.value_type(value);
        let width: usize = array.shape.iter().skip(1).product();
        let (range, length) = match ty.shape.first() {
            Some(Dim::Of(Symbol::Tokens)) => (piece.rows.clone(), rows),
            Some(Dim::Of(Symbol::Outputs)) => {
                let length = program.choices.outputs.map_or(outputs.len(), |outputs| outputs as usize);
                (0..outputs.len(), length)
            }
            _ => (0..array.shape.first().copied().unwrap_or(1), array.shape.first().copied().unwrap_or(1)),
        };
        let range = range.start * width..range.end * width;
        let mut shape: Vec<i64> = array.shape.iter().map(|extent| *extent as i64).collect();
        if let Some(first) = shape.first_mut() {
            *first = length as i64;
        }
        let data = match ty.element {
            puna_graph::Element::F32 => {
                Data::F32(padded(array.floats()[range].iter().copied(), length * width))
            }
            puna_graph::Element::I32 => {
                Data::I32(padded(array.integers()[range].iter().copied(), length * width))
            }
        };
        Ok((shape, data))
    }

    /// Stores what a run has made.
    pub(crate) fn harvest(
        &mut self,
        program: usize,
        piece: &Piece,
        step: &Step,
        outputs: usize,
        gathered: &mut HashMap<ValueId, Vec<f32>>,
        integers: &mut HashMap<ValueId, Vec<i32>>,
    ) -> Result<(), BackendError> {
        let Self { programs, kept, segment, device, .. } = self;
        let program = &programs[program];
        let groups = segment.graph.groups();
        for (product, name) in &program.products {
            let stored = program.request.output(name, |bytes, shape| {
                if device.settings.debug_output {
                    let is_integer = matches!(product, Product::Value(value)
                        if segment.graph.value_type(*value).element == puna_graph::Element::I32);
                    let element = if is_integer { Element::I32 } else { Element::F32 };
                    device.log(&described(&product.name(), element, shape, bytes));
                }
                match product {
                    Product::Value(value) => {
                        let ty = segment.graph.value_type(*value);
                        let rows = match ty.shape.first() {
                            Some(Dim::Of(Symbol::Tokens)) => piece.rows.len(),
                            Some(Dim::Of(Symbol::Outputs)) => outputs,
                            Some(Dim::Of(Symbol::EncoderTokens)) => 0,
                            Some(Dim::Fixed(extent)) => *extent as usize,
                            None => 1,
                        };
                        let elements = rows * ty.row_elements();
                        let words = bytes.chunks_exact(4).take(elements).map(|b| [b[0], b[1], b[2], b[3]]);
                        match ty.element {
                            puna_graph::Element::F32 => {
                                gathered.entry(*value).or_default().extend(words.map(f32::from_le_bytes));
                            }
                            puna_graph::Element::I32 => {
                                integers.entry(*value).or_default().extend(words.map(i32::from_le_bytes));
                            }
                        }
                    }
                    Product::NewKeys(state) | Product::NewValues(state) => {
                        let group = segment.graph.states[state.index()].group();
                        let group = groups.iter().position(|other| *other == group).unwrap_or(0);
                        let cells = &step.groups[group].write_cells[piece.rows.clone()];
                        let floats = floats_of(bytes);
                        let width = floats.len() / shape.first().map_or(1, |rows| (*rows).max(1) as usize);
                        if let Some(Kept::KeyValue { keys, values }) = kept.get_mut(state.index()) {
                            let plane = if matches!(product, Product::NewKeys(_)) { keys } else { values };
                            for (cell, row) in cells.iter().zip(floats.chunks_exact(width.max(1))) {
                                plane.write(*cell as usize, row);
                            }
                        }
                    }
                    Product::Recurrent(state) => {
                        if let Some(Kept::Recurrent { elements, numbers }) = kept.get_mut(state.index()) {
                            let floats = floats_of(bytes);
                            for (cell, state) in
                                piece.ends.iter().zip(floats.chunks_exact((*elements).max(1)))
                            {
                                numbers[*cell as usize * *elements..][..*elements].copy_from_slice(state);
                            }
                        }
                    }
                }
            });
            stored.map_err(|reason| BackendError::Device { device: device.name.clone(), reason })?;
        }
        Ok(())
    }
}

/// Logs inputs of a run, caches among them, as far as the environment asks for that.
pub(crate) fn log_inputs(device: &Device, inputs: &[ffi::Input<'_>], has_printed_addresses: &mut bool) {
    let settings = &device.settings;
    let addresses = settings.print_addresses && !*has_printed_addresses;
    if !settings.debug_input && !addresses {
        return;
    }
    for ffi::Input { name, element, shape, bytes } in inputs {
        let name = name.to_string_lossy();
        let bytes = match bytes {
            Bytes::Read(bytes) => bytes,
            Bytes::Write(bytes) => &**bytes,
        };
        if settings.debug_input {
            device.log(&described(&name, *element, shape, bytes));
        }
        match bytes.is_empty() {
            _ if !addresses => {}
            true => device.log(&format!("{name} is empty")),
            false => device.log(&format!("{name} at {:p}", bytes.as_ptr())),
        }
    }
    *has_printed_addresses = true;
}

/// Most memory for scores that kernels are made for in advance.
const RESERVED_BYTES: usize = 64 << 20;

/// A list of integers and its extent.
fn list(values: Vec<i32>) -> (Vec<i64>, Data) {
    (vec![values.len() as i64], Data::I32(values))
}

/// Where each of several parts begins, and the end of the last.
fn begins(lengths: impl IntoIterator<Item = usize>) -> Vec<i32> {
    let ends = lengths.into_iter().scan(0, |end, length| {
        *end += length as i32;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// The values, then zeros up to a length.
fn padded<T: Default + Clone>(values: impl Iterator<Item = T>, length: usize) -> Vec<T> {
    let mut all: Vec<T> = values.collect();
    all.resize(length, T::default());
    all
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Name, extents and first numbers of a tensor.
fn described(name: &str, element: Element, shape: &[i64], bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes
        .chunks_exact((element.bits() / 8).max(1))
        .take(4)
        .map(|bytes| match (element, bytes) {
            (Element::F32, &[a, b, c, d]) => format!("{:e}", f32::from_le_bytes([a, b, c, d])),
            (Element::F16, &[a, b]) => format!("{:e}", f16::from_le_bytes([a, b]).to_f32()),
            (Element::BF16, &[a, b]) => format!("{:e}", bf16::from_le_bytes([a, b]).to_f32()),
            (_, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).to_string(),
            (_, &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]).to_string(),
            (_, other) => format!("{other:?}"),
        })
        .collect();
    format!("{name} {} {shape:?}: {}", element.name(), numbers.join(" "))
}
