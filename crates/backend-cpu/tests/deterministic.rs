//! With `deterministic`, as an option of the backend or of its steps, a sequence's logits are the same to the bit whatever else shares its steps: other sequences,
//! more threads, or its own prompt in larger or smaller pieces.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, ProgramId, WeightSource};
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::{quantised, zoo};
use puna_gguf::File;
use puna_graph::{Graph, GroupStep, Output, Span, Step, WeightId};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

/// Cells that each sequence has for itself.
const CELLS: u32 = 64;

struct FileWeights {
    file: Arc<File>,
    graph: Arc<Graph>,
}

impl WeightSource for FileWeights {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        let tensor = self.file.tensors.get(&self.graph.weights[weight.index()].name);
        self.file.bytes(tensor.expect("the file has the tensor"))
    }

    fn release(&self, _: WeightId) {}
}

/// A number of sequences with the same tokens, on one partition.
struct Sequences {
    graph: Arc<Graph>,
    partition: Box<dyn Partition>,
    program: ProgramId,
    count: u32,
    length: u32,
    /// Whether the steps ask for it.
    deterministic: bool,
    /// Cells of each sequence after whose first so many its text begins; it goes on in these, as in a window that was full.
    turned: u32,
}

impl Sequences {
    fn load(cpu: &Cpu, file: &Arc<File>, graph: &Arc<Graph>, count: u32) -> Self {
        let weights = Arc::new(FileWeights { file: file.clone(), graph: graph.clone() });
        let caches = CacheOptions {
            keys: DType::F16,
            values: DType::F16,
            sequences: count,
            cells: vec![CELLS * count; graph.groups().len()],
        };
        let (_, segment) = partition(graph, |_| 0).remove(0);
        let mut partition =
            cpu.load(DeviceId(0), segment, weights, &caches, &mut |_| true).expect("the segment loads");
        let bounds = Bounds { tokens: CELLS * count, outputs: count };
        let program = partition.compile(bounds).expect("the segment compiles");
        Self { graph: graph.clone(), partition, program, count, length: 0, deterministic: false, turned: 0 }
    }

    /// Appends the same tokens to every sequence in one step; returns each one's last logits.
    fn push(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let rows = tokens.len() as u32;
        let (first, end) = (self.length, self.length + rows);
        self.length = end;
        let each = || 0..self.count;
        let cell = |sequence: u32, position: u32| sequence * CELLS + (position + self.turned) % CELLS;
        let position = |cell: u32| (cell % CELLS + CELLS - self.turned) % CELLS;
        // In ascending order of cells.
        let read = |sequence: u32| {
            let mut cells: Vec<u32> = (0..end).map(|position| cell(sequence, position)).collect();
            cells.sort_unstable();
            let runs = cells.chunk_by(|before, after| before + 1 == *after);
            runs.map(|run| run[0]..run[run.len() - 1] + 1).collect()
        };
        let written = |sequence| (first..end).map(move |position| cell(sequence, position));
        let group = || GroupStep {
            write_cells: each().flat_map(written).collect(),
            cell_positions: (0..CELLS * self.count).map(|cell| position(cell) as i32).collect(),
            spans: each()
                .map(|sequence| Span {
                    tokens: sequence * rows..(sequence + 1) * rows,
                    cells: read(sequence),
                })
                .collect(),
        };
        let step = Step {
            tokens: each().flat_map(|_| tokens.iter().copied()).collect(),
            positions: each().flat_map(|_| first as i32..end as i32).collect(),
            output_rows: each().map(|sequence| (sequence + 1) * rows - 1).collect(),
            sequences: each().map(|sequence| sequence * rows..(sequence + 1) * rows).collect(),
            groups: self.graph.groups().iter().map(|_| group()).collect(),
            deterministic: self.deterministic,
            ..Step::default()
        };
        let mut boundary = Boundary::default();
        self.partition.run(self.program, &step, &mut boundary).expect("the step runs");
        let logits = self.graph.output(Output::Logits).expect("the model has logits");
        let logits = boundary.values.remove(&logits).expect("logits leave the model").into_floats();
        logits.chunks(logits.len() / self.count as usize).map(<[f32]>::to_vec).collect()
    }
}

/// Logits of every sequence after the prompt, cut in pieces, and after each of some single tokens.
fn run(cpu: &Cpu, file: &Arc<File>, graph: &Arc<Graph>, count: u32, piece: usize) -> Vec<Vec<Vec<f32>>> {
    push_all(Sequences::load(cpu, file, graph, count), piece)
}

fn push_all(mut sequences: Sequences, piece: usize) -> Vec<Vec<Vec<f32>>> {
    let tokens: Vec<u32> = (0..40).map(|index| (index * 7 + 3) % 50).collect();
    let (prompt, answer) = tokens.split_at(36);
    let mut rows: Vec<_> = prompt.chunks(piece).map(|part| sequences.push(part)).collect();
    rows.drain(..rows.len() - 1);
    rows.extend(answer.iter().map(|token| sequences.push(&[*token])));
    rows
}

