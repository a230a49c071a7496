//! The loaded model and its one verb.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use puna_backend::{Boundary, MemoryUse, Partition, ProgramId, WeightSource};
use puna_graph::{Array, CacheGroup, Graph, GroupStep, PooledRows, Span, Step, ValueId, WeightId};

use crate::batch::{MicroBatch, split};
use crate::draft::DraftOutputs;
use crate::identity::Identity;
use crate::layer_inputs::{self, all_leave};
use crate::ledger::Ledger;
use crate::texts::Texts;
use crate::{Batch, ModelInformation, ModelOptions, OutputRow, OutputRows, Outputs, Plan, RuntimeError};

/// A model on its devices with the caches of its sequences.
pub struct Model {
    pub(crate) graph: Arc<Graph>,
    pub(crate) weights: Arc<dyn WeightSource>,
    pub(crate) information: ModelInformation,
    pub(crate) options: ModelOptions,
    pub(crate) plan: Plan,
    pub(crate) segments: Vec<Loaded>,
    /// One per cache group that is kept, in the order of `Graph::groups`; none for an encoder alone.
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) output: ValueId,
    /// Rows of a text that an embedding is made from, where the model makes embeddings.
    pub(crate) pooled: Option<PooledRows>,
    /// What a draft head hands on to its next step.
    pub(crate) hidden: Option<ValueId>,
    /// The states of `ModelOptions::head_inputs`.
    pub(crate) head_inputs: Vec<ValueId>,
    /// The same of a step whose rows all leave the model, where that spares the work of segments apart.
    pub(crate) output_state: Option<ValueId>,
    /// Bytes of one saved cell of each state.
    pub(crate) cell_bytes: Vec<usize>,
    /// Which sequences hold long texts.
    pub(crate) texts: Texts,
    /// Made when first needed, since it reads a little of every weight; without what adapters count.
    pub(crate) identity: Option<Identity>,
    /// How strongly each adapter counts, where that can be changed.
    pub(crate) adapters: Vec<f32>,
    /// Who looks at the watched values after each step.
    pub(crate) observer: Option<Observer>,
}

/// Gets the watched values of a step, and those of its outputs that it leaves.
pub type Observer = Box<dyn FnMut(&HashMap<ValueId, Array>) + Send>;

/// A segment on its device.
pub(crate) struct Loaded {
    /// It serves only rows that do not leave the model, so steps without such rows do without it.
    pub(crate) apart: bool,
    pub(crate) partition: Box<dyn Partition>,
    pub(crate) program: ProgramId,
}

impl Model {
    /// Runs the tokens of a batch and returns the rows of logits (or embeddings) that it asks for, in its order.
    /// Where rows see later ones, each work is a text of its own, and nothing of it is kept.
    ///
    /// On an error nothing of the batch stays: every sequence has its old length. Only where a device fails in
    /// the middle of a batch so long that a windowed cache has already given up what a sequence needs to go on,
    /// that sequence is emptied.
    pub fn run(&mut self, batch: &Batch) -> Result<Outputs, RuntimeError> {
        self.run_with(batch, &[]).map(|outputs| outputs.rows)
    }

    /// [`Model::run`] with the features of each work's rows, as [`Model::run_draft`] describes.
    pub(crate) fn run_with(
        &mut self,
        batch: &Batch,
        features: &[Vec<f32>],
    ) -> Result<DraftOutputs, RuntimeError> {
        self.check(batch)?;
        let mut features = self.check_features(batch, features)?;
        self.begin_texts(batch);
        let lengths: Vec<(u32, i32)> =
            batch.work.iter().map(|work| (work.sequence, self.next(work.sequence))).collect();
        let rows = Outputs { width: self.information.width as usize, ..Outputs::default() };
        let mut outputs = DraftOutputs { rows, hidden: Vec::new() };
        let whole = self.needs_whole_texts();
        let micro_batches = split(batch, self.options.micro_batch, self.options.outputs, whole);
        // Rows of several steps are given in one way: all of them.
        let best = batch.best.filter(|_| micro_batches.len() == 1);
        for micro_batch in micro_batches {
            let (featured_rows, features) = features.take(micro_batch.tokens.len());
            let deterministic = batch.deterministic;
            let step = Step { featured_rows, features, deterministic, best, ..Step::default() };
            if let Err(error) = self.step(micro_batch, step, &mut outputs) {
                self.roll_back(&lengths);
                return Err(error);
            }
        }
        Ok(outputs)
    }

    /// How strongly each adapter counts, if the model was loaded with adapters that can be switched
    /// ([`crate::Extras::switchable`]); otherwise nothing.
    pub fn adapters(&self) -> &[f32] {
        &self.adapters
    }

