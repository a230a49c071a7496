//! Recurrent states of a segment: one array per operation, few cells, always `f32`.

use std::sync::{Mutex, PoisonError};

use puna_backend::partition::states;
use puna_backend::{BackendError, CacheOptions, CellMove};
use puna_graph::evaluate::Memory;
use puna_graph::{CacheGroup, Graph, Span, StateDecl, StateId, Step};

use crate::kernels::recurrent::{Cells, Run};

/// See the module.
pub struct RecurrentStates {
    /// Index into the step's groups.
    group: Option<usize>,
    /// By state of the graph: layer and numbers in a cell, if it is recurrent and lives here.
    declared: Vec<Option<(u32, usize)>>,
    /// By state of the graph; only one operation runs at a time, so nobody waits for the lock.
    memory: Mutex<Vec<Memory>>,
}

impl RecurrentStates {
    /// Room for those that nodes use.
    pub fn new(
        graph: &Graph,
        nodes: impl Iterator<Item = usize>,
        options: &CacheOptions,
    ) -> Result<Self, BackendError> {
        let group = graph.groups().iter().position(|group| *group == CacheGroup::Recurrent);
        let cells = group.map_or(0, |group| options.cells[group] as usize);
        let mut declared = vec![None; graph.states.len()];
        let mut memory = vec![Memory::default(); graph.states.len()];
        for state in states(graph, nodes) {
            let StateDecl::Recurrent { layer, elements } = graph.states[state.index()] else { continue };
            let elements = elements as usize;
            declared[state.index()] = Some((layer, elements));
            let floats = &mut memory[state.index()].recurrent;
            floats.try_reserve_exact(cells.saturating_mul(elements)).map_err(|_| {
                BackendError::OutOfMemory {
                    device: "CPU".into(),
                    bytes: 4 * cells as u64 * elements as u64,
                    purpose: "recurrent states",
                }
            })?;
            floats.resize(cells * elements, 0.0);
        }
        Ok(Self { group, declared, memory: Mutex::new(memory) })
    }

    /// Calls `use_memory` with the memory of all states of the graph; only recurrent ones have any.
    pub fn with<R>(&self, use_memory: impl FnOnce(&mut [Memory]) -> R) -> R {
        use_memory(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The cells of a state that lives here.
    pub fn cells(&self, state: StateId) -> Cells {
        let elements = self.declared[state.index()].map_or(0, |(_, elements)| elements);
        self.with(|memory| {
            let floats = &mut memory[state.index()].recurrent;
            // A state of nothing has as many cells as anybody asks for.
            let cells = floats.len().checked_div(elements).unwrap_or(usize::MAX);
            // SAFETY: the memory is never moved while a program runs, and tasks use parts of their own.
            unsafe { Cells::from_raw(floats.as_mut_ptr(), cells, elements) }
        })
    }

    /// The sequences of a step, in order.
    pub fn runs(&self, step: &Step) -> Vec<Run> {
        let Some(group) = self.group.and_then(|group| step.groups.get(group)) else { return Vec::new() };
        let run = |span: &Span| {
            let rows = span.tokens.start as usize..span.tokens.end as usize;
            let last = rows.end.checked_sub(1).filter(|_| !rows.is_empty())?;
            let from = span.cells.first().map(|cells| cells.start as usize);
            Some(Run { rows, from, to: group.write_cells[last] as usize })
        };
        group.spans.iter().filter_map(run).collect()
    }

    /// Whether this is a recurrent state that lives here.
    pub fn has(&self, state: StateId) -> bool {
        self.declared[state.index()].is_some()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.with(|memory| memory.iter().map(|memory| 4 * memory.recurrent.len()).sum())
    }

    /// Copies cells, if this is the recurrent group.
    pub fn copy(&mut self, group: usize, moves: &[CellMove]) {
        if self.group != Some(group) {
            return;
        }
        self.with(|memory| {
            for (memory, declared) in memory.iter_mut().zip(&self.declared) {
                let Some((_, elements)) = declared else { continue };
                for CellMove { from, to } in moves {
                    let from = *from as usize * elements;
                    memory.recurrent.copy_within(from..from + elements, *to as usize * elements);
                }
            }
        });
    }

    /// Contents of cells, unless the state is none of these.
    pub fn save(&mut self, state: StateId, cells: &[u32]) -> Option<Vec<u8>> {
        let (_, elements) = self.declared[state.index()]?;
        Some(self.with(|memory| {
            let floats = &memory[state.index()].recurrent;
            let cells = cells.iter().flat_map(|cell| &floats[*cell as usize * elements..][..elements]);
            cells.flat_map(|float| float.to_le_bytes()).collect()
        }))
    }

    /// Takes contents of cells back.
    pub fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        let (layer, elements) = self.declared[state.index()].unwrap_or((0, 0));
        let expected = 4 * cells.len() * elements;
        if bytes.len() != expected {
            return Err(BackendError::SavedState { layer, found: bytes.len(), expected });
        }
        self.with(|memory| {
            let mut saved = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            for cell in cells {
                let floats = &mut memory[state.index()].recurrent[*cell as usize * elements..][..elements];
                floats.iter_mut().zip(&mut saved).for_each(|(to, from)| *to = from);
            }
        });
        Ok(())
    }
}
