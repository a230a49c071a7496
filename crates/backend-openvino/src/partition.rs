//! A segment that is compiled and runs, with its caches in pages, in the host's memory or in the model.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::Arc;
use std::time::Instant;

use puna_backend::{
    BackendError, Boundary, Bounds, CacheOptions, MemoryUse, Partition, ProgramId, Segment, States,
    WeightSource,
};
use puna_graph::{Array, CacheGroup, Dim, StateDecl, StateId, Step, ValueId};

use crate::backend::Device;
use crate::caches::Turn;
use crate::ffi::{Compiled, Request};
use crate::ir::Element;
use crate::memory::{Kept, inputs};
use crate::pages::{Pages, Run};
use crate::pieces::{Limits, Piece, cut};
use crate::run::{Data, log_inputs};
use crate::translate::order::HeadOrder;
use crate::translate::{Choices, Feed, Product, RopeTable};

/// One compiled model.
pub(crate) struct Program {
    // Before what it runs, so that it goes first.
    pub(crate) request: Request,
    pub(crate) compiled: Arc<Compiled>,
    /// It runs long spans only, and the blocks that it reads and writes hold bf16.
    pub(crate) is_for_prompts: bool,
    pub(crate) choices: Choices,
    pub(crate) feeds: Vec<(Feed, CString)>,
    pub(crate) products: Vec<(Product, CString)>,
    pub(crate) ropes: Vec<RopeTable>,
    /// Numbers of rows that it has run with.
    pub(crate) rows_run: HashSet<usize>,
}

/// A segment on a device.
pub(crate) struct OpenVinoPartition {
    pub(crate) device: Device,
    pub(crate) segment: Segment,
    pub(crate) weights: Arc<dyn WeightSource>,
    pub(crate) options: CacheOptions,
    /// Formats in which keys and values are kept, as far as the plugin does not choose another for pages.
    pub(crate) formats: [Element; 2],
    /// Formats in which they are saved: those of the options.
    pub(crate) saved_formats: [Element; 2],
    pub(crate) kept: Vec<Kept>,
    pub(crate) turns: HashMap<StateId, Turn>,
    /// States whose keys have another order than the model's.
    pub(crate) key_orders: HashMap<StateId, HeadOrder>,
    /// Of each group, what lies where in its pages.
    pub(crate) pages: Vec<Pages>,
    /// Of each group, where cells are in variables of the model.
    pub(crate) columns: Vec<HashMap<u32, usize>>,
    /// Rows that variables of the model hold.
    pub(crate) appended: usize,
    /// Cells that each group's planes have room for.
    pub(crate) capacity: Vec<usize>,
    /// Of fixed models the one of a prompt's chunk, then the one of a single row. Of others the one for all steps, then
    /// perhaps one for prompts.
    pub(crate) programs: Vec<Program>,
    pub(crate) bounds: Option<Bounds>,
    pub(crate) has_printed_addresses: bool,
}

/// Rows from which on a span is faster in the model for prompts.
const LONG_SPAN: usize = 48;

/// Whether the spans of a run are long; all are or none is.
fn has_long_spans(step: &Step, piece: &Piece) -> bool {
    let spans = step.groups.first().map_or(&[][..], |group| &group.spans);
    let own = spans.iter().find(|span| (span.tokens.end as usize) > piece.rows.start);
    own.is_some_and(|span| span.tokens.len() >= LONG_SPAN)
}

/// Rows of variables that may lie unused, however few are used.
const MOST_UNUSED: usize = 256;

/// Cells are added in such steps, so that few steps change the extents of the caches.
const CELL_STEP: usize = 256;

impl Partition for OpenVinoPartition {
    fn compile(&mut self, bounds: Bounds) -> Result<ProgramId, BackendError> {
        // Dynamic extents serve all bounds.
        let is_dynamic = self.programs.first().is_some_and(|program| program.choices.tokens.is_none());
        if self.bounds != Some(bounds) && !is_dynamic {
            self.programs = self.compile_programs(bounds)?;
            self.bounds = Some(bounds);
        }
        Ok(ProgramId(0))
    }

