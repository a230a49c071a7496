//! Every number format on the device or the emulation of its kernels: products of few and many rows with a matrix, and
//! rows of a table, against the decoder.

mod emulated;

use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, WeightSource};
use puna_backend_cuda::Cuda;
use puna_conformance::normalised_squared_error;
use puna_graph::ops::{GatherRows, MatMul};
use puna_graph::{Graph, Input, Operand, Output, Step, WeightDecl, WeightId};
use puna_quant::{DType, FORMATS};

const ROWS: usize = 70;
const COLUMNS: usize = 512;

struct Bytes(Vec<u8>, Vec<u8>);

impl WeightSource for Bytes {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        if weight.index() == 0 { &self.0 } else { &self.1 }
    }
    fn release(&self, _: WeightId) {}
}

/// Bytes by chance, with finite scales that keep weights small.
fn random_matrix(dtype: DType, rows: usize, state: &mut u64) -> Vec<u8> {
    let format = dtype.format();
    let blocks = rows * COLUMNS / format.block;
    let mut bytes = Vec::new();
    for _ in 0..blocks * format.bytes {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.push((*state >> 33) as u8);
    }
    for block in bytes.chunks_exact_mut(format.bytes) {
        for field in format.floats {
            use puna_quant::FloatField::*;
            match *field {
                F16(at) => block[at + 1] = block[at + 1] & 0x83 | 0x24,
                BF16(at) => block[at + 1] = 0x3c,
                F32(at) => block[at + 3] = 0x3c,
                F64(at) => block[at + 7] = 0x3f,
                E8M0(at) => block[at] = 120 + block[at] % 4,
                SplitF16(at) => block[at + 7] = block[at + 7] & 0x0f | 0x20,
            }
        }
        if dtype == DType::NVFP4 {
            block[..4].iter_mut().for_each(|scale| *scale = 0x28 + *scale % 16);
        }
    }
    bytes
}

/// Devices and numbers of rows: all on the first, on others of the emulation what goes another way there.
fn cases(backend: &dyn Backend) -> Vec<(usize, u32)> {
    let rows: [&[u32]; 3] = [&[1, 2, 3, 8, 20, 40, 70], &[2, 8, 20, 70], &[70]];
    let devices = if backend.name() == "emulation" { backend.devices().len() } else { 1 };
    let all = (0..devices).flat_map(|device| rows[device].iter().map(move |count| (device, *count)));
    all.collect()
}

#[test]
fn products_equal_those_of_decoded_weights() {
    let backend: Box<dyn Backend> = match Cuda::find() {
        Ok(cuda) => Box::new(cuda),
        Err(_) => match emulated::backend() {
            Some(backend) => Box::new(backend),
            None => return,
        },
    };
    let mut state = 5;
    let mut wrong = Vec::new();
    for format in FORMATS.iter().filter(|format| COLUMNS.is_multiple_of(format.block)) {
        if !matches!(format.dtype, DType::I32 | DType::I64 | DType::F64) {
            compare(&*backend, format.dtype, ROWS, &cases(&*backend), &mut state, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where each processor has several tiles of a matrix it takes a share of all.
#[test]
fn products_with_a_matrix_of_many_tiles_are_right() {
    let Some(backend) = emulated::device() else { return };
    let (rows, cases): (usize, &[_]) = match backend.name() {
        "emulation" => (1100, &[(0, 5), (0, 40), (2, 20)]),
        _ => (40_000, &[(0, 5), (0, 40), (0, 64)]),
    };
    let (mut state, mut wrong) = (6, Vec::new());
    for dtype in [DType::Q4_K, DType::Q6_K, DType::F16] {
        compare(&*backend, dtype, rows, cases, &mut state, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Compares products of some rows of a matrix of this format with it, on these devices.
fn compare(
    backend: &dyn Backend,
    dtype: DType,
    rows: usize,
    cases: &[(usize, u32)],
    state: &mut u64,
    wrong: &mut Vec<String>,
) {
    let bytes = random_matrix(dtype, rows, state);
    let mut weights = vec![0.0_f32; rows * COLUMNS];
    (dtype.format().decode)(&bytes, &mut weights);
    if weights.iter().any(|weight| !weight.is_finite()) {
        return;
    }
    // Tokens pick rows of the matrix itself, which then are multiplied by it.
    let mut graph = Graph::default();
    for name in ["table", "matrix"] {
        graph.weights.push(WeightDecl {
            name: name.into(),
            dtype,
            shape: vec![rows as u32, COLUMNS as u32],
            layer: None,
        });
    }
    let table = vec![Operand::Weight(WeightId(0)), Operand::Input(Input::Tokens)];
    let x = graph.push(GatherRows, table, None, "x").expect("a look-up");
    let matrix = vec![Operand::Weight(WeightId(1)), x.into()];
    let y = graph.push(MatMul, matrix, None, "y").expect("a product");
    graph.outputs = vec![(Output::Logits, y)];
    let graph = Arc::new(graph);
    for (device, tokens) in cases.iter().copied() {
        let (_, mut segment) = partition(&graph, |_| 0).remove(0);
        segment.outputs = vec![x, y];
        let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 1, cells: vec![] };
        let source = Arc::new(Bytes(bytes.clone(), bytes.clone()));
        let mut partition =
            backend.load(DeviceId(device), segment, source, &caches, &mut |_| true).expect("it loads");
        let program = partition.compile(Bounds { tokens, outputs: 1 }).expect("it compiles");
        let step = Step {
            tokens: (0..tokens).map(|token| token * 7 % rows as u32).collect(),
            positions: (0..tokens as i32).collect(),
            ..Step::default()
        };
        let mut boundary = Boundary::default();
        partition.run(program, &step, &mut boundary).expect("it runs");
        let row = |token: &u32| &weights[*token as usize * COLUMNS..][..COLUMNS];
        let picked: Vec<f32> = step.tokens.iter().flat_map(row).copied().collect();
        let error = normalised_squared_error(boundary.values[&x].floats(), &picked);
        if error.is_nan() || error > 1e-12 {
            wrong.push(format!("{dtype}: rows of a table: {error:.1e}"));
        }
        let products: Vec<f32> = picked
            .chunks_exact(COLUMNS)
            .flat_map(|x| {
                weights
                    .chunks_exact(COLUMNS)
                    .map(|w| x.iter().zip(w).map(|(x, w)| *x as f64 * *w as f64).sum::<f64>() as f32)
            })
            .collect();
        let error = normalised_squared_error(boundary.values[&y].floats(), &products);
        // Few rows meet integer weights in eight bits, many in half precision.
        let tolerance = match dtype {
            DType::F32 | DType::I8 | DType::I16 | DType::Q8_1 | DType::Q8_K => 1e-11,
            DType::F16 | DType::BF16 if tokens <= 8 => 1e-11,
            _ => 3e-4,
        };
        if error.is_nan() || error > tolerance {
            wrong.push(format!("{dtype}, {tokens} rows on device {device}: {error:.1e}"));
        }
    }
}
