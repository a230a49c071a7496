//! Weights of a segment in the layouts that the kernels read.

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_backend::{BackendError, WeightSource};
use puna_graph::{Graph, Op, Operand, WeightId};

use crate::backend::CpuOptions;
use crate::isa::Features;
use crate::kernels::matmul::{ActivationFormat, MatrixError, PackedMatrix, Plan};
use crate::memory::{Room, Share};
use crate::pool::Pool;
use crate::precision::Precision;

/// How a weight is used, which decides its layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    /// Rows are read one at a time.
    Table,
    /// Small tensors that enter elementwise.
    Vector,
    /// A matrix per expert.
    Experts,
    /// Multiplied by; also serves row look-ups.
    Matrix,
}

/// One weight, loaded.
pub enum Weight {
    /// Packed for multiplication; several are the experts of one tensor.
    Matrices(Vec<PackedMatrix>),
    /// Decoded.
    Vector(Vec<f32>),
    /// Left in the file, rows are decoded when read.
    Table,
}

/// All weights of a segment.
pub struct Weights {
    graph: Arc<Graph>,
    source: Arc<dyn WeightSource>,
    /// One entry per weight of the graph; `None` for those of other segments.
    loaded: Vec<Option<Weight>>,
    features: Features,
    precision: Precision,
}

impl Weights {
    /// Loads what nodes read; `progress` gets the share of bytes done and stops the loading
    /// by returning false.
    pub fn load(
        graph: Arc<Graph>,
        nodes: impl Iterator<Item = usize>,
        source: Arc<dyn WeightSource>,
        pool: &Pool,
        options: CpuOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Self, BackendError> {
        let uses = uses(&graph, nodes);
        let total: usize = uses.keys().map(|weight| source.bytes(*weight).len()).sum();
        let mut done = 0;
        let mut room = room(&graph, &uses, source.as_ref())?;
        let mut loaded: Vec<Option<Weight>> = graph.weights.iter().map(|_| None).collect();
        for (weight, usage) in uses {
            let bytes = source.bytes(weight).len();
            let release = || {
                if usage != Use::Table && !options.keep_source {
                    source.release(weight);
                }
            };
            let one = load_one(&graph, weight, usage, source.as_ref(), &mut room, pool, &release)?;
            release();
            loaded[weight.index()] = Some(one);
            done += bytes;
            if !progress(done as f32 / total.max(1) as f32) {
                return Err(device_error("loading was stopped"));
            }
        }
        let CpuOptions { features, deterministic, .. } = options;
        let matrices = loaded.iter().flatten().flat_map(|weight| match weight {
            Weight::Matrices(matrices) => &matrices[..],
            Weight::Vector(_) | Weight::Table => &[],
        });
        let precision = Precision::new(matrices, features, deterministic);
        Ok(Self { graph, source, loaded, features, precision })
    }

    /// The graph whose weights these are.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Bytes held outside the file.
    pub fn bytes(&self) -> usize {
        let bytes = |weight: &Weight| match weight {
            Weight::Matrices(matrices) => matrices.iter().map(PackedMatrix::bytes).sum(),
            Weight::Vector(floats) => floats.len() * 4,
            Weight::Table => 0,
        };
        self.loaded.iter().flatten().map(bytes).sum()
    }

    /// The matrix of a weight that is multiplied by, or the matrices of its experts.
    pub fn matrices(&self, weight: WeightId) -> &[PackedMatrix] {
        match &self.loaded[weight.index()] {
            Some(Weight::Matrices(matrices)) => matrices,
            _ => &[],
        }
    }

    /// The form in which the matrices of a weight read `rows` rows of an activation, given what the step allows.
    pub fn activation(&self, weight: WeightId, precision: Precision, rows: usize) -> ActivationFormat {
        self.matrices(weight)[0].activation(self.features, precision.rows(rows))
    }

    /// How far kernels may depart from f32.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// A decoded tensor.
    pub fn vector(&self, weight: WeightId) -> &[f32] {
        match &self.loaded[weight.index()] {
            Some(Weight::Vector(floats)) => floats,
            _ => &[],
        }
    }

    /// Decodes row `row` of a matrix or table; `row` is below its extent.
    pub fn decode_row(&self, weight: WeightId, row: usize, out: &mut [f32]) {
        match &self.loaded[weight.index()] {
            Some(Weight::Matrices(matrices)) => matrices[0].decode_row(row, out),
            Some(Weight::Vector(floats)) => out.copy_from_slice(&floats[row * out.len()..][..out.len()]),
            Some(Weight::Table) | None => {
                let format = self.graph.weights[weight.index()].dtype.format();
                let bytes = out.len() / format.block * format.bytes;
                (format.decode)(&self.source.bytes(weight)[row * bytes..][..bytes], out);
            }
        }
    }

    /// Rows of a weight's matrix or table.
    pub fn rows(&self, weight: WeightId) -> usize {
        self.graph.weights[weight.index()].shape[0] as usize
    }
}

fn device_error(reason: impl std::fmt::Display) -> BackendError {
    BackendError::Device { device: "CPU".into(), reason: reason.to_string() }
}

/// The strongest use of each weight, in a fixed order.
fn uses(graph: &Graph, nodes: impl Iterator<Item = usize>) -> BTreeMap<WeightId, Use> {
    let mut uses = BTreeMap::new();
    for node in nodes.filter_map(|index| graph.nodes.get(index)) {
        for (index, operand) in node.inputs.iter().enumerate() {
            let Operand::Weight(weight) = operand else { continue };
            let usage = match (&node.op, index) {
                (Op::MatMul(_), 0) => Use::Matrix,
                (Op::MatMulExperts(_) | Op::MatMulHeads(_), 0) => Use::Experts,
                (Op::GatherRows(_), 0) => Use::Table,
                _ => Use::Vector,
            };
            uses.entry(*weight).and_modify(|other| *other = usage.max(*other)).or_insert(usage);
        }
    }
    uses
}

/// Whether a weight is only looked up in.
pub fn is_table(graph: &Graph, weight: WeightId) -> bool {
    let reads = |operand: &Operand| *operand == Operand::Weight(weight);
    let looks_up = |op: &Op| matches!(op, Op::GatherRows(_));
    let is_looked_up =
        graph.nodes.iter().any(|node| looks_up(&node.op) && node.inputs.first().is_some_and(reads));
    let otherwise = |node: &puna_graph::Node| !looks_up(&node.op) && node.inputs.iter().any(reads);
    is_looked_up && !graph.nodes.iter().any(otherwise)
}

/// How each of the matrices of a weight is packed, and their bytes in the file.
fn matrices<'a>(
    graph: &Graph,
    weight: WeightId,
    source: &'a dyn WeightSource,
) -> Result<(Plan, std::slice::ChunksExact<'a, u8>), BackendError> {
    let declared = &graph.weights[weight.index()];
    let extents: Vec<usize> = declared.shape.iter().map(|extent| *extent as usize).collect();
    let [.., rows, columns] = extents[..] else {
        return Err(device_error(format!(
            "{} is multiplied by and has the shape {extents:?}",
            declared.name
        )));
    };
    let plan = Plan::new(declared.dtype, rows, columns).map_err(device_error)?;
    Ok((plan, source.bytes(weight).chunks_exact(plan.source(0..rows).len().max(1))))
}

