//! What a window shows, keeps and gives up.

use std::ops::Range;

use puna_graph::CacheGroup;

use super::Ledger;
use super::runs::Runs;

impl Ledger {
    /// The lowest position that a query at `position` sees; of a recurrence, whose state it reads.
    pub(super) fn horizon(&self, position: i32) -> i32 {
        match self.group {
            CacheGroup::Full | CacheGroup::Encoder | CacheGroup::Step | CacheGroup::EncoderStep => 0,
            CacheGroup::Window(length) => {
                let length = i32::try_from(length).unwrap_or(i32::MAX);
                position.saturating_sub(length).saturating_add(1).max(0)
            }
            CacheGroup::Recurrent => position.saturating_sub(1).max(0),
        }
    }

    /// Cells of a sequence that a query at `position` or later can see, as ascending ranges.
    pub(super) fn visible(&self, sequence: u32, position: i32) -> Vec<Range<u32>> {
        let cells = &self.sequences[sequence as usize].cells;
        match self.horizon(position) {
            0 => cells.ranges().to_vec(),
            horizon => self.from(cells, horizon).ranges().to_vec(),
        }
    }

    fn from(&self, cells: &Runs, position: i32) -> Runs {
        cells.filtered(|cell| self.positions[cell as usize] >= position)
    }

    /// Whether everything that a query at `position` sees is still there.
    pub(crate) fn can_continue(&self, sequence: u32, position: i32) -> bool {
        if self.group == CacheGroup::Recurrent {
            return self.longest_truncation(sequence, position) == position;
        }
        position == 0 || self.horizon(position) >= self.lost(sequence) || self.lost(sequence) == 0
    }

    /// The lowest position above 0 from which the sequence can go on after truncation; 0 if it can from all.
    pub(crate) fn earliest(&self, sequence: u32) -> i32 {
        match (self.group, self.lost(sequence)) {
            (CacheGroup::Recurrent, _) => self.next(sequence),
            (CacheGroup::Window(length), lost) if lost > 0 => {
                lost.saturating_add(i32::try_from(length).unwrap_or(i32::MAX)).saturating_sub(1)
            }
            _ => 0,
        }
    }

    /// The largest length up to `wanted` to which the sequence can be truncated.
    pub(crate) fn longest_truncation(&self, sequence: u32, wanted: i32) -> i32 {
        match self.group {
            CacheGroup::Recurrent => self.last_checkpoint(sequence, wanted),
            _ if self.can_continue(sequence, wanted) => wanted,
            _ => 0,
        }
    }

    /// Whether a sequence that goes on at `next` can do without positions below `lost`.
    pub(crate) fn may_lose(&self, lost: u32, next: u32) -> bool {
        lost <= self.horizon(i32::try_from(next).unwrap_or(i32::MAX)).unsigned_abs()
    }

    /// Forgets, for a shift that finds too few free cells, first the shared positions of the sequence that nobody
    /// sees after it, then such positions of others. Positions below the result are gone.
    pub(super) fn make_room_for_shift(&mut self, sequence: u32, keep: i32, discard: i32) -> i32 {
        let needed = |ledger: &Self| {
            let cells = ledger.sequences[sequence as usize].cells.cells();
            let shared = cells.filter(|cell| ledger.owners[*cell as usize] > 1);
            shared.filter(|cell| ledger.positions[*cell as usize] >= keep).count() as u32
        };
        if !matches!(self.group, CacheGroup::Window(_)) || needed(self) <= self.free {
            return 0;
        }
        let horizon = self.horizon(self.next(sequence) - discard);
        let lost = if horizon > keep { horizon + discard } else { horizon };
        self.forget(sequence, &(0..lost));
        self.give_up(needed(self), &self.others(sequence));
        lost
    }

    /// Forgets positions that no later query sees, oldest first, until `wanted` cells are free or nothing more
    /// can go, from one of these sequences after the other.
    pub(super) fn give_up(&mut self, wanted: u32, order: &[u32]) {
        match self.group {
            CacheGroup::Recurrent => return self.give_up_checkpoints(wanted, &[]),
            CacheGroup::Window(_) => {}
            _ => return,
        }
        let mut progress = true;
        // More than one round is needed only where dropped cells still belong to another sequence.
        while progress && self.free < wanted {
            progress = false;
            for sequence in order {
                if self.free < wanted {
                    progress |= self.give_up_oldest(*sequence, wanted - self.free);
                }
            }
        }
    }

    /// Forgets the oldest `count` invisible positions of a sequence, or as many as there are.
    fn give_up_oldest(&mut self, sequence: u32, count: u32) -> bool {
        let held = &self.sequences[sequence as usize];
        let horizon = self.horizon(held.next);
        let positions = held.cells.cells().map(|cell| self.positions[cell as usize]);
        let mut invisible: Vec<i32> = positions.filter(|position| *position < horizon).collect();
        let last = if invisible.len() > count as usize {
            Some(*invisible.select_nth_unstable(count as usize - 1).1)
        } else {
            invisible.iter().copied().max()
        };
        let Some(last) = last else { return false };
        self.forget(sequence, &(0..last + 1));
        self.sequences[sequence as usize].lost = last + 1;
        true
    }
}
