//! Caches of a segment in device memory: for each state the cells one after the other, in each the heads of its keys or
//! values in the cache's own format.

use std::collections::HashMap;

use puna_backend::partition::{key_rotations, states};
use puna_backend::{BackendError, CacheOptions, CellMove};
use puna_graph::{Graph, Op, Operand, StateDecl, StateId};
use puna_quant::DType;

use crate::step::bytes_of;
use crate::weights::Weights;
use crate::{Address, Argument, Device, Extent, Extents, Launch};

/// Formats that kernels can store and read.
const FORMATS: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::IQ4_NL,
];

/// One run of cells.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Cell 0.
    pub address: Address,
    /// Number format.
    pub dtype: DType,
    /// Heads in a cell.
    pub heads: u32,
    /// Numbers in a head.
    pub width: u32,
    /// Bytes of a head.
    pub head_bytes: u32,
}

impl Rows {
    fn cell_bytes(&self) -> u64 {
        self.heads as u64 * self.head_bytes as u64
    }
}

struct Rotation {
    frequencies: Address,
    dimensions: u32,
    offset: u32,
    split: bool,
}

struct Cache {
    layer: u32,
    group: usize,
    /// Keys and values, or the one part of a recurrent state.
    parts: Vec<Rows>,
    rotation: Option<Rotation>,
}

/// All caches of a segment.
pub struct Caches {
    states: HashMap<StateId, Cache>,
    order: Vec<StateId>,
    bytes: u64,
    /// Place for the pairs of a shift.
    moves: Address,
    cells: u32,
}

impl Caches {
    /// Room for the states that nodes use.
    pub fn new(
        device: &mut dyn Device,
        graph: &Graph,
        nodes: impl Iterator<Item = usize> + Clone,
        options: &CacheOptions,
        weights: &Weights,
    ) -> Result<Self, BackendError> {
        let groups = graph.groups();
        let order = states(graph, nodes.clone());
        // Where layers share a cache, only the first one turns its keys.
        let mut rotations: HashMap<StateId, _> = HashMap::new();
        for (state, rotation) in key_rotations(graph, nodes) {
            rotations.entry(state).or_insert(rotation);
        }
        let most = options.cells.iter().copied().max().unwrap_or(1);
        let moves = Address { buffer: device.allocate(8 * most as u64, "cache")?, offset: 0 };
        let mut caches = Self { states: HashMap::new(), order: order.clone(), bytes: 0, moves, cells: most };
        for state in order {
            let declared = &graph.states[state.index()];
            let group = groups.iter().position(|group| *group == declared.group()).unwrap_or(0);
            let cells = options.cells[group];
            let mut part = |dtype: DType, heads: u32, width: u32| {
                let rows = room(device, dtype, heads, width, cells)?;
                caches.bytes += rows.cell_bytes() * cells as u64;
                Ok::<Rows, BackendError>(rows)
            };
            let parts = match declared {
                StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => vec![
                    part(options.keys, *kv_heads, *key_dim)?,
                    part(options.values, *kv_heads, *value_dim)?,
                ],
                StateDecl::Recurrent { elements, .. } => vec![part(DType::F32, 1, *elements)?],
            };
            let mut rotation = None;
            if let Some(Some(keys)) = rotations.get(&state)
                && let Op::Rope(rope) = &graph.nodes[keys.rope].op
            {
                let factors = match graph.nodes[keys.rope].inputs.get(2) {
                    Some(Operand::Weight(weight)) => weights.numbers(*weight),
                    _ => None,
                };
                let frequencies = constants(device, &frequency_bytes(&rope.frequencies(factors)))?;
                let split = rope.kind == puna_graph::ops::RopeKind::Split;
                rotation =
                    Some(Rotation { frequencies, dimensions: rope.dimensions, offset: keys.offset, split });
            }
            caches.states.insert(state, Cache { layer: declared.layer(), group, parts, rotation });
        }
        Ok(caches)
    }

    /// The parts of a state: keys and values, or one.
    pub fn parts(&self, state: StateId) -> &[Rows] {
        self.states.get(&state).map_or(&[], |cache| &cache.parts)
    }

