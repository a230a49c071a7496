//! Caches of a segment, and the operations on their cells.

use std::ops::Range;
use std::sync::Arc;

use puna_backend::{BackendError, CacheOptions, CellMove, States};
use puna_graph::{Graph, StateDecl, StateId};
use puna_quant::DType;

use crate::isa::Features;
use crate::kernels::cache::{CacheRows, CacheRowsMut, RowFormat, copy_cells, shift_keys};
use crate::kernels::rope::Rope;
use crate::kernels::rows::RowsMut;
use crate::memory::AlignedBuffer;
use crate::recurrent::RecurrentStates;

/// Keys or values of one layer: `[heads, cells, dim]` in the cache's number format.
struct Rows {
    format: RowFormat,
    heads: usize,
    cells: usize,
    bytes: AlignedBuffer,
}

impl Rows {
    fn new(dtype: DType, heads: u32, width: u32, cells: u32) -> Result<Self, BackendError> {
        let format =
            RowFormat::new(dtype, width as usize).ok_or_else(|| match RowFormat::new(dtype, 256) {
                Some(_) => BackendError::CacheFormat { dtype, block: dtype.block(), width },
                None => BackendError::CacheFormatUnknown { dtype },
            })?;
        let (heads, cells) = (heads as usize, cells as usize);
        let size = heads.checked_mul(cells).and_then(|rows| rows.checked_mul(format.bytes()));
        let bytes = size.and_then(AlignedBuffer::new).ok_or(BackendError::OutOfMemory {
            device: "CPU".into(),
            bytes: heads as u64 * cells as u64 * format.bytes() as u64,
            purpose: "cache",
        })?;
        Ok(Self { format, heads, cells, bytes })
    }

    fn view(&self) -> CacheRows<'_> {
        CacheRows::new(self.bytes.as_slice(), self.format, self.heads, self.cells)
    }

    /// # Safety
    /// Nobody else may access the rows that the caller writes.
    unsafe fn view_mut(&self) -> CacheRowsMut<'_> {
        let row = self.format.bytes();
        // SAFETY: the buffer has exactly these rows; exclusion is the caller's promise.
        unsafe {
            CacheRowsMut::from_raw(
                self.bytes.as_pointer(),
                self.format,
                self.heads,
                self.cells,
                row,
                row * self.cells,
            )
        }
    }

    /// Bytes of one cell over all heads.
    fn cell_bytes(&self) -> usize {
        self.heads * self.format.bytes()
    }

    /// Where head `head` of cell `cell` lies.
    fn place(&self, head: usize, cell: u32) -> Range<usize> {
        let start = (head * self.cells + cell as usize) * self.format.bytes();
        start..start + self.format.bytes()
    }
}

/// The cache of one layer.
pub struct Cache {
    layer: u32,
    group: usize,
    keys: Rows,
    values: Rows,
    /// How keys carry their positions, if they do.
    rotation: Option<(Rope, Vec<f64>)>,
}

impl Cache {
    /// Room for one state, as the options say.
    pub fn new(
        graph: &Graph,
        state: StateId,
        options: &CacheOptions,
        rotation: Option<(Rope, Vec<f64>)>,
    ) -> Result<Self, BackendError> {
        let declared = &graph.states[state.index()];
        let group = graph.groups().iter().position(|group| *group == declared.group()).unwrap_or(0);
        let StateDecl::KeyValue { layer, kv_heads, key_dim, value_dim, .. } = declared else {
            unreachable!("attention has keys and values")
        };
        let cells = options.cells[group];
        let (keys, values) = match declared.group().is_kept() {
            true => (options.keys, options.values),
            false => (DType::F32, DType::F32),
        };
        Ok(Self {
            layer: *layer,
            group,
            keys: Rows::new(keys, *kv_heads, *key_dim, cells)?,
            values: Rows::new(values, *kv_heads, *value_dim, cells)?,
            rotation,
        })
    }

    /// Index into the step's groups.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.keys.bytes.len() + self.values.bytes.len()
    }

    /// Keys, to read.
    pub fn keys(&self) -> CacheRows<'_> {
        self.keys.view()
    }

    /// Values, to read.
    pub fn values(&self) -> CacheRows<'_> {
        self.values.view()
    }

    /// Keys and values, to write.
    ///
    /// # Safety
    /// Nobody else may access the cells that the caller writes.
    pub unsafe fn write(&self) -> (CacheRowsMut<'_>, CacheRowsMut<'_>) {
        // SAFETY: promised by the caller.
        unsafe { (self.keys.view_mut(), self.values.view_mut()) }
    }
}

/// How a state's keys carry their positions: the rotation and its frequencies, if they are rotated.
pub type KeyRotation = (StateId, Option<(Rope, Vec<f64>)>);

