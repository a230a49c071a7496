//! Cells of recurrent states: the newest of each sequence, and checkpoints.
//!
//! A step reads the state that a sequence is at and writes the one that it ends with into another cell, so the old
//! one stays as a checkpoint: the sequence can be truncated to where a step began, and a failed step leaves it as
//! it was. Where room is needed, that checkpoint goes which lies closest between its neighbours: of many single
//! steps few remain, while the end of a prompt long ago stays.

use std::ops::Range;

use puna_graph::{GroupStep, Span};

use super::Ledger;

impl Ledger {
    /// [`Ledger::place`] of a recurrent group: one cell for each piece.
    pub(super) fn place_states(&mut self, pieces: &[(u32, u32)]) -> Result<GroupStep, u32> {
        let total: u32 = pieces.iter().map(|(_, rows)| rows).sum();
        let mut step = GroupStep::default();
        let mut read: Vec<u32> = Vec::with_capacity(pieces.len());
        let mut row = 0;
        for (sequence, rows) in pieces {
            let tokens = row..row + rows;
            row += rows;
            if tokens.is_empty() {
                step.spans.push(Span { tokens, cells: Vec::new() });
                continue;
            }
            let start = self.next(*sequence);
            let from = self.sequences[*sequence as usize].newest.filter(|_| start > 0);
            read.extend(from);
            self.give_up_checkpoints(1, &read);
            self.give_up_checkpoints(1, &[]);
            if self.free == 0 {
                return Err(total);
            }
            let end = start + *rows as i32;
            let taken = self.take(*sequence, &[end - 1]);
            self.sequences[*sequence as usize].next = end;
            step.write_cells.extend(taken.iter().cycle().take(*rows as usize));
            let cells: Vec<Range<u32>> = from.into_iter().map(|cell| cell..cell + 1).collect();
            step.spans.push(Span { tokens, cells });
        }
        Ok(step)
    }

    /// The largest length up to `wanted` whose state is there.
    pub(super) fn last_checkpoint(&self, sequence: u32, wanted: i32) -> i32 {
        let cells = self.sequences[sequence as usize].cells.cells();
        let lengths = cells.map(|cell| self.positions[cell as usize].saturating_add(1));
        lengths.filter(|length| *length <= wanted).max().unwrap_or(0)
    }

    /// Whether a saved sequence of this length can go on from the states of these ascending positions.
    pub(crate) fn is_enough(&self, positions: &[u32], next: u32) -> bool {
        self.group != puna_graph::CacheGroup::Recurrent || positions.last().copied() == next.checked_sub(1)
    }

    /// Takes cells for the newest of these positions, as many as are free but one for the next step.
    pub(super) fn adopt_checkpoints(&mut self, sequence: u32, positions: &[i32], next: i32) -> Vec<u32> {
        let count = positions.len().min((self.free as usize).saturating_sub(1).max(1));
        let cells = self.take(sequence, &positions[positions.len() - count..]);
        self.sequences[sequence as usize].next = next;
        cells
    }

    /// Forgets checkpoints that are not among `needed` until `wanted` cells are free or none is left.
    pub(super) fn give_up_checkpoints(&mut self, wanted: u32, needed: &[u32]) {
        while self.free < wanted {
            let Some(cell) = self.weakest_checkpoint(needed) else { return };
            let position = self.positions[cell as usize];
            for sequence in 0..self.sequences.len() as u32 {
                if self.sequences[sequence as usize].cells.cells().any(|held| held == cell) {
                    self.forget(sequence, &(position..position + 1));
                }
            }
        }
    }

    /// The checkpoint that lies closest between its neighbours.
    fn weakest_checkpoint(&self, needed: &[u32]) -> Option<u32> {
        let newest: Vec<u32> = self.sequences.iter().filter_map(|held| held.newest).collect();
        let mut weakest: Option<(i32, u32)> = None;
        for sequence in 0..self.sequences.len() as u32 {
            let held = self.held(sequence);
            for (index, (_, cell)) in held.iter().enumerate() {
                let Some((after, _)) = held.get(index + 1) else { continue };
                let before = index.checked_sub(1).and_then(|index| held.get(index)).map_or(-1, |held| held.0);
                let gap = after - before;
                let free = !newest.contains(cell) && !needed.contains(cell);
                if free && weakest.is_none_or(|(least, _)| gap < least) {
                    weakest = Some((gap, *cell));
                }
            }
        }
        weakest.map(|(_, cell)| cell)
    }
}
