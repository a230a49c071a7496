//! Weights of a segment in device memory.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use puna_backend::{BackendError, WeightSource};
use puna_graph::{Graph, Op, Operand, WeightId};

use crate::layout::{Layout, TILE};
use crate::{Address, Device, Division};

/// A matrix, or one for each expert or head; or the rows of it that a member of a divided device has.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The first row.
    pub address: Address,
    /// How rows lie there.
    pub layout: Layout,
    /// Rows of one matrix that are here.
    pub rows: u32,
    /// Whose rows these are, if others have the rest.
    pub share: Option<Share>,
    /// Columns.
    pub columns: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Bytes of one matrix.
    pub bytes: u64,
}

/// One member's rows of a matrix.
#[derive(Clone, Debug)]
pub struct Share {
    /// The first row of each member, and the end of the last one's.
    pub firsts: Arc<[u32]>,
    /// The first row here.
    pub first: u32,
}

impl Share {
    /// Rows of the whole matrix.
    pub fn all_rows(&self) -> u32 {
        self.firsts.last().copied().unwrap_or(0)
    }
}

/// All weights of a segment.
pub struct Weights {
    /// What is multiplied by, for each member of the device.
    matrices: HashMap<WeightId, Vec<Matrix>>,
    /// What is looked up in, whole on all members.
    tables: HashMap<WeightId, Matrix>,
    vectors: HashMap<WeightId, Address>,
    /// Vectors that were small enough to keep on the host as well: RoPE factors, single numbers.
    small: HashMap<WeightId, Vec<f32>>,
    /// On each member.
    bytes: Vec<u64>,
}

/// Longest vector that the host keeps.
const SMALL: usize = 4096;
/// Bytes packed at a time.
const PART: usize = 64 << 20;

fn is_matrix(op: &Op, index: usize) -> bool {
    index == 0 && matches!(op, Op::MatMul(_) | Op::MatMulExperts(_) | Op::MatMulHeads(_) | Op::GatherRows(_))
}

fn is_table(graph: &Graph, weight: WeightId) -> bool {
    let looks_up = |node: &puna_graph::Node| {
        matches!(node.op, Op::GatherRows(_)) && node.inputs.first() == Some(&Operand::Weight(weight))
    };
    graph.nodes.iter().any(looks_up)
}