/// All caches of a segment.
pub struct Caches {
    features: Features,
    /// One entry per state of the graph; `None` for recurrent ones and those of other segments.
    caches: Vec<Option<Cache>>,
    recurrent: RecurrentStates,
}

impl Caches {
    /// Caches of the states that nodes touch.
    pub fn new(
        graph: &Arc<Graph>,
        nodes: impl Iterator<Item = usize>,
        rotations: Vec<KeyRotation>,
        options: &CacheOptions,
        features: Features,
    ) -> Result<Self, BackendError> {
        let mut caches: Vec<Option<Cache>> = graph.states.iter().map(|_| None).collect();
        for (state, rotation) in rotations {
            // Layers may share a state.
            if caches[state.index()].is_none() {
                caches[state.index()] = Some(Cache::new(graph, state, options, rotation)?);
            }
        }
        let recurrent = RecurrentStates::new(graph, nodes, options)?;
        Ok(Self { features, caches, recurrent })
    }

    /// The recurrent states of this segment.
    pub fn recurrent(&self) -> &RecurrentStates {
        &self.recurrent
    }

    /// The cache of a state of this segment.
    pub fn cache(&self, state: StateId) -> &Cache {
        self.caches[state.index()].as_ref().expect("the state lives in this segment")
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.caches.iter().flatten().map(Cache::bytes).sum::<usize>() + self.recurrent.bytes()
    }

    fn of_group(&mut self, group: usize) -> impl Iterator<Item = &mut Cache> {
        self.caches.iter_mut().flatten().filter(move |cache| cache.group == group)
    }
}

impl States for Caches {
    fn copy(&mut self, group: usize, moves: &[CellMove]) -> Result<(), BackendError> {
        self.recurrent.copy(group, moves);
        for cache in self.of_group(group) {
            // SAFETY: `self` is borrowed exclusively and no program runs.
            let (mut keys, mut values) = unsafe { cache.write() };
            for CellMove { from, to } in moves {
                copy_cells(&mut keys, *from..*from + 1, *to, 0..cache.keys.heads);
                copy_cells(&mut values, *from..*from + 1, *to, 0..cache.values.heads);
            }
        }
        Ok(())
    }

    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError> {
        let features = self.features;
        for cache in self.of_group(group) {
            let Some((rope, frequencies)) = &cache.rotation else { continue };
            let width = rope.table_width();
            let mut table = vec![0.0; width];
            let mut scratch = vec![0.0; cache.keys.format.dim()];
            // SAFETY: `self` is borrowed exclusively and no program runs.
            let (mut keys, _) = unsafe { cache.write() };
            for (cell, delta) in cells {
                // A turn by the difference alone: the stored key already carries the magnitude.
                let mut row = RowsMut::new(&mut table, 1, width, width);
                rope.fill_table(frequencies, 1.0, &[*delta], &mut row, 0..1);
                let row = crate::kernels::rows::Rows::new(&table, 1, width, width);
                let heads = 0..cache.keys.heads;
                shift_keys(features, &mut keys, *rope, row, *cell..*cell + 1, heads, &mut scratch);
            }
        }
        Ok(())
    }

    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError> {
        if let Some(bytes) = self.recurrent.save(state, cells) {
            return Ok(bytes);
        }
        let cache = self.cache(state);
        let mut bytes =
            Vec::with_capacity(cells.len() * (cache.keys.cell_bytes() + cache.values.cell_bytes()));
        for cell in cells {
            for rows in [&cache.keys, &cache.values] {
                (0..rows.heads).for_each(|head| {
                    bytes.extend_from_slice(&rows.bytes.as_slice()[rows.place(head, *cell)])
                });
            }
        }
        Ok(bytes)
    }

    fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        if self.recurrent.has(state) {
            return self.recurrent.restore(state, cells, bytes);
        }
        let cache = self.caches[state.index()].as_mut().expect("the state lives in this segment");
        let expected = cells.len() * (cache.keys.cell_bytes() + cache.values.cell_bytes());
        if bytes.len() != expected {
            return Err(BackendError::SavedState { layer: cache.layer, found: bytes.len(), expected });
        }
        let mut rest = bytes;
        for cell in cells {
            for rows in [&mut cache.keys, &mut cache.values] {
                for head in 0..rows.heads {
                    let (row, after) = rest.split_at(rows.format.bytes());
                    let place = rows.place(head, *cell);
                    rows.bytes.as_mut_slice()[place].copy_from_slice(row);
                    rest = after;
                }
            }
        }
        Ok(())
    }

    fn states(&self) -> Vec<StateId> {
        let all = (0..self.caches.len()).map(|index| StateId(index as u32));
        all.filter(|state| self.caches[state.index()].is_some() || self.recurrent.has(*state)).collect()
    }
}
