//! A small known computation that every device has to get right before it is given a model: rows of a table, times a matrix
//! of eight-bit integers, of one row and of many.

use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{BackendError, Boundary, Bounds, CacheOptions, Partition, Segment, WeightSource};
use puna_graph::ops::{GatherRows, MatMul};
use puna_graph::{Graph, GraphError, Input, Operand, Output, Step, ValueId, WeightDecl, WeightId};
use puna_quant::DType;

/// Rows of the table and of the matrix, and their columns.
const ROWS: usize = 40;
const COLUMNS: usize = 256;
/// Largest share of the results that may be wrong: activations have eight bits.
const TOLERANCE: f64 = 1e-3;
/// Rows of the steps.
const STEPS: [u32; 2] = [1, 20];

/// The computation's weights, the same bytes for both.
struct Weights(Vec<u8>);

impl WeightSource for Weights {
    fn bytes(&self, _: WeightId) -> &[u8] {
        &self.0
    }
    fn release(&self, _: WeightId) {}
}

fn computation() -> Result<(Graph, ValueId), GraphError> {
    let mut graph = Graph::default();
    for name in ["table", "matrix"] {
        let shape = vec![ROWS as u32, COLUMNS as u32];
        graph.weights.push(WeightDecl { name: name.into(), dtype: DType::Q8_0, shape, layer: None });
    }
    let table = vec![Operand::Weight(WeightId(0)), Operand::Input(Input::Tokens)];
    let x = graph.push(GatherRows, table, None, "x")?;
    let y = graph.push(MatMul, vec![Operand::Weight(WeightId(1)), x.into()], None, "y")?;
    graph.outputs = vec![(Output::Logits, y)];
    Ok((graph, y))
}

/// Compares a device with numbers computed here; `load` makes a partition on it. The error says in a line what is wrong.
pub fn check(
    name: &str,
    load: impl FnOnce(Segment, Arc<dyn WeightSource>, &CacheOptions) -> Result<Box<dyn Partition>, BackendError>,
) -> Result<(), BackendError> {
    let refuse = |reason: String| BackendError::Device { device: name.to_string(), reason };
    let (graph, product) = computation().map_err(|error| refuse(error.to_string()))?;
    let format = DType::Q8_0.format();
    let mut bytes: Vec<u8> =
        (0..ROWS * COLUMNS / format.block * format.bytes).map(|index| (index * 37 % 251) as u8).collect();
    for block in bytes.chunks_exact_mut(format.bytes) {
        // A scale of 1/64.
        block[..2].copy_from_slice(&0x2400_u16.to_le_bytes());
    }
    let mut weights = vec![0.0_f32; ROWS * COLUMNS];
    (format.decode)(&bytes, &mut weights);
    let Some((_, segment)) = partition(&Arc::new(graph), |_| 0).pop() else {
        return Err(refuse("there is nothing to check it with".into()));
    };
    let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 1, cells: vec![] };
    let mut partition = load(segment, Arc::new(Weights(bytes)), &caches)?;
    let most = STEPS.into_iter().max().unwrap_or(1);
    let program = partition.compile(Bounds { tokens: most, outputs: 1 })?;
    for rows in STEPS {
        let step =
            Step { tokens: (0..rows).collect(), positions: (0..rows as i32).collect(), ..Step::default() };
        let mut boundary = Boundary::default();
        partition.run(program, &step, &mut boundary)?;
        let found = boundary.values.get(&product).map(|array| array.floats()).unwrap_or_default();
        let right: Vec<f64> = weights
            .chunks_exact(COLUMNS)
            .take(rows as usize)
            .flat_map(|x| {
                weights
                    .chunks_exact(COLUMNS)
                    .map(|w| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>())
            })
            .collect();
        let wrong: f64 =
            right.iter().zip(found).map(|(right, found)| (right - f64::from(*found)).powi(2)).sum();
        let all: f64 = right.iter().map(|right| right * right).sum();
        if found.len() != right.len() || wrong.is_nan() || wrong > TOLERANCE * all {
            return Err(refuse(format!(
                "it computes wrongly and is not used: {rows} rows of a known product are off by {:.1e} of their squares",
                wrong / all
            )));
        }
    }
    Ok(())
}
