//! Weights of a segment in device memory.

use std::collections::HashMap;
use std::sync::Arc;

use puna_backend::{BackendError, WeightSource};
use puna_graph::{Graph, Op, Operand, WeightId};

use crate::layout::{Layout, TILE};
use crate::{Address, Device};

/// A matrix, or one for each expert or head.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// The first row.
    pub address: Address,
    /// How rows lie there.
    pub layout: Layout,
    /// Rows of one matrix.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Bytes of one matrix.
    pub bytes: u64,
}

/// All weights of a segment.
pub struct Weights {
    matrices: HashMap<WeightId, Matrix>,
    vectors: HashMap<WeightId, Address>,
    /// Vectors that were small enough to keep on the host as well: RoPE factors, single numbers.
    small: HashMap<WeightId, Vec<f32>>,
    bytes: u64,
}

/// Longest vector that the host keeps.
const SMALL: usize = 4096;
/// Bytes packed at a time.
const PART: usize = 64 << 20;

fn is_matrix(op: &Op, index: usize) -> bool {
    index == 0 && matches!(op, Op::MatMul(_) | Op::MatMulExperts(_) | Op::MatMulHeads(_) | Op::GatherRows(_))
}

/// About how many bytes a weight takes on a device.
pub fn device_bytes(graph: &Graph, weight: WeightId) -> u64 {
    let declared = &graph.weights[weight.index()];
    let rows: u64 = declared.shape.iter().rev().skip(1).map(|extent| u64::from(*extent)).product();
    let columns = declared.shape.last().map_or(1, |columns| *columns as usize);
    let multiplies = |node: &puna_graph::Node| {
        is_matrix(&node.op, 0) && node.inputs.first() == Some(&Operand::Weight(weight))
    };
    match graph.nodes.iter().any(multiplies) {
        true => (Layout::new(declared.dtype, columns).row_bytes(columns) as u64).saturating_mul(rows),
        false => rows.saturating_mul(4 * columns as u64),
    }
}

impl Weights {
    /// Takes in what nodes read; `progress` gets the share done and stops the loading by returning
    /// false.
    pub fn load(
        device: &mut dyn Device,
        graph: &Graph,
        nodes: impl Iterator<Item = usize>,
        source: &Arc<dyn WeightSource>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Self, BackendError> {
        let mut uses: Vec<(WeightId, bool)> = nodes
            .filter_map(|index| graph.nodes.get(index))
            .flat_map(|node| {
                node.inputs.iter().enumerate().filter_map(|(index, operand)| match operand {
                    Operand::Weight(weight) => Some((*weight, is_matrix(&node.op, index))),
                    _ => None,
                })
            })
            .collect();
        uses.sort_unstable();
        uses.dedup();
        let total: usize = uses.iter().map(|(weight, _)| source.bytes(*weight).len()).sum();
        let mut weights =
            Self { matrices: HashMap::new(), vectors: HashMap::new(), small: HashMap::new(), bytes: 0 };
        let mut done = 0;
        for (weight, matrix) in uses {
            let mut part = |bytes: usize| {
                done += bytes;
                progress(done as f32 / total.max(1) as f32)
            };
            let goes_on = if matrix {
                weights.load_matrix(device, graph, weight, source.bytes(weight), &mut part)?
            } else {
                weights.load_vector(device, graph, weight, source.bytes(weight))?;
                part(source.bytes(weight).len())
            };
            if !goes_on {
                return Err(BackendError::Device {
                    device: device.name().to_string(),
                    reason: "loading was stopped".into(),
                });
            }
            source.release(weight);
        }
        Ok(weights)
    }

    fn load_matrix(
        &mut self,
        device: &mut dyn Device,
        graph: &Graph,
        weight: WeightId,
        source: &[u8],
        part: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, BackendError> {
        let declared = &graph.weights[weight.index()];
        let (columns, leading) =
            declared.shape.split_last().map_or((1, &[][..]), |(last, rest)| (*last, rest));
        let all_rows: usize = leading.iter().map(|extent| *extent as usize).product();
        let rows = leading.last().copied().unwrap_or(1);
        let layout = Layout::new(declared.dtype, columns as usize);
        let row_bytes = layout.row_bytes(columns as usize);
        let bytes = (row_bytes * layout.room_rows(rows as usize)) as u64;
        let matrices = all_rows / (rows as usize).max(1);
        // Kernels read a vector past the end of the last row.
        let room = bytes * matrices as u64 + 256;
        let buffer = device.allocate(room, "weights")?;
        let address = Address { buffer, offset: 0 };
        self.bytes += room;
        self.matrices
            .insert(weight, Matrix { address, layout, rows, columns, row_bytes: row_bytes as u32, bytes });
        let source_row = source.len() / all_rows.max(1);
        let at_once = (PART / row_bytes.max(1)).max(TILE) / TILE * TILE;
        let mut packed = Vec::new();
        for matrix in 0..matrices {
            let mut row = 0;
            while row < rows as usize {
                let count = at_once.min(rows as usize - row);
                let first = matrix * rows as usize + row;
                let from = &source[first * source_row..(first + count) * source_row];
                packed.clear();
                packed.resize(layout.room_rows(count) * row_bytes, 0);
                pack_with_threads(&layout, from, source_row, columns as usize, row_bytes, &mut packed);
                device.write(address.plus(matrix as u64 * bytes + (row * row_bytes) as u64), &packed)?;
                row += count;
                if !part(from.len()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn load_vector(
        &mut self,
        device: &mut dyn Device,
        graph: &Graph,
        weight: WeightId,
        source: &[u8],
    ) -> Result<(), BackendError> {
        let declared = &graph.weights[weight.index()];
        let elements: usize = declared.shape.iter().map(|extent| *extent as usize).product();
        let mut floats = vec![0.0_f32; elements];
        (declared.dtype.format().decode)(source, &mut floats);
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        let buffer = device.allocate(bytes.len().max(16) as u64, "weights")?;
        let address = Address { buffer, offset: 0 };
        device.write(address, &bytes)?;
        self.bytes += bytes.len() as u64;
        self.vectors.insert(weight, address);
        if elements <= SMALL {
            self.small.insert(weight, floats);
        }
        Ok(())
    }

    /// A weight that is multiplied by or looked up in.
    pub fn matrix(&self, weight: WeightId) -> Option<&Matrix> {
        self.matrices.get(&weight)
    }

    /// A weight that enters elementwise, as `f32`.
    pub fn vector(&self, weight: WeightId) -> Option<Address> {
        self.vectors.get(&weight).copied()
    }

    /// Its numbers, if they are few.
    pub fn numbers(&self, weight: WeightId) -> Option<&[f32]> {
        self.small.get(&weight).map(Vec::as_slice)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn pack_with_threads(
    layout: &Layout,
    source: &[u8],
    source_row: usize,
    columns: usize,
    row_bytes: usize,
    packed: &mut [u8],
) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let rows = packed.len() / row_bytes.max(1);
    if source.len() < 1 << 20 || threads == 1 || source_row == 0 {
        layout.pack(source, columns, packed);
        return;
    }
    let share = rows.div_ceil(threads).next_multiple_of(TILE);
    std::thread::scope(|scope| {
        let parts = source.chunks(share * source_row).zip(packed.chunks_mut(share * row_bytes));
        for (from, to) in parts {
            scope.spawn(move || layout.pack(from, columns, to));
        }
    });
}
