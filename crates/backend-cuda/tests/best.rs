//! The highest logits of rows, as kernels choose them, against the sort that defines them: ties, zeros of both signs, rows that are
//! ruled out or not finite, vocabularies of all sizes, one row and many.

mod emulated;

use std::sync::Arc;

use emulated::device;
use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, WeightSource};
use puna_backend_cuda::Cuda;
use puna_graph::ops::GatherRows;
use puna_graph::{Best, Graph, Input, Operand, Output, Step, ValueId, WeightDecl, WeightId};
use puna_quant::DType;

struct Table(Vec<u8>);

impl WeightSource for Table {
    fn bytes(&self, _: WeightId) -> &[u8] {
        &self.0
    }
    fn release(&self, _: WeightId) {}
}

/// A model whose logits are the rows of a table: those of a token are its row.
fn model(backend: &dyn Backend, table: &[f32], width: usize) -> (Box<dyn Partition>, ValueId) {
    let mut graph = Graph::default();
    let shape = vec![(table.len() / width) as u32, width as u32];
    graph.weights.push(WeightDecl { name: "table".into(), dtype: DType::F32, shape, layer: None });
    let inputs = vec![Operand::Weight(WeightId(0)), Operand::Input(Input::Tokens)];
    let logits = graph.push(GatherRows, inputs, None, "logits").expect("rows");
    graph.outputs = vec![(Output::Logits, logits)];
    let (_, segment) = partition(&Arc::new(graph), |_| 0).remove(0);
    let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 1, cells: vec![] };
    let bytes = table.iter().flat_map(|number| number.to_le_bytes()).collect();
    let loaded = backend.load(DeviceId(0), segment, Arc::new(Table(bytes)), &caches, &mut |_| true);
    (loaded.expect("it loads"), logits)
}

/// Rows of one kind each.
fn rows(count: usize, width: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut table = Vec::with_capacity(count * width);
    for row in 0..count {
        let start = table.len();
        for column in 0..width {
            let x = random();
            table.push(match row % 8 {
                0 => (x - 0.5) * 30.0,
                1 => (x * 5.0).floor() - 2.0,
                2 => f32::NEG_INFINITY,
                3 if x < 0.99 => f32::NEG_INFINITY,
                4 if x < 0.5 => -0.0,
                4 => 0.0,
                5 => column as f32,
                6 => -(column as f32),
                _ => x - 2.0,
            });
        }
        let place = (random() * width as f32) as usize % width;
        match row % 16 {
            8 => table[start + place] = f32::NAN,
            9 => table[start + place..start + width].fill(f32::INFINITY),
            10 => table[start + width - 1] = 1.0,
            11 => table[start] = -f32::NAN,
            _ => {}
        }
    }
    table
}

#[test]
fn the_highest_are_those_of_a_sort() {
    let Some(backend) = device() else { return };
    let is_card = Cuda::find().is_ok();
    let all =
        [1, 2, 33, 128, 255, 8191, 8192, 8193, 32000, 65536, 128_256, 151_936, 262_144, 262_208, 524_288];
    // Threads take their time on a processor.
    let widths = if is_card { &all[..] } else { &[1, 33, 128, 8193] };
    let counts = if is_card { &[1, 2, 40, 64, 200, 256][..] } else { &[1, 40, 256] };
    for (index, width) in widths.iter().copied().enumerate() {
        let table = rows(64, width, 3 + index as u64);
        let right = Best::of(&table, width, 256);
        let (mut partition, logits) = model(&*backend, &table, width);
        let program = partition.compile(Bounds { tokens: 100, outputs: 64 }).expect("it compiles");
        for tokens in [0..1, 3..5, 7..16, 0..64, 0..100] {
            for count in counts.iter().copied() {
                if !is_card && tokens.len() > 16 && (width > 128 || count != 40) {
                    continue;
                }
                let tokens: Vec<u32> = tokens.clone().map(|token| token % 64).collect();
                let step = Step {
                    positions: vec![0; tokens.len()],
                    output_rows: vec![0],
                    best: Some(count),
                    tokens: tokens.clone(),
                    ..Step::default()
                };
                let mut boundary = Boundary::default();
                partition.run(program, &step, &mut boundary).expect("it runs");
                let found = boundary.best.remove(&logits).expect("the highest");
                assert!(boundary.values.is_empty() && found.rows() == tokens.len());
                let count = width.min(count as usize);
                for (index, token) in tokens.into_iter().enumerate() {
                    let right = right.row(token as usize).expect("a row");
                    let found = found.row(index).expect("a row");
                    let at = format!("row {token} of {width}, {count} of it");
                    let bits =
                        |bad: Option<(u32, f32)>| bad.map(|(column, number)| (column, number.to_bits()));
                    assert_eq!(bits(found.not_finite), bits(right.not_finite), "{at}");
                    if right.not_finite.is_none() {
                        assert_eq!(found.columns, &right.columns[..count], "{at}");
                        assert_eq!(found.numbers, &right.numbers[..count], "{at}");
                    }
                }
            }
        }
    }
}

#[test]
fn more_than_kernels_choose_come_as_all_logits() {
    let Some(backend) = device() else { return };
    let table = rows(4, 600, 5);
    let (mut partition, logits) = model(&*backend, &table, 600);
    let program = partition.compile(Bounds { tokens: 4, outputs: 4 }).expect("it compiles");
    for best in [None, Some(257)] {
        let step =
            Step { tokens: vec![3, 0], positions: vec![0; 2], output_rows: vec![1], best, ..Step::default() };
        let mut boundary = Boundary::default();
        partition.run(program, &step, &mut boundary).expect("it runs");
        assert!(boundary.best.is_empty());
        assert_eq!(boundary.values[&logits].floats(), [&table[1800..], &table[..600]].concat());
    }
}