    fn run(&mut self, _: ProgramId, step: &Step, boundary: &mut Boundary) -> Result<(), BackendError> {
        let mut gathered: HashMap<ValueId, Vec<f32>> = HashMap::new();
        let mut integers: HashMap<ValueId, Vec<i32>> = HashMap::new();
        let recurrent = self.segment.graph.groups().iter().position(|group| *group == CacheGroup::Recurrent);
        // States of other segments do not cut this one's steps.
        let own = self.kept.iter().any(|kept| matches!(kept, Kept::Recurrent { .. }));
        let recurrent = recurrent.filter(|_| own).and_then(|group| step.groups.get(group));
        let limits = self.limits(recurrent.is_some());
        for piece in cut(step, recurrent, limits) {
            let program = match self.programs.last() {
                Some(last) if last.choices.tokens == Some(1) && piece.rows.len() == 1 => {
                    self.programs.len() - 1
                }
                Some(last) if last.is_for_prompts && has_long_spans(step, &piece) => self.programs.len() - 1,
                _ => 0,
            };
            self.run_piece(program, &piece, step, boundary, &mut gathered, &mut integers)?;
        }
        for output in &self.segment.outputs {
            let ty = self.segment.graph.value_type(*output);
            let shape = ty.shape.iter().map(|dim| match dim {
                Dim::Fixed(extent) => *extent as usize,
                Dim::Of(symbol) => step.extent(*symbol),
            });
            let shape: Vec<usize> = shape.collect();
            let array = match integers.remove(output) {
                Some(data) => Array::i32(shape, data),
                None => Array::f32(shape, gathered.remove(output).unwrap_or_default()),
            };
            boundary.values.insert(*output, array);
        }
        Ok(())
    }

    fn states(&mut self) -> &mut dyn States {
        self
    }

    fn memory(&self) -> MemoryUse {
        let caches = self.kept.iter().map(|kept| match kept {
            Kept::KeyValue { keys, values } => (keys.bytes().len() + values.bytes().len()) as u64,
            Kept::Recurrent { numbers, .. } => 4 * numbers.len() as u64,
            Kept::Paged { keys, values } => (keys.bytes().len() + values.bytes().len()) as u64,
            Kept::InModel { cell_bytes } => (cell_bytes * self.appended) as u64,
            Kept::Elsewhere => 0,
        });
        MemoryUse {
            weights: self.programs.iter().map(|program| program.compiled.constants()).sum(),
            caches: caches.sum(),
            work: 0,
        }
    }
}

impl OpenVinoPartition {
    pub(crate) fn failed(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Device { device: self.device.name.clone(), reason: reason.into() }
    }

    fn limits(&self, recurrent: bool) -> Limits {
        match self.programs.first().and_then(|program| program.choices.tokens) {
            Some(tokens) => {
                let rows = tokens as usize;
                Limits { rows, full_or_single: recurrent, spans: 1, paged: false, long: None }
            }
            None => Limits {
                rows: usize::MAX,
                full_or_single: false,
                spans: usize::MAX,
                paged: self.kept.iter().any(|kept| matches!(kept, Kept::Paged { .. })),
                long: self.programs.iter().any(|program| program.is_for_prompts).then_some(LONG_SPAN),
            },
        }
    }

    /// Makes room for the cells that a step names.
    pub(crate) fn make_room(&mut self, group: usize, cells: usize) -> Result<(), BackendError> {
        let settings = &self.device.settings;
        let whole = settings.disable_slice || settings.is_static(&self.device.plugin);
        let all = self.options.cells[group] as usize;
        let wanted = if whole { all } else { cells.max(1).next_multiple_of(CELL_STEP) };
        if self.capacity[group] == wanted {
            return Ok(());
        }
        // Cells beyond are not seen in this step, but they may hold what a later one sees.
        let wanted = wanted.max(self.capacity[group]);
        let groups = self.segment.graph.groups();
        for (kept, state) in self.kept.iter_mut().zip(&self.segment.graph.states) {
            if groups.get(group) == Some(&state.group())
                && let Kept::KeyValue { keys, values } = kept
            {
                keys.resize(wanted)?;
                values.resize(wanted)?;
            }
        }
        self.capacity[group] = wanted;
        Ok(())
    }

    fn keeps_in_model(&self) -> bool {
        self.kept.iter().any(|kept| matches!(kept, Kept::InModel { .. }))
    }