fn cpu(threads: usize) -> Cpu {
    start(threads, true)
}

fn start(threads: usize, deterministic: bool) -> Cpu {
    start_with(Features::detect(), threads, deterministic)
}

fn start_with(features: Features, threads: usize, deterministic: bool) -> Cpu {
    Cpu::new(CpuOptions { threads, features, deterministic, ..CpuOptions::default() }).expect("threads start")
}

/// All logits of a sequence.
fn bits(rows: &[Vec<Vec<f32>>], sequence: usize) -> Vec<u32> {
    rows.iter().flat_map(|row| row[sequence].iter().map(|logit| logit.to_bits())).collect()
}

/// Raises a flag in the end, come what may.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn sequences_do_not_depend_on_who_computes_their_pieces() {
    let model = zoo::models().into_iter().find(|model| model.name == "llama-dense").expect("a zoo model");
    let file = quantised(&model, &[DType::Q4_0, DType::F16, DType::Q4_1, DType::Q8_0]);
    let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
    let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("it builds"));
    let right = bits(&run(&cpu(1), &file, &graph, 1, 1), 0);
    // Threads lose their cores to these, and others compute their pieces.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _stop = Stop(&stop);
        for threads in [2, 3, 5, 2, 3, 5] {
            let found = bits(&run(&cpu(threads), &file, &graph, 1, 1), 0);
            assert!(found == right, "{threads} threads beside busy ones");
        }
    });
}

#[test]
fn sequences_do_not_depend_on_what_shares_their_steps() {
    use DType::*;
    let formats: [&[DType]; 6] =
        [&[Q4_0, Q8_0, Q4_1], &[Q5_0, Q5_1, IQ4_NL], &[F16], &[BF16], &[F32], &[Q8_0, F16, Q4_1, BF16, Q5_0]];
    let model = zoo::models().into_iter().find(|model| model.name == "llama-dense").expect("a zoo model");
    for formats in formats {
        let file = quantised(&model, formats);
        let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
        let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("it builds"));
        let right = bits(&run(&cpu(1), &file, &graph, 1, 1), 0);
        assert!(bits(&run(&start(1, false), &file, &graph, 1, 1), 0) == right, "{formats:?}: single tokens");
        for (threads, count, piece) in [
            (1, 1, 36),
            (1, 1, 5),
            (2, 1, 36),
            (3, 1, 17),
            (1, 2, 36),
            (2, 8, 36),
            (3, 8, 12),
            (2, 32, 36),
            (3, 32, 1),
        ] {
            let rows = run(&cpu(threads), &file, &graph, count, piece);
            let mut asking = Sequences::load(&start(threads, false), &file, &graph, count);
            asking.deterministic = true;
            let asked = push_all(asking, piece);
            for sequence in 0..count as usize {
                assert!(
                    bits(&rows, sequence) == right && bits(&asked, sequence) == right,
                    "{formats:?}: sequence {sequence} of {count}, {threads} threads, {piece} tokens at a time"
                );
            }
        }
    }
}

#[test]
fn identical_sequences_get_identical_logits_at_every_level() {
    use DType::*;
    let model = zoo::models().into_iter().find(|model| model.name == "llama-dense").expect("a zoo model");
    let file = quantised(&model, &[Q8_0, F16, Q4_1, BF16, Q5_0, F32]);
    let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
    let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("it builds"));
    for (level, features) in Features::detect().levels() {
        let right = bits(&run(&start_with(features, 1, true), &file, &graph, 1, 1), 0);
        for (threads, count) in [(2, 1), (1, 2), (2, 8), (3, 32)] {
            let rows = run(&start_with(features, threads, true), &file, &graph, count, 36);
            for sequence in 0..count as usize {
                let found = bits(&rows, sequence);
                assert!(found == right, "{level}: sequence {sequence} of {count}, {threads} threads");
            }
            // Without the promise other kernels may compute them, but all of them the same.
            let rows = run(&start_with(features, threads, false), &file, &graph, count, 36);
            for sequence in 1..count as usize {
                assert!(
                    bits(&rows, sequence) == bits(&rows, 0),
                    "{level}, not deterministic: sequence {sequence} of {count}, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn sequences_do_not_depend_on_where_their_cells_lie() {
    let model = zoo::models().into_iter().find(|model| model.name == "llama-dense").expect("a zoo model");
    let file = quantised(&model, &[DType::F32]);
    let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
    let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("it builds"));
    let right = bits(&run(&cpu(1), &file, &graph, 1, 1), 0);
    for turned in [CELLS - 1, CELLS - 7, CELLS - 20, CELLS - 36] {
        for piece in [1, 12, 36] {
            let mut sequences = Sequences::load(&cpu(2), &file, &graph, 2);
            sequences.turned = turned;
            let rows = push_all(sequences, piece);
            assert!(bits(&rows, 1) == right, "{turned} cells before, {piece} tokens at a time");
        }
    }
}