/// Room for all matrices.
fn room(
    graph: &Graph,
    uses: &BTreeMap<WeightId, Use>,
    source: &dyn WeightSource,
) -> Result<Room, BackendError> {
    let mut bytes = 0_usize;
    for (weight, usage) in uses {
        if matches!(usage, Use::Matrix | Use::Experts) {
            let (plan, each) = matrices(graph, *weight, source)?;
            let taken = Room::taken_by(plan.bytes()).and_then(|taken| taken.checked_mul(each.len()));
            bytes = taken.and_then(|taken| taken.checked_add(bytes)).unwrap_or(usize::MAX);
        }
    }
    Room::new(bytes).ok_or(BackendError::OutOfMemory {
        device: "CPU".into(),
        bytes: bytes as u64,
        purpose: "weights",
    })
}

fn load_one(
    graph: &Graph,
    weight: WeightId,
    usage: Use,
    source: &dyn WeightSource,
    room: &mut Room,
    pool: &Pool,
    release: &dyn Fn(),
) -> Result<Weight, BackendError> {
    let declared = &graph.weights[weight.index()];
    match usage {
        Use::Table => Ok(Weight::Table),
        Use::Vector => {
            let mut floats = vec![0.0; declared.shape.iter().map(|extent| *extent as usize).product()];
            puna_quant::decode_row(declared.dtype, source.bytes(weight), &mut floats)
                .map_err(device_error)?;
            Ok(Weight::Vector(floats))
        }
        Use::Matrix | Use::Experts => {
            let (plan, each) = matrices(graph, weight, source)?;
            let packed = each.map(|bytes| {
                let memory = room.take(plan.bytes()).ok_or(MatrixError::Memory { bytes: plan.bytes() })?;
                pack(plan, bytes, memory, pool, release)
            });
            Ok(Weight::Matrices(packed.collect::<Result<_, _>>().map_err(device_error)?))
        }
    }
}

/// Packs one matrix with all threads; `release` is called from time to time, to give back what was read so far.
fn pack(
    plan: Plan,
    source: &[u8],
    memory: Share,
    pool: &Pool,
    release: &dyn Fn(),
) -> Result<PackedMatrix, MatrixError> {
    /// Bytes of the file that may be resident beside their packed form.
    const PART: usize = 32 << 20;
    let rows = plan.rows();
    let unit = (rows / (4 * pool.threads())).clamp(Plan::ROW_GRANULARITY, 256);
    let unit = unit.next_multiple_of(Plan::ROW_GRANULARITY);
    struct Destination(*mut u8);
    // SAFETY: each chunk writes a range of its own.
    unsafe impl Sync for Destination {}
    let destination = Destination(memory.as_pointer());
    let destination = &destination;
    let row_bytes = (source.len() / rows.max(1)).max(1);
    let part = (PART / row_bytes / unit).max(1) * unit;
    for start in (0..rows).step_by(part) {
        let end = (start + part).min(rows);
        pool.parallel_for((end - start).div_ceil(unit), |chunk| {
            let range = start + chunk * unit..(start + (chunk + 1) * unit).min(end);
            let place = plan.destination(range.clone());
            // SAFETY: the places of different row ranges do not overlap and lie within the buffer.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(destination.0.add(place.start), place.len()) };
            plan.pack_rows(&source[plan.source(range.clone())], range, bytes);
        });
        if end < rows {
            release();
        }
    }
    PackedMatrix::new(plan, memory)
}
