//! Finding cells for new rows, and what a step must know about them.

use std::ops::Range;

use puna_graph::{CacheGroup, GroupStep, Span};

use super::Ledger;

impl Ledger {
    /// Gives cells to the rows of a micro-batch: for each `(sequence, rows)` so many rows at its next positions.
    /// A window gives up old positions for them if need be. Returns the cells wanted if there is no room; then
    /// no row has a cell.
    pub(crate) fn place(&mut self, pieces: &[(u32, u32)]) -> Result<GroupStep, u32> {
        if self.group == CacheGroup::Recurrent {
            return self.place_states(pieces);
        }
        let total: u32 = pieces.iter().map(|(_, rows)| rows).sum();
        if self.free < total {
            // Those that ask come first.
            let mut order: Vec<u32> = pieces.iter().map(|(sequence, _)| *sequence).collect();
            order.extend(0..self.sequences.len() as u32);
            self.give_up(total, &order);
        }
        if self.free < total {
            return Err(total);
        }
        let mut step = GroupStep::default();
        let mut starts = Vec::with_capacity(pieces.len());
        for (sequence, rows) in pieces {
            let start = self.next(*sequence);
            let positions: Vec<i32> = (start..start + *rows as i32).collect();
            step.write_cells.extend(self.take(*sequence, &positions));
            self.sequences[*sequence as usize].next = start + *rows as i32;
            starts.push(start);
        }
        let mut row = 0;
        for ((sequence, rows), start) in pieces.iter().zip(starts) {
            let cells = self.visible(*sequence, start);
            step.spans.push(Span { tokens: row..row + rows, cells });
            row += rows;
        }
        Ok(GroupStep { write_cells: step.write_cells, ..self.read(step.spans) })
    }

    /// All cells of a sequence.
    pub(crate) fn cells(&self, sequence: u32) -> Vec<Range<u32>> {
        self.sequences[sequence as usize].cells.ranges().to_vec()
    }

    /// A step that reads the cells of spans and writes none.
    pub(crate) fn read(&self, spans: Vec<Span>) -> GroupStep {
        let end = spans.iter().filter_map(|span| span.cells.last()).map(|run| run.end).max();
        let cell_positions = self.positions[..end.unwrap_or(0) as usize].to_vec();
        GroupStep { write_cells: Vec::new(), cell_positions, spans }
    }

    /// Gives free cells to a sequence for these ascending positions, of which there are not more than free cells.
    pub(super) fn take(&mut self, sequence: u32, positions: &[i32]) -> Vec<u32> {
        let after = self.sequences[sequence as usize].newest.map(|cell| cell + 1);
        let runs = self.find(positions.len() as u32, after);
        let held = &mut self.sequences[sequence as usize];
        let mut cells = Vec::with_capacity(positions.len());
        for run in runs {
            cells.extend(run.clone());
            held.cells.insert(run);
        }
        for (cell, position) in cells.iter().zip(positions) {
            self.positions[*cell as usize] = *position;
            self.owners[*cell as usize] = 1;
            self.anchors.remove(cell);
        }
        held.newest = cells.last().copied().or(held.newest);
        self.free -= cells.len() as u32;
        cells
    }

    /// Ascending ranges of `count` free cells, of which there must be so many: those at `after` if they are free,
    /// else one range, else as few as possible.
    pub(super) fn find(&self, count: u32, after: Option<u32>) -> Vec<Range<u32>> {
        if count == 0 {
            return Vec::new();
        }
        if let Some(start) = after {
            let wanted = start..start.saturating_add(count);
            let owners = self.owners.get(wanted.start as usize..wanted.end as usize);
            if owners.is_some_and(|owners| owners.iter().all(|owners| *owners == 0)) {
                return vec![wanted];
            }
        }
        let mut gaps = self.gaps();
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.len()));
        if let Some(largest) = gaps.first()
            && largest.len() >= count as usize
        {
            // Room for the sequence before the gap to grow, so that sequences which advance together do not
            // interleave cell by cell.
            let before = largest.start.checked_sub(1);
            let grows = before.is_some() && self.sequences.iter().any(|held| held.newest == before);
            let offset = if grows { (largest.len() as u32 - count) / 2 } else { 0 };
            return std::iter::once(largest.start + offset..largest.start + offset + count).collect();
        }
        let mut missing = count;
        let mut runs = Vec::new();
        for gap in gaps {
            let length = missing.min(gap.len() as u32);
            runs.push(gap.start..gap.start + length);
            missing -= length;
            if missing == 0 {
                break;
            }
        }
        runs.sort_by_key(|run| run.start);
        runs
    }

    /// Maximal ranges of free cells, ascending.
    fn gaps(&self) -> Vec<Range<u32>> {
        let mut gaps = Vec::new();
        let mut cell = 0;
        for chunk in self.owners.chunk_by(|a, b| (*a == 0) == (*b == 0)) {
            let end = cell + chunk.len() as u32;
            if chunk.first() == Some(&0) {
                gaps.push(cell..end);
            }
            cell = end;
        }
        gaps
    }
}
