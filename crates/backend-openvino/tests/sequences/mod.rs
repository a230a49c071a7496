//! Real models beside the project, and several sequences of one.
#![allow(dead_code)] // each test program uses some of it
#![allow(clippy::print_stdout)] // a skipped test says why

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{Backend, BackendError, Boundary, Bounds, CacheOptions, DeviceId, Partition, ProgramId};
use puna_backend_openvino::OpenVino;
use puna_conformance::run::FileWeights;
use puna_gguf::{File, OpenOptions};
use puna_graph::{Graph, GroupStep, Output, Span, Step};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

/// Cells of one sequence unless a test says otherwise.
const CELLS: u32 = 256;

/// The first starter model.
pub const SMOLLM2: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
/// The second.
pub const GEMMA: &str = "models/gemma-3-270m-q4_k_m.gguf";

/// A model's file; says so where it is not here.
pub fn model(name: &str) -> Option<Arc<File>> {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let path: Option<PathBuf> = folders.map(|folder| folder.join(name)).find(|path| path.exists());
    match path {
        Some(path) => Some(Arc::new(File::open(&path, &OpenOptions::default()).expect("the model opens"))),
        None => {
            println!("skipped: there is no {name} beside the project");
            None
        }
    }
}

/// Several sequences of a model, each with cells of its own.
pub struct Sequences {
    graph: Arc<Graph>,
    partition: Box<dyn Partition>,
    program: ProgramId,
    lengths: Vec<u32>,
    /// Cells of one sequence.
    cells: u32,
}

impl Sequences {
    /// With [`CELLS`] for each sequence.
    pub fn load(backend: &OpenVino, file: &Arc<File>, count: u32, cache: DType) -> Self {
        Self::load_with(backend, file, count, cache, CELLS)
    }

    /// Of so many cells for each sequence.
    pub fn load_with(backend: &OpenVino, file: &Arc<File>, count: u32, cache: DType, of_one: u32) -> Self {
        Self::try_load(backend, file, count, [cache; 2], of_one).expect("the segment loads")
    }

    /// With keys and values in these formats.
    pub fn try_load(
        backend: &OpenVino,
        file: &Arc<File>,
        count: u32,
        [keys, values]: [DType; 2],
        of_one: u32,
    ) -> Result<Self, BackendError> {
        let options = BuildOptions { context: of_one, ..BuildOptions::default() };
        let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("the model builds"));
        let weights = Arc::new(FileWeights::new(file.clone(), graph.clone()));
        let cells = vec![of_one * count; graph.groups().len()];
        let caches = CacheOptions { keys, values, sequences: count, cells };
        let (_, segment) = partition(&graph, |_| 0).remove(0);
        let mut partition = backend.load(DeviceId(0), segment, weights, &caches, &mut |_| true)?;
        let bounds = Bounds { tokens: of_one, outputs: count };
        let program = partition.compile(bounds)?;
        Ok(Self { graph, partition, program, lengths: vec![0; count as usize], cells: of_one })
    }

    /// Appends tokens to sequences in one step; returns the logits after the last token of each.
    pub fn push(&mut self, texts: &[(usize, &[u32])]) -> Vec<Vec<f32>> {
        let mut step = Step::default();
        let mut group = GroupStep {
            cell_positions: vec![0; self.lengths.len() * self.cells as usize],
            ..GroupStep::default()
        };
        for (sequence, tokens) in texts {
            let base = *sequence as u32 * self.cells;
            let first = self.lengths[*sequence];
            let end = first + tokens.len() as u32;
            let start = step.tokens.len() as u32;
            step.tokens.extend_from_slice(tokens);
            step.positions.extend(first as i32..end as i32);
            step.output_rows.push(step.tokens.len() as u32 - 1);
            group.write_cells.extend(base + first..base + end);
            let rows: Range<u32> = start..step.tokens.len() as u32;
            step.sequences.push(rows.clone());
            group.spans.push(Span { tokens: rows, cells: std::iter::once(base..base + end).collect() });
            self.lengths[*sequence] = end;
        }
        for (sequence, length) in self.lengths.iter().enumerate() {
            for position in 0..*length {
                group.cell_positions[sequence * self.cells as usize + position as usize] = position as i32;
            }
        }
        step.groups = vec![group; self.graph.groups().len()];
        let mut boundary = Boundary::default();
        self.partition.run(self.program, &step, &mut boundary).expect("the step runs");
        let logits = self.graph.output(Output::Logits).expect("the model has logits");
        let logits = boundary.values.remove(&logits).expect("logits leave the model").into_floats();
        let width = logits.len() / texts.len();
        logits.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }

    /// Forgets what a sequence has after so many tokens.
    pub fn truncate(&mut self, sequence: usize, length: u32) {
        self.lengths[sequence] = length;
    }

    /// Bytes that all caches take.
    pub fn cache_bytes(&self) -> u64 {
        self.partition.memory().caches
    }

    /// What is saved of the first cells of the first state.
    pub fn saved(&mut self, cells: u32) -> Vec<u8> {
        let states = self.partition.states();
        let state = states.states()[0];
        states.save(state, &(0..cells).collect::<Vec<_>>()).expect("it is saved")
    }

    /// Puts back what was saved of the first cells of the first state.
    pub fn restore(&mut self, cells: u32, bytes: &[u8]) {
        let states = self.partition.states();
        let state = states.states()[0];
        states.restore(state, &(0..cells).collect::<Vec<_>>(), bytes).expect("it is restored");
    }

    /// Forgets all texts.
    pub fn clear(&mut self) {
        self.lengths.fill(0);
    }

    /// Appends a prompt and then so many tokens, each the most likely one; returns all logits on the way.
    pub fn generate(&mut self, prompts: &[(usize, Vec<u32>)], count: usize) -> Vec<Vec<Vec<f32>>> {
        let texts: Vec<(usize, &[u32])> = prompts.iter().map(|(id, tokens)| (*id, &tokens[..])).collect();
        let mut steps = vec![self.push(&texts)];
        for _ in 0..count {
            let best: Vec<[u32; 1]> = steps[steps.len() - 1].iter().map(|logits| [best(logits)]).collect();
            let texts: Vec<(usize, &[u32])> =
                prompts.iter().zip(&best).map(|((id, _), token)| (*id, &token[..])).collect();
            steps.push(self.push(&texts));
        }
        steps
    }
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("there are logits") as u32
}