    /// Forgets cells that a run writes, and rows of the variables that no cell is in any more.
    fn forget_columns(&mut self, program: usize, piece: &Piece, step: &Step) -> Result<(), BackendError> {
        if !self.keeps_in_model() {
            return Ok(());
        }
        let mut sees_past = false;
        for (columns, data) in self.columns.iter_mut().zip(&step.groups) {
            let cells = &data.write_cells[piece.rows.clone()];
            for cell in cells {
                columns.remove(cell);
            }
            let seen = data.spans.iter().flat_map(|span| span.cells.iter().cloned().flatten());
            sees_past |= seen.into_iter().any(|cell| columns.contains_key(&cell));
        }
        // Of several sequences others may need what this run does not see.
        if !sees_past && self.appended > 0 && self.options.sequences == 1 {
            self.columns.iter_mut().for_each(HashMap::clear);
        }
        self.drop_columns(program)
    }

    /// Takes rows out of the variables that no cell is in, once they are as many as the others. Only the shim can take out
    /// some; without it all go when none is needed.
    fn drop_columns(&mut self, program: usize) -> Result<(), BackendError> {
        // Each group may have cells in other rows.
        let least = self.columns.iter().map(HashMap::len).max().unwrap_or(0);
        if self.appended == 0 || least > 0 && self.appended < least + least.max(MOST_UNUSED) {
            return Ok(());
        }
        let mut used: Vec<u64> =
            self.columns.iter().flat_map(HashMap::values).map(|column| *column as u64).collect();
        used.sort_unstable();
        used.dedup();
        let failed = |reason| BackendError::Device { device: self.device.name.clone(), reason };
        let program = &mut self.programs[program];
        match &self.device.shim {
            _ if used.is_empty() => program.request = program.compiled.request().map_err(failed)?,
            _ if self.appended < used.len() + used.len().max(MOST_UNUSED) => return Ok(()),
            Some(shim) => program.request.keep_columns(shim, &used).map_err(failed)?,
            None => {
                self.device.log_once(
                    "the model keeps keys and values that no text needs any more: taking them out needs the shim",
                );
                return Ok(());
            }
        }
        for column in self.columns.iter_mut().flat_map(HashMap::values_mut) {
            *column = used.binary_search(&(*column as u64)).unwrap_or(0);
        }
        self.appended = used.len();
        Ok(())
    }

    /// Notes where a run's cells are in the variables.
    fn note_columns(&mut self, piece: &Piece, step: &Step) {
        if !self.keeps_in_model() {
            return;
        }
        for (columns, data) in self.columns.iter_mut().zip(&step.groups) {
            for (row, cell) in data.write_cells[piece.rows.clone()].iter().enumerate() {
                columns.insert(*cell, self.appended + row);
            }
        }
        self.appended += piece.rows.len();
    }