    /// Index of the state's group in a step.
    pub fn group(&self, state: StateId) -> usize {
        self.states.get(&state).map_or(0, |cache| cache.group)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes of frequencies as kernels read them.
pub fn frequency_bytes(frequencies: &[f64]) -> Vec<u8> {
    frequencies.iter().flat_map(|frequency| frequency.to_le_bytes()).collect()
}

/// Numbers that never change, in memory of their own.
pub fn constants(device: &mut dyn Device, bytes: &[u8]) -> Result<Address, BackendError> {
    let address = Address { buffer: device.allocate(bytes.len().max(16) as u64, "constants")?, offset: 0 };
    device.write(address, bytes)?;
    Ok(address)
}

fn room(
    device: &mut dyn Device,
    dtype: DType,
    heads: u32,
    width: u32,
    cells: u32,
) -> Result<Rows, BackendError> {
    if !FORMATS.contains(&dtype) {
        return Err(BackendError::CacheFormatUnknown { dtype });
    }
    let head_bytes = dtype.bytes_for(width as u64).and_then(|bytes| u32::try_from(bytes).ok());
    let head_bytes = head_bytes.ok_or(BackendError::CacheFormat { dtype, block: dtype.block(), width })?;
    let bytes = (head_bytes as u64 * heads as u64).saturating_mul(cells as u64);
    let address = Address { buffer: device.allocate(bytes.max(16), "cache")?, offset: 0 };
    // Kernels multiply what they mask by zero, which only numbers bear.
    device.clear(address, bytes)?;
    Ok(Rows { address, dtype, heads, width, head_bytes })
}

impl Caches {
    /// Copies cells in every state of a group.
    pub fn copy(
        &self,
        device: &mut dyn Device,
        group: usize,
        moves: &[CellMove],
    ) -> Result<(), BackendError> {
        for cache in self.states.values().filter(|cache| cache.group == group) {
            for rows in &cache.parts {
                let bytes = rows.cell_bytes();
                for CellMove { from, to } in moves.iter().filter(|cell| cell.from != cell.to) {
                    let place = |cell: u32| rows.address.plus(cell as u64 * bytes);
                    device.copy(place(*from), place(*to), bytes)?;
                }
            }
        }
        device.finish()
    }

    /// Turns keys of cells, in every state of a group whose keys are turned.
    pub fn shift(
        &self,
        device: &mut dyn Device,
        group: usize,
        cells: &[(u32, i32)],
    ) -> Result<(), BackendError> {
        const WARPS: u32 = 4;
        let cells: Vec<(u32, i32)> = cells.iter().copied().filter(|(cell, _)| *cell < self.cells).collect();
        if cells.is_empty() {
            return Ok(());
        }
        let pairs: Vec<i32> = cells.iter().flat_map(|(cell, delta)| [*cell as i32, *delta]).collect();
        let mut launches = Vec::new();
        for cache in self.states.values().filter(|cache| cache.group == group) {
            let (Some(rotation), Some(keys)) = (&cache.rotation, cache.parts.first()) else { continue };
            let count = cells.len() as u32;
            launches.push(Launch {
                kernel: "shift_cells".into(),
                grid: [
                    Extent::Fixed((count * keys.heads).div_ceil(WARPS)),
                    Extent::Fixed(1),
                    Extent::Fixed(1),
                ],
                threads: 32 * WARPS,
                shared: WARPS * keys.width * 4,
                arguments: vec![
                    Argument::Address(keys.address),
                    Argument::Address(self.moves),
                    Argument::Address(rotation.frequencies),
                    Argument::Int(count as i32),
                    Argument::Int(keys.heads as i32),
                    Argument::Int(keys.width as i32),
                    Argument::Int(keys.dtype.id() as i32),
                    Argument::Int(keys.head_bytes as i32),
                    Argument::Int(rotation.offset as i32),
                    Argument::Int(rotation.dimensions as i32),
                    Argument::Int(rotation.split as i32),
                ],
                single: 11,
                exchanged: Vec::new(),
            });
        }
        if pairs.len() > 2 * self.cells as usize {
            return Err(BackendError::Device {
                device: device.name().to_string(),
                reason: format!("{} cells are shifted at once, there are {}", cells.len(), self.cells),
            });
        }
        device.write(self.moves, &bytes_of(&pairs))?;
        device.run(&launches, Extents { tokens: 0, outputs: 0, spans: 0 })?;
        device.finish()
    }
}

/// Cells that are read from the device before they are put in order, so that a long sequence is not there twice.
const CELLS_AT_ONCE: usize = 1024;

impl Caches {
    /// Contents of cells, in this order: of each its keys, then its values.
    pub fn save(
        &self,
        device: &mut dyn Device,
        state: StateId,
        cells: &[u32],
    ) -> Result<Vec<u8>, BackendError> {
        let parts = self.parts(state);
        let cell_bytes: u64 = parts.iter().map(Rows::cell_bytes).sum();
        let mut bytes = vec![0; cells.len() * cell_bytes as usize];
        let size_of = |rows: &Rows| rows.cell_bytes() as usize;
        let place = |run: &[u32], rows: &Rows| rows.address.plus(u64::from(run[0]) * rows.cell_bytes());
        let portions = bytes.chunks_mut((CELLS_AT_ONCE * cell_bytes as usize).max(1));
        for (cells, bytes) in cells.chunks(CELLS_AT_ONCE).zip(portions) {
            // Those that are neighbours on the device come together.
            let runs = || cells.chunk_by(|cell, next| cell.checked_add(1) == Some(*next));
            let pieces: Vec<_> = runs()
                .flat_map(|run| parts.iter().map(move |rows| (place(run, rows), run.len() * size_of(rows))))
                .collect();
            let mut found = vec![0; bytes.len()];
            device.read_pieces(&pieces, &mut found)?;
            let (mut found, mut first) = (found.as_slice(), 0);
            for run in runs() {
                let mut at = first;
                for size in parts.iter().map(size_of) {
                    let (piece, rest) = found.split_at(run.len() * size);
                    for (index, cell) in piece.chunks_exact(size.max(1)).enumerate() {
                        bytes[at + index * cell_bytes as usize..][..size].copy_from_slice(cell);
                    }
                    (found, at) = (rest, at + size);
                }
                first += run.len() * cell_bytes as usize;
            }
        }
        Ok(bytes)
    }

    /// Writes what [`Caches::save`] gave.
    pub fn restore(
        &self,
        device: &mut dyn Device,
        state: StateId,
        cells: &[u32],
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let parts = self.parts(state);
        let cell_bytes: u64 = parts.iter().map(Rows::cell_bytes).sum();
        let expected = cells.len() * cell_bytes as usize;
        if bytes.len() != expected {
            let layer = self.states.get(&state).map_or(0, |cache| cache.layer);
            return Err(BackendError::SavedState { layer, found: bytes.len(), expected });
        }
        let mut at = 0;
        for cell in cells {
            for rows in parts {
                let size = rows.cell_bytes();
                let place = rows.address.plus(*cell as u64 * size);
                device.write(place, &bytes[at..at + size as usize])?;
                at += size as usize;
            }
        }
        device.finish()
    }

    /// The states that live here.
    pub fn order(&self) -> &[StateId] {
        &self.order
    }
}
