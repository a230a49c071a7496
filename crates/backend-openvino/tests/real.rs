//! SmolLM2 on OpenVINO's CPU plugin: several sequences in one batch, and the places for the caches against each other.
//! Skipped where the model does not lie in a folder `models` beside the project.
#![allow(clippy::print_stdout)] // a skipped test says why

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, ProgramId};
use puna_backend_openvino::OpenVino;
use puna_conformance::normalised_squared_error;
use puna_conformance::run::FileWeights;
use puna_gguf::{File, OpenOptions};
use puna_graph::{Graph, GroupStep, Output, Span, Step};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

mod common;

/// Cells of one sequence.
const CELLS: u32 = 256;

fn model() -> Option<Arc<File>> {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let path: Option<PathBuf> = folders
        .map(|folder| folder.join("models/SmolLM2-135M-Instruct.Q4_1.gguf"))
        .find(|path| path.exists());
    match path {
        Some(path) => Some(Arc::new(File::open(&path, &OpenOptions::default()).expect("the model opens"))),
        None => {
            println!("skipped: there is no models/SmolLM2-135M-Instruct.Q4_1.gguf beside the project");
            None
        }
    }
}

/// Several sequences of a model, each with cells of its own.
struct Sequences {
    graph: Arc<Graph>,
    partition: Box<dyn Partition>,
    program: ProgramId,
    lengths: Vec<u32>,
}

impl Sequences {
    fn load(backend: &OpenVino, file: &Arc<File>, count: u32, cache: DType) -> Self {
        let options = BuildOptions { context: CELLS, ..BuildOptions::default() };
        let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("the model builds"));
        let weights = Arc::new(FileWeights::new(file.clone(), graph.clone()));
        let cells = vec![CELLS * count; graph.groups().len()];
        let caches = CacheOptions { keys: cache, values: cache, sequences: count, cells };
        let (_, segment) = partition(&graph, |_| 0).remove(0);
        let mut partition =
            backend.load(DeviceId(0), segment, weights, &caches, &mut |_| true).expect("the segment loads");
        let bounds = Bounds { tokens: CELLS, outputs: count };
        let program = partition.compile(bounds).expect("the segment compiles");
        Self { graph, partition, program, lengths: vec![0; count as usize] }
    }

    /// Appends tokens to sequences in one step; returns the logits after the last token of each.
    fn push(&mut self, texts: &[(usize, &[u32])]) -> Vec<Vec<f32>> {
        let mut step = Step::default();
        let mut group = GroupStep {
            cell_positions: vec![0; self.lengths.len() * CELLS as usize],
            ..GroupStep::default()
        };
        for (sequence, tokens) in texts {
            let base = *sequence as u32 * CELLS;
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
                group.cell_positions[sequence * CELLS as usize + position as usize] = position as i32;
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

    /// Appends a prompt and then so many tokens, each the most likely one; returns all logits on the way.
    fn generate(&mut self, prompts: &[(usize, Vec<u32>)], count: usize) -> Vec<Vec<Vec<f32>>> {
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

/// A text of some tokens; each number gives another one.
fn prompt(number: usize) -> Vec<u32> {
    let length = 9 + 11 * number;
    (0..length).map(|place| (place * 977 + number * 3571 + 1009) as u32 % 40_000 + 100).collect()
}

/// What exact settings leave: orders of sums.
const SAME: f64 = 1e-6;

fn assert_same(name: &str, found: &[Vec<Vec<f32>>], right: &[Vec<Vec<f32>>], most: f64) {
    for (step, (found, right)) in found.iter().zip(right).enumerate() {
        for (sequence, (found, right)) in found.iter().zip(right).enumerate() {
            let error = normalised_squared_error(found, right);
            assert!(error < most, "{name}: step {step}, sequence {sequence}: {error:.1e}");
        }
    }
}

#[test]
fn all_places_for_caches_give_the_same() {
    let Some(file) = model() else { return };
    let prompts = [(0, prompt(3))];
    let Some((host, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let right = Sequences::load(&host, &file, 1, DType::F32).generate(&prompts, 6);
    let stateful = ("GGML_OPENVINO_STATEFUL_EXECUTION", "1");
    let Some((stateful, _)) = common::start(&[common::EXACT, common::NO_SHIM, stateful]) else { return };
    let found = Sequences::load(&stateful, &file, 1, DType::F32).generate(&prompts, 6);
    assert_same("stateful", &found, &right, SAME);
    let Some((pages, _)) = common::start_with_shim(&[common::EXACT]) else { return };
    let found = Sequences::load(&pages, &file, 1, DType::F32).generate(&prompts, 6);
    assert_same("pages", &found, &right, SAME);
}

/// Eight sequences of different lengths in one batch, and each alone.
fn eight(backend: &OpenVino, file: &Arc<File>, name: &str) {
    let prompts: Vec<(usize, Vec<u32>)> = (0..8).map(|number| (number, prompt(number))).collect();
    let together = Sequences::load(backend, file, 8, DType::F32).generate(&prompts, 4);
    for (number, text) in prompts {
        let alone = Sequences::load(backend, file, 1, DType::F32).generate(&[(0, text)], 4);
        let own: Vec<Vec<Vec<f32>>> = together.iter().map(|step| vec![step[number].clone()]).collect();
        assert_same(name, &own, &alone, SAME);
    }
}

#[test]
fn eight_sequences_in_one_batch_equal_eight_runs() {
    let Some(file) = model() else { return };
    let stateful = ("GGML_OPENVINO_STATEFUL_EXECUTION", "1");
    let Some((stateful, _)) = common::start(&[common::EXACT, common::NO_SHIM, stateful]) else { return };
    eight(&stateful, &file, "stateful");
    let Some((pages, _)) = common::start_with_shim(&[common::EXACT]) else { return };
    eight(&pages, &file, "pages");
}

/// The default settings: weights and activations of eight bits, prompts in bf16 where the processor has that.
#[test]
fn the_fast_settings_are_close_to_the_exact_ones() {
    let Some(file) = model() else { return };
    let Some((exact, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let Some((fast, _)) = common::start_with_shim(&[]) else { return };
    for number in [0, 7] {
        let prompts = [(0, prompt(number))];
        let mut exact = Sequences::load(&exact, &file, 1, DType::F32);
        let right = exact.generate(&prompts, 0);
        let found = Sequences::load(&fast, &file, 1, DType::F16).generate(&prompts, 0);
        // 2e-2 is the error of logits whose every factor has eight bits.
        assert_same("fast", &found, &right, 2e-2);
    }
}