    /// Changes how strongly each adapter counts from the next step on. What sequences hold was computed with the old
    /// strengths: only a sequence that is cleared is wholly of the new ones. Saved sequences fit the strengths that
    /// they were saved with.
    pub fn set_adapters(&mut self, strengths: &[f32]) -> Result<(), RuntimeError> {
        let (found, expected) = (strengths.len(), self.adapters.len());
        if found != expected || strengths.iter().any(|strength| !strength.is_finite()) {
            return Err(RuntimeError::Adapters { found, expected });
        }
        self.adapters = strengths.to_vec();
        Ok(())
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

    /// Bytes of the weights that it was loaded with, as they are in the file: without tensors that nothing reads.
    pub fn weight_bytes(&self) -> u64 {
        let weights = (0..self.graph.weights.len() as u32).map(|weight| self.weights.bytes(WeightId(weight)));
        weights.map(|bytes| bytes.len() as u64).sum()
    }

    /// What lies and runs where.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Memory held by each partition, in the order in which they run.
    pub fn memory(&self) -> Vec<MemoryUse> {
        self.segments.iter().map(|segment| segment.partition.memory()).collect()
    }

    /// Whether a text must be in one step as a whole.
    pub fn needs_whole_texts(&self) -> bool {
        self.pooled == Some(PooledRows::Mean) || self.graph.groups().contains(&CacheGroup::Step)
    }

    /// Position of the sequence's next row.
    pub(crate) fn next(&self, sequence: u32) -> i32 {
        self.ledgers.first().map_or(0, |ledger| ledger.next(sequence))
    }

    /// Ledgers of what has the positions of tokens: all but that of the encoder.
    pub(crate) fn timed(&self) -> impl Iterator<Item = &Ledger> {
        self.ledgers.iter().filter(|ledger| ledger.group() != CacheGroup::Encoder)
    }

    /// The same, to change.
    pub(crate) fn timed_mut(&mut self) -> impl Iterator<Item = &mut Ledger> {
        self.ledgers.iter_mut().filter(|ledger| ledger.group() != CacheGroup::Encoder)
    }

    /// The ledger of what an encoder has read.
    pub(crate) fn encoder(&self) -> Option<&Ledger> {
        self.ledgers.iter().find(|ledger| ledger.group() == CacheGroup::Encoder)
    }

    /// Tokens for which there are free cells, over all sequences.
    pub fn free_cells(&self) -> u32 {
        let full = self.ledgers.iter().filter(|ledger| ledger.group() == CacheGroup::Full);
        full.map(Ledger::free).min().unwrap_or(self.options.context)
    }

    /// Refuses a batch that cannot be run as a whole, before anything is changed.
    fn check(&self, batch: &Batch) -> Result<(), RuntimeError> {
        let vocabulary = self.information.vocabulary;
        let context = self.information.context;
        let mut added: BTreeMap<u32, u64> = BTreeMap::new();
        for work in &batch.work {
            self.check_sequence(work.sequence)?;
            if let Some(token) = work.tokens.iter().find(|token| **token >= vocabulary) {
                return Err(RuntimeError::TokenOutOfRange { token: *token, vocabulary });
            }
            *added.entry(work.sequence).or_default() += work.tokens.len() as u64;
            let read = self.encoder().is_none_or(|encoder| encoder.next(work.sequence) > 0);
            if !read && !work.tokens.is_empty() {
                return Err(RuntimeError::NotEncoded { sequence: work.sequence });
            }
            if let Some(positions) = self.graph.positions.filter(|most| work.tokens.len() > *most as usize) {
                return Err(RuntimeError::BeyondPositions { tokens: work.tokens.len(), positions });
            }
            if self.needs_whole_texts() {
                let most = match work.outputs {
                    OutputRows::All => self.options.micro_batch.min(self.options.outputs),
                    _ => self.options.micro_batch,
                };
                if work.tokens.len() > most as usize {
                    return Err(RuntimeError::TextTooLong { tokens: work.tokens.len(), most });
                }
            }
        }
        if self.ledgers.is_empty() {
            return Ok(());
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

    /// Runs one micro-batch, to which `step` brings the features, and appends its rows.
    fn step(
        &mut self,
        micro_batch: MicroBatch,
        step: Step,
        DraftOutputs { rows: outputs, hidden }: &mut DraftOutputs,
    ) -> Result<(), RuntimeError> {
        let MicroBatch { tokens, pieces, output_rows } = micro_batch;
        let mut rows = Vec::with_capacity(tokens.len());
        let mut sequences: Vec<Range<u32>> = Vec::with_capacity(pieces.len());
        let mut next: BTreeMap<u32, i32> = BTreeMap::new();
        for (sequence, count) in &pieces {
            let mut start = *next.entry(*sequence).or_insert_with(|| self.next(*sequence));
            if self.ledgers.is_empty() {
                start = 0;
            }
            let first = rows.len() as u32;
            sequences.push(first..first + count);
            rows.extend((start..start + *count as i32).map(|position| (*sequence, position)));
            next.insert(*sequence, start + *count as i32);
        }
        let positions: Vec<i32> = rows.iter().map(|(_, position)| *position).collect();
        let groups = self.place(&pieces, &positions, &sequences)?;
        let long_texts = self.texts.of_pieces(&pieces);
        let adapters = self.adapters.clone();
        let step = Step { tokens, positions, output_rows, groups, sequences, long_texts, adapters, ..step };
        let mut boundary = self.run_step(&step)?;
        if let Some(observer) = &mut self.observer {
            observer(&boundary.values);
        }
        let of_outputs = self.output_state.as_slice();
        let states =
            if of_outputs.is_empty() || !all_leave(&step) { &self.head_inputs[..] } else { of_outputs };
        layer_inputs::append(states, &boundary, step.tokens.len(), &mut outputs.states)?;
        if step.output_rows.is_empty() {
            return Ok(());
        }
        let logits = boundary.values.remove(&self.output).map(puna_graph::Array::into_lent);
        let logits = logits.unwrap_or_default();
        outputs.best = boundary.best.remove(&self.output);
        let expected = step.output_rows.len() * outputs.width;
        let found = outputs.best.as_ref().map_or(logits.len(), |best| best.rows() * outputs.width);
        if found != expected {
            return Err(RuntimeError::OutputCount { found, expected });
        }
        if let Some(states) = self.hidden.and_then(|value| boundary.values.remove(&value)) {
            hidden.extend(states.into_floats());
        }
        // The usual single step hands its rows over without a copy.
        if outputs.logits.is_empty() {
            outputs.logits = logits;
        } else {
            outputs.logits.extend(logits.iter().copied());
        }
        let output_rows = step.output_rows.iter().filter_map(|row| rows.get(*row as usize));
        outputs.rows.extend(output_rows.map(|(sequence, position)| OutputRow {
            sequence: *sequence,
            position: position.unsigned_abs(),
        }));
        Ok(())
    }

    /// Cells of every cache group for the rows of a micro-batch.
    fn place(
        &mut self,
        pieces: &[(u32, u32)],
        positions: &[i32],
        sequences: &[Range<u32>],
    ) -> Result<Vec<GroupStep>, RuntimeError> {
        let context = self.options.context;
        let mut groups = Vec::new();
        for (index, group) in self.graph.groups().into_iter().enumerate() {
            groups.push(match group {
                CacheGroup::Step => GroupStep::of_rows(positions, sequences),
                CacheGroup::EncoderStep => GroupStep::default(),
                CacheGroup::Encoder => {
                    let ledger = &self.ledgers[index];
                    let span = |((sequence, _), rows): (&(u32, u32), &Range<u32>)| Span {
                        tokens: rows.clone(),
                        cells: ledger.cells(*sequence),
                    };
                    ledger.read(pieces.iter().zip(sequences).map(span).collect())
                }
                CacheGroup::Full | CacheGroup::Window(_) | CacheGroup::Recurrent => {
                    let ledger = &mut self.ledgers[index];
                    let free = ledger.free();
                    let full = |needed| RuntimeError::ContextFull { needed, free, context };
                    ledger.place(pieces).map_err(full)?
                }
            });
        }
        Ok(groups)
    }

    /// Runs all partitions in order.
    pub(crate) fn run_step(&mut self, step: &Step) -> Result<Boundary, RuntimeError> {
        let mut boundary = Boundary::default();
        let skips = self.output_state.is_some() && all_leave(step);
        for Loaded { partition, program, .. } in
            self.segments.iter_mut().filter(|loaded| !(skips && loaded.apart))
        {
            partition.run(*program, step, &mut boundary)?;
        }
        Ok(boundary)
    }

    /// Gives sequences their old lengths back, or empties those that could not go on from there.
    fn roll_back(&mut self, lengths: &[(u32, i32)]) {
        for (sequence, length) in lengths {
            for ledger in self.timed_mut() {
                ledger.remove(*sequence, *length..i32::MAX);
            }
            if self.timed().any(|ledger| !ledger.can_continue(*sequence, *length)) {
                self.clear(*sequence);
            }
        }
    }
}
