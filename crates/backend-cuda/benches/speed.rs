//! Tokens a second of a model file on the first card, without the layers above: prompts, single tokens at some depth, and
//! many sequences at once.
//!
//! `speed MODEL [images=FOLDER] [prompt=TOKENS] [depth=TOKENS] [sequences=COUNT] [steps=COUNT] [cache=FORMAT] [best=COUNT]`, any
//! number of them; each prints a line. `images` comes first and names a folder of compiled kernels, which replace the embedded ones of
//! their names. After `steps`, many sequences are measured over so many steps instead of 32. Tests after `best` ask for so many of
//! the highest logits of each row with their tokens, 1 for what greedy choice needs, 0 for all logits as before.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, ProgramId};
use puna_backend_cuda::{Cuda, IMAGES, Images};
use puna_conformance::run::FileWeights;
use puna_gguf::{File, OpenOptions};
use puna_graph::{Graph, GroupStep, Span, Step};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

const MICRO_BATCH: u32 = 2048;
const MOST_CELLS: u32 = 40960;

struct Bench {
    graph: Arc<Graph>,
    partition: Box<dyn Partition>,
    program: ProgramId,
    /// As in a step.
    best: Option<u32>,
}

impl Bench {
    /// One step: each sequence adds `count` rows after `lengths`; cells of a sequence are `stride` apart.
    fn step(&mut self, lengths: &[u32], count: u32, stride: u32) {
        let step = self.describe(lengths, count, stride);
        self.run(&step);
    }

    fn run(&mut self, step: &Step) {
        let mut boundary = Boundary::default();
        self.partition.run(self.program, step, &mut boundary).expect("the step runs");
    }

    fn describe(&self, lengths: &[u32], count: u32, stride: u32) -> Step {
        let sequences = lengths.len() as u32;
        let rows = |sequence: u32| sequence * count..(sequence + 1) * count;
        let group = || {
            let mut group = GroupStep::default();
            let end = lengths.iter().enumerate().map(|(s, length)| s as u32 * stride + length + count).max();
            let positions = (0..end.unwrap_or(0)).step_by(stride as usize).flat_map(|_| 0..stride as i32);
            group.cell_positions = positions.take(end.unwrap_or(0) as usize).collect();
            for (sequence, length) in lengths.iter().enumerate() {
                let first = sequence as u32 * stride;
                group.write_cells.extend(first + length..first + length + count);
                let cells = std::iter::once(first..first + length + count).collect();
                group.spans.push(Span { tokens: rows(sequence as u32), cells });
            }
            group
        };
        Step {
            tokens: (0..sequences * count).map(|row| (row * 7919 + lengths[0] * 31) % 30000).collect(),
            positions: lengths
                .iter()
                .flat_map(|length| (*length..*length + count).map(|p| p as i32))
                .collect(),
            output_rows: (0..sequences).map(|sequence| rows(sequence).end - 1).collect(),
            groups: self.graph.groups().iter().map(|_| group()).collect(),
            best: self.best,
            ..Step::default()
        }
    }

    fn fill(&mut self, from: u32, to: u32) {
        let mut at = from;
        while at < to {
            let count = (to - at).min(MICRO_BATCH);
            self.step(&[at], count, MOST_CELLS);
            at += count;
        }
    }
}

/// The embedded kernels, those of the folder instead where it has them.
fn images(folder: &Path) -> Images {
    IMAGES
        .iter()
        .map(|(name, image)| match std::fs::read(folder.join(format!("{name}.fatbin"))) {
            Ok(bytes) => (name.to_string(), bytes.into()),
            Err(_) => (name.to_string(), (*image).into()),
        })
        .collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let Some((model, tests)) = arguments.split_first() else { return };
    let folder = tests.iter().find_map(|test| test.strip_prefix("images="));
    let cuda = match folder.map_or_else(Cuda::find, |folder| Cuda::find_with(images(Path::new(folder)))) {
        Ok(cuda) => cuda,
        Err(error) => {
            println!("{error}");
            return;
        }
    };
    let start = Instant::now();
    let file = Arc::new(File::open(Path::new(model), &OpenOptions::default()).expect("the model opens"));
    let graph = build(&file.metadata, &file.tensors, &BuildOptions { context: 0, ..BuildOptions::default() })
        .expect("the model builds");
    let graph = Arc::new(graph);
    let (mut cache, mut best, mut steps) = (DType::F16, None, 32);
    let mut loaded: Option<Bench> = None;
    for test in tests {
        let (kind, number) = test.split_once('=').expect("name=number");
        if kind == "images" {
            continue;
        }
        if kind == "cache" {
            cache = DType::from_name(number).expect("a format");
            loaded = None;
            continue;
        }
        let number: u32 = number.parse().expect("a number");
        if kind == "steps" {
            steps = number;
            continue;
        }
        if kind == "best" {
            best = (number > 0).then_some(number);
            continue;
        }
        let bench = loaded.get_or_insert_with(|| {
            let source = Arc::new(FileWeights::new(file.clone(), graph.clone()));
            let caches = CacheOptions {
                keys: cache,
                values: cache,
                sequences: 64,
                cells: vec![MOST_CELLS; graph.groups().len()],
            };
            let (_, segment) = partition(&graph, |_| 0).remove(0);
            let mut partition =
                cuda.load(DeviceId(0), segment, source, &caches, &mut |_| true).expect("the model loads");
            let program =
                partition.compile(Bounds { tokens: MICRO_BATCH, outputs: 64 }).expect("it compiles");
            println!("loaded in {:.1} s, {:?}", start.elapsed().as_secs_f64(), partition.memory());
            Bench { graph: graph.clone(), partition, program, best: None }
        });
        bench.best = best;
        let given = best.map_or_else(String::new, |best| format!(", {best} of each row"));
        match kind {
            "prompt" => {
                bench.fill(0, number);
                let start = Instant::now();
                bench.fill(0, number);
                bench.fill(0, number);
                let rate = 2.0 * number as f64 / start.elapsed().as_secs_f64();
                println!("{cache} prompt of {number}{given}: {rate:.0} t/s");
            }
            "depth" => {
                bench.fill(0, number);
                for warm in 0..4 {
                    bench.step(&[number + warm], 1, MOST_CELLS);
                }
                let start = Instant::now();
                for step in 0..128 {
                    bench.step(&[number + 4 + step], 1, MOST_CELLS);
                }
                println!(
                    "{cache} single at {number}{given}: {:.1} t/s",
                    128.0 / start.elapsed().as_secs_f64()
                );
            }
            "sequences" => {
                let stride = MOST_CELLS / number;
                let depth = 512.min(stride - 64);
                let lengths: Vec<u32> = vec![depth; number as usize];
                // Described once: listing 40,960 cells takes this program a hundredth of a step.
                let step = bench.describe(&lengths, 1, stride);
                bench.run(&step);
                bench.run(&step);
                let start = Instant::now();
                for _ in 0..steps {
                    bench.run(&step);
                }
                let rate = (steps * number) as f64 / start.elapsed().as_secs_f64();
                println!("{cache} {number} sequences at {depth}{given}: {rate:.0} t/s in all");
            }
            other => println!("unknown: {other}"),
        }
    }
}