    /// Where the sequences of a run are in the pages of each group; copies what has to be copied.
    fn find_runs(&mut self, piece: &Piece, step: &Step) -> Result<Vec<Vec<Run>>, BackendError> {
        let groups = self.segment.graph.groups();
        let mut all = Vec::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            let of_group = |state: &StateDecl| state.group() == *group;
            let states = || self.segment.graph.states.iter().enumerate().filter(|(_, state)| of_group(state));
            if !states().any(|(state, _)| matches!(self.kept[state], Kept::Paged { .. })) {
                all.push(Vec::new());
                continue;
            }
            let data = &step.groups[index];
            let pages = &mut self.pages[index];
            pages.forget(&data.write_cells[piece.rows.clone()]);
            let mut runs = Vec::new();
            for span in &data.spans {
                let rows = piece.rows.start.max(span.tokens.start as usize)
                    ..piece.rows.end.min(span.tokens.end as usize);
                if rows.is_empty() {
                    continue;
                }
                let new = &data.write_cells[rows.clone()];
                let first = step.positions[rows.start];
                // What the step writes later has positions from the first row's on.
                let mut past: Vec<(i32, u32)> = span
                    .cells
                    .iter()
                    .cloned()
                    .flatten()
                    .map(|cell| (data.cell_positions[cell as usize], cell))
                    .filter(|(position, _)| *position < first)
                    .collect();
                past.sort_unstable();
                let may_precede = match group {
                    CacheGroup::Window(length) => past
                        .first()
                        .is_some_and(|(position, _)| *position as i64 <= first as i64 - *length as i64 + 1),
                    _ => false,
                };
                let past: Vec<u32> = past.into_iter().map(|(_, cell)| cell).collect();
                runs.push(pages.place(&past, new, may_precede));
            }
            let blocks = pages.blocks();
            let runs = runs.into_iter().collect::<Option<Vec<Run>>>();
            let name = &self.device.name;
            let runs = runs.ok_or_else(|| BackendError::Device {
                device: name.clone(),
                reason: "cells that a step sees were never written".to_owned(),
            })?;
            for (kept, state) in self.kept.iter_mut().zip(&self.segment.graph.states) {
                if of_group(state)
                    && let Kept::Paged { keys, values } = kept
                {
                    for part in [keys, values] {
                        part.make_room(blocks)?;
                        runs.iter().for_each(|run| part.copy(&run.copies));
                    }
                }
            }
            all.push(runs);
        }
        Ok(all)
    }

    /// Brings the blocks of a run into the numbers that the program works with.
    fn express(&mut self, program: usize, runs: &[Vec<Run>]) {
        if !self.programs.iter().any(|program| program.is_for_prompts) {
            return;
        }
        let bf16 = self.programs[program].is_for_prompts;
        let groups = self.segment.graph.groups();
        for (kept, state) in self.kept.iter_mut().zip(&self.segment.graph.states) {
            let Kept::Paged { keys, values } = kept else { continue };
            let Some(group) = groups.iter().position(|group| *group == state.group()) else { continue };
            for run in &runs[group] {
                for part in [&mut *keys, &mut *values] {
                    part.express(&run.blocks, run.past, bf16);
                }
            }
        }
    }

    fn run_piece(
        &mut self,
        program_index: usize,
        piece: &Piece,
        step: &Step,
        boundary: &Boundary,
        gathered: &mut HashMap<ValueId, Vec<f32>>,
        integers: &mut HashMap<ValueId, Vec<i32>>,
    ) -> Result<(), BackendError> {
        let start = Instant::now();
        for (group, data) in step.groups.iter().enumerate() {
            let last = data.write_cells.iter().map(|cell| *cell as usize + 1).max().unwrap_or(0);
            self.make_room(group, data.cell_positions.len().max(last))?;
        }
        let outputs: Vec<u32> = step
            .output_rows
            .iter()
            .map(|row| *row as usize)
            .filter(|row| piece.rows.contains(row))
            .map(|row| (row - piece.rows.start) as u32)
            .collect();
        let runs = self.find_runs(piece, step)?;
        self.express(program_index, &runs);
        self.forget_columns(program_index, piece, step)?;
        let program = &self.programs[program_index];
        let owned: Vec<(Vec<i64>, Data)> = program
            .feeds
            .iter()
            .map(|(feed, _)| self.render(feed, program, piece, step, &outputs, boundary, &runs))
            .collect::<Result<_, _>>()?;
        let Self { kept, programs, device, has_printed_addresses, .. } = self;
        let program = &mut programs[program_index];
        let pages = program.is_for_prompts.then_some(Element::BF16);
        let inputs = inputs(pages, &program.feeds, &owned, kept);
        log_inputs(device, &inputs, has_printed_addresses);
        let rendered = start.elapsed();
        let Program { compiled, request, rows_run, .. } = program;
        // The plugin arranges matrices for products with so many rows when it first computes some.
        let ended = match rows_run.insert(piece.rows.len()) {
            true => compiled.while_dropping(|| request.run(inputs)),
            false => request.run(inputs),
        };
        ended.map_err(|reason| BackendError::Device { device: device.name.clone(), reason })?;
        let ran = start.elapsed();
        self.note_columns(piece, step);
        self.harvest(program_index, piece, step, outputs.len(), gathered, integers)?;
        self.device.profile(|| {
            let rows = piece.rows.len();
            let (model, after) = (ran - rendered, start.elapsed() - ran);
            format!("run of {rows} rows: inputs {rendered:.2?}, model {model:.2?}, outputs {after:.2?}")
        });
        self.profile_operations(program_index);
        Ok(())
    }

    /// Logs the kinds of operations that took most of the last run.
    fn profile_operations(&self, program: usize) {
        if !self.device.settings.profiling {
            return;
        }
        let mut by_kind: HashMap<String, (i64, u32)> = HashMap::new();
        for time in self.programs[program].request.times().unwrap_or_default() {
            let entry = by_kind.entry(time.kind).or_default();
            *entry = (entry.0 + time.microseconds, entry.1 + 1);
        }
        let mut most: Vec<_> = by_kind.into_iter().filter(|(_, (time, _))| *time > 0).collect();
        most.sort_by_key(|(_, (time, _))| std::cmp::Reverse(*time));
        let most: Vec<String> =
            most.iter().take(6).map(|(kind, (time, count))| format!("{kind} {time} us in {count}")).collect();
        self.device.log(&format!("operations: {}", most.join(", ")));
    }
}
