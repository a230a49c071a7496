//! Cells of recurrent states: the newest of each sequence, and checkpoints.
//!
//! A step reads the state that a sequence is at and writes the one that it ends with into another cell, so the old
//! one stays as a checkpoint: the sequence can be truncated to where a step began, and a failed step leaves it as
//! it was. Where room is needed, that checkpoint goes which lies closest between its neighbours: of many single
//! steps few remain, while the end of a prompt long ago stays. Anchors, which the caller marks where it expects to go
//! back to, go last: the oldest of the sequence that has most.

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

    /// Lengths whose states a sequence has again for sure when it was saved and restored, ascending.
    pub(crate) fn restorable(&self, sequence: u32) -> Vec<u32> {
        let positions: Vec<i32> = self.held(sequence).iter().map(|(position, _)| *position).collect();
        let kept = thinned(&positions, self.assured_checkpoints());
        kept.iter().map(|position| position.unsigned_abs() + 1).collect()
    }

    /// States of one sequence that [`Ledger::adopt`] always finds room for: its share of the cells but one, which the
    /// next step writes.
    fn assured_checkpoints(&self) -> usize {
        (self.positions.len() / self.sequences.len().max(1)).saturating_sub(1).max(1)
    }

    /// Takes cells for these positions, all but one of the free ones at most. Others give up for them what is more than
    /// their share. Where there is no room for all, those stay that are far from others, and always the newest.
    pub(super) fn adopt_checkpoints(&mut self, sequence: u32, positions: &[i32], next: i32) -> Vec<u32> {
        let assured = positions.len().min(self.assured_checkpoints());
        self.give_up_checkpoints(assured as u32 + 1, &[]);
        let room = (self.free as usize).saturating_sub(1).max(1);
        let cells = self.take(sequence, &thinned(positions, room));
        self.sequences[sequence as usize].next = next;
        // What was worth saving is worth keeping.
        cells.iter().for_each(|cell| self.anchor(*cell));
        cells
    }

    /// Makes the newest state of a sequence an anchor.
    pub(crate) fn mark(&mut self, sequence: u32) {
        if self.group == puna_graph::CacheGroup::Recurrent
            && let Some(cell) = self.sequences[sequence as usize].newest
        {
            self.anchor(cell);
        }
    }

    fn anchor(&mut self, cell: u32) {
        let age = self.anchors.values().max().map_or(0, |newest| newest + 1);
        self.anchors.insert(cell, age);
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

    /// The checkpoint that is worth least: one that is no anchor and lies closest between its neighbours, else the
    /// oldest anchor of the sequence that has most states.
    fn weakest_checkpoint(&self, needed: &[u32]) -> Option<u32> {
        let newest: Vec<u32> = self.sequences.iter().filter_map(|held| held.newest).collect();
        let mut weakest: Option<((bool, i64, u64), u32)> = None;
        for sequence in 0..self.sequences.len() as u32 {
            let held = self.held(sequence);
            for (index, (_, cell)) in held.iter().enumerate() {
                let Some((after, _)) = held.get(index + 1) else { continue };
                let before = index.checked_sub(1).and_then(|index| held.get(index)).map_or(-1, |held| held.0);
                let worth = match self.anchors.get(cell) {
                    Some(age) => (true, -(held.len() as i64), *age),
                    None => (false, i64::from(after - before), 0),
                };
                let free = !newest.contains(cell) && !needed.contains(cell);
                if free && weakest.is_none_or(|(least, _)| worth < least) {
                    weakest = Some((worth, *cell));
                }
            }
        }
        weakest.map(|(_, cell)| cell)
    }
}

