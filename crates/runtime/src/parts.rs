//! Saving and restoring a sequence in parts, so that nobody has to wait until a large one is copied.
//!
//! The first part is the size of the others and the head of a saved sequence, each other one the contents of some cells of
//! one state. Parts need no checksums: they are for memory, and whoever writes them elsewhere adds what that place asks for.

use std::ops::Range;

use puna_graph::StateId;

use crate::saved::{Head, parse_head};
use crate::{Model, RuntimeError, SavedError};

/// Some cells of a state.
struct CachePart {
    state: StateId,
    /// Index of the state's cache group.
    group: usize,
    /// Which of the group's saved cells.
    cells: Range<usize>,
}

impl Model {
    /// Number of parts in which the sequence is saved, at least 1, of about so many bytes each.
    pub fn saved_parts(&self, sequence: u32, bytes: u32) -> usize {
        let counts: Vec<usize> = self.held_cells(sequence).iter().map(Vec::len).collect();
        1 + self.cache_parts(&counts, bytes).len()
    }

    /// A part of the sequence as bytes. `tokens` are for the caller's use, one for each position. The parts fit together if
    /// the sequence stays as it is until all are saved; as steps of others may take older states from a sequence, the
    /// first part tells: it is the same at the end. An error if there is no such part.
    pub fn save_part(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        bytes: u32,
        part: usize,
    ) -> Result<Vec<u8>, RuntimeError> {
        self.check_sequence(sequence)?;
        let Some(index) = part.checked_sub(1) else {
            return Ok([&bytes.to_le_bytes(), &self.save_head(sequence, tokens)?[..]].concat());
        };
        let held = self.held_cells(sequence);
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        let missing = SavedError::Inconsistent { part: "number of parts" };
        let parts = self.cache_parts(&counts, bytes);
        let CachePart { state, group, cells } = parts.into_iter().nth(index).ok_or(missing)?;
        match self.states_of(state) {
            Some(states) => Ok(states.save(state, &held[group][cells])?),
            None => Ok(Vec::new()),
        }
    }

    /// Takes one of all parts of a saved sequence, which come in order. The first one replaces what the sequence holds, or
    /// is refused and leaves it as it was; then the sequence must be left alone until all have come. If one of the
    /// others fails the sequence is emptied.
    pub fn restore_part(
        &mut self,
        sequence: u32,
        saved: &[Vec<u8>],
        part: usize,
    ) -> Result<(), RuntimeError> {
        self.check_sequence(sequence)?;
        let first = saved.first().and_then(|first| first.split_first_chunk());
        let (bytes, head) = first.ok_or(SavedError::Inconsistent { part: "number of parts" })?;
        let (bytes, head) = (u32::from_le_bytes(*bytes), parse_head(head)?);
        if part == 0 {
            self.check_head(&head)?;
            self.check_parts(&head, bytes, saved)?;
            return self.adopt(sequence, &head);
        }
        let result = self.restore_later_part(sequence, &head, bytes, saved, part);
        if result.is_err() {
            self.clear(sequence);
        }
        result
    }

    fn restore_later_part(
        &mut self,
        sequence: u32,
        head: &Head,
        part_bytes: u32,
        saved: &[Vec<u8>],
        part: usize,
    ) -> Result<(), RuntimeError> {
        let missing = || SavedError::Inconsistent { part: "number of parts" };
        let index = part.checked_sub(1).ok_or_else(missing)?;
        let found = self.cache_parts(&head.cells(), part_bytes).into_iter().nth(index);
        let CachePart { state, cells, .. } = found.ok_or_else(missing)?;
        let bytes = saved.get(part).ok_or_else(missing)?;
        self.restore_cells(sequence, head, state, cells, bytes)
    }

    /// Refuses parts that are not those of the head's cells.
    fn check_parts(&self, head: &Head, part_bytes: u32, saved: &[Vec<u8>]) -> Result<(), SavedError> {
        let parts = self.cache_parts(&head.cells(), part_bytes);
        if saved.len() != 1 + parts.len() {
            return Err(SavedError::Inconsistent { part: "number of parts" });
        }
        let fits = |(part, bytes): (&CachePart, &Vec<u8>)| {
            Some(bytes.len()) == part.cells.len().checked_mul(self.cell_bytes[part.state.index()])
        };
        match parts.iter().zip(&saved[1..]).all(fits) {
            true => Ok(()),
            false => Err(SavedError::Inconsistent { part: "cache contents" }),
        }
    }

    /// The parts of caches with so many cells in each group. None has more bytes than that, unless a cell has.
    fn cache_parts(&self, counts: &[usize], part_bytes: u32) -> Vec<CachePart> {
        let mut parts = Vec::new();
        for (index, group) in self.state_groups().into_iter().enumerate() {
            // Nothing is kept of what serves a step alone.
            let (Some(count), bytes) = (counts.get(group).copied(), self.cell_bytes[index]) else { continue };
            let most = (part_bytes as usize / bytes.max(1)).max(1);
            let state = StateId(index as u32);
            let starts = (0..if bytes > 0 { count } else { 0 }).step_by(most);
            parts.extend(starts.map(|start| CachePart {
                state,
                group,
                cells: start..count.min(start + most),
            }));
        }
        parts
    }
}