/// About how many bytes a weight takes on a device, or on the member of one that is full first.
pub fn device_bytes(graph: &Graph, weight: WeightId, division: &Division) -> u64 {
    let declared = &graph.weights[weight.index()];
    let rows: u64 = declared.shape.iter().rev().skip(1).map(|extent| u64::from(*extent)).product();
    let columns = declared.shape.last().map_or(1, |columns| *columns as usize);
    let multiplies = |node: &puna_graph::Node| {
        is_matrix(&node.op, 0) && node.inputs.first() == Some(&Operand::Weight(weight))
    };
    if !graph.nodes.iter().any(multiplies) {
        return rows.saturating_mul(4 * columns as u64);
    }
    let bytes = (Layout::new(declared.dtype, columns).row_bytes(columns) as u64).saturating_mul(rows);
    let of_one = declared.shape.iter().rev().nth(1).copied().unwrap_or(1);
    match division.of_rows(of_one, bytes) {
        Some(firsts) if !is_table(graph, weight) => {
            let own = firsts[division.fullest + 1] - firsts[division.fullest];
            bytes / u64::from(of_one) * u64::from(own)
        }
        _ => bytes,
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
        let mut uses: Vec<(WeightId, bool)> = Vec::new();
        let mut tables = HashSet::new();
        for node in nodes.filter_map(|index| graph.nodes.get(index)) {
            for (index, operand) in node.inputs.iter().enumerate() {
                if let Operand::Weight(weight) = operand {
                    uses.push((*weight, is_matrix(&node.op, index)));
                    if matches!(node.op, Op::GatherRows(_)) {
                        tables.insert(*weight);
                    }
                }
            }
        }
        uses.sort_unstable();
        uses.dedup();
        let total: usize = uses.iter().map(|(weight, _)| source.bytes(*weight).len()).sum();
        let mut weights = Self {
            matrices: HashMap::new(),
            tables: HashMap::new(),
            vectors: HashMap::new(),
            small: HashMap::new(),
            bytes: vec![0; device.division().shares.len()],
        };
        let mut done = 0;
        for (weight, matrix) in uses {
            let mut part = |bytes: usize| {
                done += bytes;
                progress(done as f32 / total.max(1) as f32)
            };
            let goes_on = if matrix {
                let is_table = tables.contains(&weight);
                weights.load_matrix(device, graph, weight, is_table, source.bytes(weight), &mut part)?
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
        is_table: bool,
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
        let count = all_rows / (rows as usize).max(1);
        let firsts = device.division().of_rows(rows, (row_bytes * all_rows) as u64);
        let members = self.bytes.len();
        let own = |member: usize| match &firsts {
            Some(firsts) if !is_table => firsts[member]..firsts[member + 1],
            _ => 0..rows,
        };
        let bytes_of = |rows: Range<u32>| (row_bytes * layout.room_rows(rows.len())) as u64;
        // Kernels read a vector past the end of the last row.
        let room: Vec<u64> = (0..members).map(|member| bytes_of(own(member)) * count as u64 + 256).collect();
        let address = Address { buffer: device.allocate_each(&room, "weights")?, offset: 0 };
        self.bytes.iter_mut().zip(&room).for_each(|(bytes, room)| *bytes += room);
        let matrix = |rows: Range<u32>, address: Address| Matrix {
            address,
            layout,
            rows: rows.len() as u32,
            share: firsts.clone().map(|firsts| Share { firsts, first: rows.start }),
            columns,
            row_bytes: row_bytes as u32,
            bytes: bytes_of(rows),
        };
        let whole = Matrix { share: None, ..matrix(0..rows, address) };
        let mut file = Rows {
            layout,
            columns: columns as usize,
            row_bytes,
            source,
            count: all_rows,
            packed: Vec::new(),
        };
        let mut goes_on = true;
        if is_table || firsts.is_none() {
            for index in 0..count {
                let from = index * rows as usize..(index + 1) * rows as usize;
                let at = address.plus(index as u64 * whole.bytes);
                goes_on = goes_on
                    && file.write(from, part, &mut |offset, packed| device.write(at.plus(offset), packed))?;
            }
        } else {
            for (index, member) in
                (0..count).flat_map(|index| (0..members).map(move |member| (index, member)))
            {
                let (own, first) = (own(member), index * rows as usize);
                let at = address.plus(index as u64 * bytes_of(own.clone()));
                let from = first + own.start as usize..first + own.end as usize;
                goes_on = goes_on
                    && file.write(from, part, &mut |offset, packed| {
                        device.write_to(member, at.plus(offset), packed)
                    })?;
            }
        }
        let shares = (0..members).map(|member| match &firsts {
            // What is whole on all members for look-ups is not multiplied by as a whole.
            Some(firsts) if is_table => {
                let own = firsts[member]..firsts[member + 1];
                let at = address.plus(u64::from(own.start) * row_bytes as u64);
                matrix(own, at)
            }
            Some(_) => matrix(own(member), address),
            None => whole.clone(),
        });
        self.matrices.insert(weight, shares.collect());
        if is_table {
            self.tables.insert(weight, whole);
        }
        Ok(goes_on)
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
        self.bytes.iter_mut().for_each(|sum| *sum += bytes.len() as u64);
        self.vectors.insert(weight, address);
        if elements <= SMALL {
            self.small.insert(weight, floats);
        }
        Ok(())
    }

    /// A weight that is multiplied by, as a member of the device has it.
    pub fn matrix(&self, weight: WeightId, member: usize) -> Option<&Matrix> {
        self.matrices.get(&weight)?.get(member)
    }

    /// A weight that is looked up in.
    pub fn table(&self, weight: WeightId) -> Option<&Matrix> {
        self.tables.get(&weight)
    }

    /// A weight that enters elementwise, as `f32`.
    pub fn vector(&self, weight: WeightId) -> Option<Address> {
        self.vectors.get(&weight).copied()
    }

    /// Its numbers, if they are few.
    pub fn numbers(&self, weight: WeightId) -> Option<&[f32]> {
        self.small.get(&weight).map(Vec::as_slice)
    }

    /// Bytes on the member of the device that has most.
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().copied().max().unwrap_or(0)
    }
}

/// Takes bytes, and where they begin.
type Write<'a> = dyn FnMut(u64, &[u8]) -> Result<(), BackendError> + 'a;

/// Rows of a matrix in a file.
struct Rows<'a> {
    layout: Layout,
    columns: usize,
    row_bytes: usize,
    source: &'a [u8],
    /// All of them.
    count: usize,
    packed: Vec<u8>,
}

impl Rows<'_> {
    /// Hands some on as they lie on the device, with the byte at which they begin there; false if that was stopped.
    fn write(
        &mut self,
        rows: Range<usize>,
        part: &mut dyn FnMut(usize) -> bool,
        write: &mut Write<'_>,
    ) -> Result<bool, BackendError> {
        let source_row = self.source.len() / self.count.max(1);
        let at_once = (PART / self.row_bytes.max(1)).max(TILE) / TILE * TILE;
        for row in rows.clone().step_by(at_once) {
            let count = at_once.min(rows.end - row);
            let from = &self.source[row * source_row..(row + count) * source_row];
            self.packed.clear();
            self.packed.resize(self.layout.room_rows(count) * self.row_bytes, 0);
            pack_with_threads(&self.layout, from, source_row, self.columns, self.row_bytes, &mut self.packed);
            write(((row - rows.start) * self.row_bytes) as u64, &self.packed)?;
            if !part(from.len()) {
                return Ok(false);
            }
        }
        Ok(true)
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