/// So many of these ascending positions, at least one: again and again that one goes which lies closest between its
/// neighbours, never the last.
fn thinned(positions: &[i32], count: usize) -> Vec<i32> {
    // Nobody has so many more than there is room for but who means harm.
    let most = count.max(1).saturating_add(256);
    let mut kept = positions[positions.len().saturating_sub(most)..].to_vec();
    while kept.len() > count.max(1) {
        let before = |index: usize| index.checked_sub(1).map_or(-1, |index| kept[index]);
        let weakest = (0..kept.len() - 1).min_by_key(|index| kept[index + 1] - before(*index));
        if let Some(index) = weakest {
            kept.remove(index);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use puna_graph::CacheGroup;

    use super::thinned;

    use crate::ledger::{Ledger, Refusal};

    fn ledger(cells: u32, sequences: u32) -> Ledger {
        Ledger::new(CacheGroup::Recurrent, cells, sequences).expect("there is memory")
    }

    /// Places one piece and returns the cells read and written.
    fn place(ledger: &mut Ledger, sequence: u32, rows: u32) -> (Option<u32>, u32) {
        let step = ledger.place(&[(sequence, rows)]).expect("has room");
        assert_eq!(step.write_cells.len(), rows as usize);
        assert!(step.write_cells.iter().all(|cell| *cell == step.write_cells[0]));
        assert_eq!(step.spans[0].tokens, 0..rows);
        (step.spans[0].cells.first().map(|cells| cells.start), step.write_cells[0])
    }

    #[test]
    fn each_step_reads_what_the_last_one_wrote() {
        let mut ledger = ledger(3, 1);
        let (from, mut written) = place(&mut ledger, 0, 5);
        assert_eq!(from, None);
        for _ in 0..20 {
            let (from, to) = place(&mut ledger, 0, 1);
            assert_eq!(from, Some(written));
            assert_ne!(to, written);
            written = to;
        }
        // The prompt's end and the last step but one are left to go back to.
        assert_eq!(ledger.next(0), 25);
        assert_eq!([24, 23, 5, 4].map(|length| ledger.longest_truncation(0, length)), [24, 5, 5, 0]);
        assert!(ledger.can_continue(0, 25) && ledger.can_continue(0, 5) && ledger.can_continue(0, 0));
        assert!(!ledger.can_continue(0, 6));
        ledger.remove(0, 5..i32::MAX);
        assert_eq!((ledger.next(0), ledger.free()), (5, 2));
        ledger.remove(0, 0..i32::MAX);
        assert_eq!((ledger.next(0), ledger.free()), (0, 3));
        assert_eq!(place(&mut ledger, 0, 2).0, None);
    }

    #[test]
    fn anchors_go_last() {
        let mut ledger = ledger(4, 1);
        place(&mut ledger, 0, 60);
        ledger.mark(0);
        place(&mut ledger, 0, 4);
        for _ in 0..20 {
            place(&mut ledger, 0, 1);
        }
        assert_eq!([84, 83, 82, 63].map(|length| ledger.longest_truncation(0, length)), [84, 83, 64, 60]);
        // Of three the oldest goes.
        for _ in 0..2 {
            ledger.mark(0);
            place(&mut ledger, 0, 9);
            place(&mut ledger, 0, 1);
        }
        assert_eq!([103, 93, 83].map(|length| ledger.longest_truncation(0, length)), [103, 84, 0]);
        // A cell that is used again is no anchor any more.
        ledger.clear(0);
        assert_eq!(ledger.free(), 4);
        for _ in 0..9 {
            place(&mut ledger, 0, 1);
        }
        assert_eq!(ledger.anchors.len(), 0);
    }

    #[test]
    fn no_sequence_takes_the_anchors_of_others() {
        let mut ledger = ledger(8, 2);
        place(&mut ledger, 1, 30);
        ledger.mark(1);
        place(&mut ledger, 1, 5);
        for _ in 0..9 {
            place(&mut ledger, 0, 10);
            ledger.mark(0);
        }
        assert_eq!(ledger.longest_truncation(1, 34), 30);
    }

    #[test]
    fn copies_share_a_cell_until_they_go_on() {
        let mut ledger = ledger(6, 2);
        let (_, shared) = place(&mut ledger, 0, 4);
        ledger.copy(0, 1);
        assert_eq!(ledger.free(), 5);
        let step = ledger.place(&[(0, 1), (1, 2)]).expect("has room");
        assert!(step.spans.iter().all(|span| span.cells.first() == Some(&(shared..shared + 1))));
        assert_ne!(step.write_cells[0], step.write_cells[1]);
        assert!(!step.write_cells.contains(&shared));
    }

    #[test]
    fn every_sequence_always_finds_room() {
        let mut ledger = ledger(9, 3);
        for round in 0..50 {
            let pieces: Vec<(u32, u32)> = (0..3).map(|sequence| (sequence, 1 + round % 4)).collect();
            let before: Vec<Option<u32>> =
                (0..3).map(|sequence| ledger.held(sequence).last().map(|(_, cell)| *cell)).collect();
            let step = ledger.place(&pieces).expect("has room");
            for (span, before) in step.spans.iter().zip(&before) {
                assert_eq!(span.cells.first().map(|cells| cells.start), *before);
                assert!(before.is_none_or(|cell| !step.write_cells.contains(&cell)), "a state read is kept");
            }
            if round % 7 == 0 {
                ledger.copy(round % 3, (round + 1) % 3);
            }
        }
    }

    #[test]
    fn a_piece_of_the_same_sequence_starts_from_the_one_before() {
        let mut ledger = ledger(3, 1);
        let step = ledger.place(&[(0, 2), (0, 3)]).expect("has room");
        assert_eq!(step.spans[1].cells.first().map(|cells| cells.start), Some(step.write_cells[0]));
        assert_eq!((ledger.next(0), step.write_cells.len()), (5, 5));
    }

    #[test]
    fn shifts_are_refused_and_restored_states_must_be_the_newest() {
        let mut ledger = ledger(3, 1);
        place(&mut ledger, 0, 8);
        assert_eq!(ledger.clone().shift(0, 1, 2), Err(Refusal::Recurrent));
        assert!(ledger.is_enough(&[2, 7], 8) && ledger.is_enough(&[], 0));
        assert!(!ledger.is_enough(&[2, 6], 8) && !ledger.is_enough(&[], 8));
        let cells = ledger.adopt(0, &[2, 3, 4, 7], 8, 0).expect("has room");
        assert_eq!(cells.len(), 2);
        assert_eq!(ledger.held(0), [(4, cells[0]), (7, cells[1])]);
        let cells = ledger.adopt(0, &[3, 5, 6, 7], 8, 0).expect("has room");
        assert_eq!(ledger.held(0), [(3, cells[0]), (7, cells[1])], "the ends cover more than the newest two");
        ledger.adopt(0, &[2, 3, 4, 7], 8, 0).expect("has room");
        let cells = [ledger.held(0)[0].1, ledger.held(0)[1].1];
        assert_eq!(place(&mut ledger, 0, 1).0, Some(cells[1]));
    }

    #[test]
    fn thinning_keeps_what_is_far_from_others() {
        let cases: [(&[i32], usize, &[i32]); 6] = [
            // Four tokens before a prompt's end, its end, and the last two steps of a long answer.
            (&[95, 99, 128, 129], 3, &[95, 99, 129]),
            (&[95, 99, 128, 129], 2, &[95, 129]),
            (&[95, 99, 100, 101], 3, &[95, 99, 101]),
            (&[7], 0, &[7]),
            (&[], 3, &[]),
            (&[0, 1, 2], 5, &[0, 1, 2]),
        ];
        for (positions, count, expected) in cases {
            assert_eq!(thinned(positions, count), expected, "{positions:?}");
        }
        let many: Vec<i32> = (0..1 << 20).collect();
        assert_eq!(thinned(&many, 3).last(), Some(&((1 << 20) - 1)));
    }

    #[test]
    fn a_restored_sequence_gets_its_share_from_others() {
        // Four cells for each of three sequences, of which one has taken nearly all.
        let mut ledger = ledger(12, 3);
        for _ in 0..20 {
            place(&mut ledger, 1, 10);
            ledger.mark(1);
        }
        place(&mut ledger, 2, 5);
        assert_eq!((ledger.free(), ledger.assured_checkpoints()), (0, 3));
        ledger.adopt(0, &[95, 99, 128, 129], 130, 0).expect("has room");
        assert_eq!([129, 128, 99, 95].map(|length| ledger.longest_truncation(0, length)), [100, 100, 96, 0]);
        assert_eq!((ledger.free(), ledger.next(1), ledger.longest_truncation(1, 200)), (1, 200, 200));
        place(&mut ledger, 0, 1);
        assert_eq!(ledger.longest_truncation(0, 129), 100);
    }
}
