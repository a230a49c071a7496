//! The loaded model and its one verb.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use puna_backend::{Boundary, MemoryUse, Partition, ProgramId, WeightSource};
use puna_graph::{Array, CacheGroup, Graph, Step, ValueId};

use crate::batch::{MicroBatch, split};
use crate::ledger::Ledger;
use crate::{Batch, ModelInformation, ModelOptions, OutputRow, Outputs, RuntimeError};

/// A model on its devices with the caches of its sequences.
pub struct Model {
    pub(crate) graph: Arc<Graph>,
    pub(crate) weights: Arc<dyn WeightSource>,
    pub(crate) information: ModelInformation,
    pub(crate) options: ModelOptions,
    pub(crate) segments: Vec<Loaded>,
    /// One per cache group, in the order of `Graph::groups`; never empty.
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) logits: ValueId,
    /// Bytes of one saved cell of each state.
    pub(crate) cell_bytes: Vec<usize>,
    /// Made when first needed, since it reads a little of every weight.
    pub(crate) fingerprint: Option<u64>,
    /// Who looks at the watched values after each step.
    pub(crate) observer: Option<Observer>,
}

/// Gets the watched values of a step, and those of its outputs that it leaves.
pub type Observer = Box<dyn FnMut(&HashMap<ValueId, Array>) + Send>;

/// A segment on its device.
pub(crate) struct Loaded {
    pub(crate) partition: Box<dyn Partition>,
    pub(crate) program: ProgramId,
}

impl Model {
    /// Runs the tokens of a batch and returns the rows of logits that it asks for, in its order.
    ///
    /// On an error nothing of the batch stays: every sequence has its old length. Only where a device fails in
    /// the middle of a batch so long that a windowed cache has already given up what a sequence needs to go on,
    /// that sequence is emptied.
    pub fn run(&mut self, batch: &Batch) -> Result<Outputs, RuntimeError> {
        self.check(batch)?;
        let lengths: Vec<(u32, i32)> =
            batch.work.iter().map(|work| (work.sequence, self.ledgers[0].next(work.sequence))).collect();
        let mut outputs = Outputs { width: self.information.vocabulary as usize, ..Outputs::default() };
        for micro_batch in split(batch, self.options.micro_batch, self.options.outputs) {
            if let Err(error) = self.step(micro_batch, &mut outputs) {
                self.roll_back(&lengths);
                return Err(error);
            }
        }
        Ok(outputs)
    }

    /// Hands the values that [`Model::load_with`] was told to watch to `observer` after each step.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// The computation.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Facts about the model.
    pub fn information(&self) -> &ModelInformation {
        &self.information
    }

    /// What it was loaded with; 0 is replaced by the number that it stands for.
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// Memory held by each partition, in the order in which they run.
    pub fn memory(&self) -> Vec<MemoryUse> {
        self.segments.iter().map(|segment| segment.partition.memory()).collect()
    }

    /// Tokens for which there are free cells, over all sequences.
    pub fn free_cells(&self) -> u32 {
        let full = self.ledgers.iter().filter(|ledger| ledger.group() == CacheGroup::Full);
        full.map(Ledger::free).min().unwrap_or(self.options.context)
    }

    /// Refuses a batch that cannot be run as a whole, before anything is changed.
    fn check(&self, batch: &Batch) -> Result<(), RuntimeError> {
        let vocabulary = self.information.vocabulary;
        let context = self.options.context;
        let mut added: BTreeMap<u32, u64> = BTreeMap::new();
        for work in &batch.work {
            self.check_sequence(work.sequence)?;
            if let Some(token) = work.tokens.iter().find(|token| **token >= vocabulary) {
                return Err(RuntimeError::TokenOutOfRange { token: *token, vocabulary });
            }
            *added.entry(work.sequence).or_default() += work.tokens.len() as u64;
        }
        let full = |needed: u64, free: u32| RuntimeError::ContextFull {
            needed: u32::try_from(needed).unwrap_or(u32::MAX),
            free,
            context,
        };
        for (sequence, tokens) in &added {
            let free = context.saturating_sub(self.length(*sequence));
            if *tokens > free as u64 {
                return Err(full(*tokens, free));
            }
        }
        let tokens = added.values().sum();
        if tokens > self.free_cells() as u64 && self.ledgers.iter().any(|l| l.group() == CacheGroup::Full) {
            return Err(full(tokens, self.free_cells()));
        }
        Ok(())
    }

    /// Runs one micro-batch and appends its rows.
    fn step(&mut self, micro_batch: MicroBatch, outputs: &mut Outputs) -> Result<(), RuntimeError> {
        let MicroBatch { tokens, pieces, output_rows } = micro_batch;
        let mut rows = Vec::with_capacity(tokens.len());
        let mut next: BTreeMap<u32, i32> = BTreeMap::new();
        for (sequence, count) in &pieces {
            let next = next.entry(*sequence).or_insert_with(|| self.ledgers[0].next(*sequence));
            rows.extend((*next..*next + *count as i32).map(|position| (*sequence, position)));
            *next += *count as i32;
        }
        let mut groups = Vec::with_capacity(self.ledgers.len());
        for ledger in &mut self.ledgers {
            let free = ledger.free();
            let context = self.options.context;
            let full = |needed| RuntimeError::ContextFull { needed, free, context };
            groups.push(ledger.place(&pieces).map_err(full)?);
        }
        let positions = rows.iter().map(|(_, position)| *position).collect();
        let step = Step { tokens, positions, output_rows, groups };
        let mut boundary = Boundary::default();
        for Loaded { partition, program } in &mut self.segments {
            partition.run(*program, &step, &mut boundary)?;
        }
        if let Some(observer) = &mut self.observer {
            observer(&boundary.values);
        }
        if step.output_rows.is_empty() {
            return Ok(());
        }
        let logits = boundary.values.remove(&self.logits).map(puna_graph::Array::into_floats);
        let logits = logits.unwrap_or_default();
        let expected = step.output_rows.len() * outputs.width;
        if logits.len() != expected {
            return Err(RuntimeError::OutputCount { found: logits.len(), expected });
        }
        // The usual single step hands its rows over without a copy.
        if outputs.logits.is_empty() {
            outputs.logits = logits;
        } else {
            outputs.logits.extend_from_slice(&logits);
        }
        let output_rows = step.output_rows.iter().filter_map(|row| rows.get(*row as usize));
        outputs.rows.extend(output_rows.map(|(sequence, position)| OutputRow {
            sequence: *sequence,
            position: position.unsigned_abs(),
        }));
        Ok(())
    }

    /// Gives sequences their old lengths back, or empties those that could not go on from there.
    fn roll_back(&mut self, lengths: &[(u32, i32)]) {
        for (sequence, length) in lengths {
            for ledger in &mut self.ledgers {
                ledger.remove(*sequence, *length..i32::MAX);
            }
            if self.ledgers.iter().any(|ledger| !ledger.can_continue(*sequence, *length)) {
                self.clear(*sequence);
            }
        }
    }
}
