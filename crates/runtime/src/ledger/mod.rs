//! Who owns which cache cell: integers only, one ledger per cache group.
//!
//! A cell has a position and belongs to any number of sequences, so copying a sequence costs nothing and memory
//! is shared until the copies diverge: new rows always go to cells of nobody. A sequence keeps its cells as
//! ranges, and new cells continue the last range where they can, so a back end sees few ranges.
//!
//! A ledger of [`CacheGroup::Window`] keeps cells that no later query can see for as long as there is room, so
//! that a sequence can be truncated by that much. Where it needs room it gives up the oldest positions and
//! remembers that they are gone.

mod place;
mod runs;
#[cfg(test)]
mod tests;
mod window;

use std::ops::Range;

use puna_backend::CellMove;
use puna_graph::CacheGroup;

use runs::Runs;

/// Cells of one cache group.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    group: CacheGroup,
    /// Position of each cell; meaningless for cells of nobody.
    positions: Vec<i32>,
    /// How many sequences own each cell.
    owners: Vec<u32>,
    free: u32,
    sequences: Vec<Held>,
}

/// What one sequence has.
#[derive(Clone, Default, Debug)]
struct Held {
    cells: Runs,
    /// Position of its next row.
    next: i32,
    /// Positions below are gone, because a window gave them up.
    lost: i32,
    /// Cell of the newest position, after which it would like to go on.
    newest: Option<u32>,
}

/// What a context shift needs from the caches, in this order.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Shift {
    /// Cells that other sequences still need unshifted, and their copies.
    pub(crate) copies: Vec<CellMove>,
    /// Cells whose keys are to be turned, and by how many positions.
    pub(crate) turns: Vec<(u32, i32)>,
}

/// Why a context shift is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShiftRefusal {
    /// Shared cells would have to be copied, and there are too few free ones.
    NoRoom { needed: u32, free: u32 },
    /// The next query would see positions that a window gave up.
    PositionsLost,
}

/// How far positions are gone after a shift.
fn lost_after_shift(lost: i32, keep: i32, discard: i32) -> i32 {
    if lost <= keep { lost } else { keep.max(lost - discard) }
}

impl Ledger {
    /// An empty ledger of `cells` cells for sequences 0 to `sequences - 1`.
    pub(crate) fn new(group: CacheGroup, cells: u32, sequences: u32) -> Self {
        Self {
            group,
            positions: vec![-1; cells as usize],
            owners: vec![0; cells as usize],
            free: cells,
            sequences: vec![Held::default(); sequences as usize],
        }
    }

    /// Which positions it keeps.
    pub(crate) fn group(&self) -> CacheGroup {
        self.group
    }

    /// Cells of nobody.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Position of the sequence's next row.
    pub(crate) fn next(&self, sequence: u32) -> i32 {
        self.sequences[sequence as usize].next
    }

    /// Positions below this one were given up.
    pub(crate) fn lost(&self, sequence: u32) -> i32 {
        self.sequences[sequence as usize].lost
    }

    /// The lowest position that is kept, or the next one if none is.
    pub(crate) fn first(&self, sequence: u32) -> i32 {
        let held = &self.sequences[sequence as usize];
        held.cells.cells().map(|cell| self.positions[cell as usize]).min().unwrap_or(held.next)
    }

    /// Positions that are kept with their cells, by position.
    pub(crate) fn held(&self, sequence: u32) -> Vec<(i32, u32)> {
        let cells = self.sequences[sequence as usize].cells.cells();
        let mut held: Vec<_> = cells.map(|cell| (self.positions[cell as usize], cell)).collect();
        held.sort_unstable();
        held
    }

    /// Cells that would be free if the sequence were cleared.
    pub(crate) fn free_without(&self, sequence: u32) -> u32 {
        let cells = self.sequences[sequence as usize].cells.cells();
        self.free + cells.filter(|cell| self.owners[*cell as usize] == 1).count() as u32
    }

    /// Forgets the positions of `range`. If that reaches the end, the sequence goes on at `range.start`.
    pub(crate) fn remove(&mut self, sequence: u32, range: Range<i32>) {
        self.forget(sequence, &range);
        let held = &mut self.sequences[sequence as usize];
        if range.end >= held.next {
            held.next = held.next.min(range.start.max(0));
            held.lost = held.lost.min(held.next);
            let newest = |cell: &u32| self.positions[*cell as usize] == held.next - 1;
            held.newest = held.cells.cells().find(newest);
        }
    }

    /// Gives back the sequence's cells of these positions.
    fn forget(&mut self, sequence: u32, range: &Range<i32>) {
        let held = &mut self.sequences[sequence as usize];
        held.cells = held.cells.filtered(|cell| {
            let stays = !range.contains(&self.positions[cell as usize]);
            if !stays {
                self.owners[cell as usize] -= 1;
                self.free += u32::from(self.owners[cell as usize] == 0);
            }
            stays
        });
    }

    /// Empties the sequence.
    pub(crate) fn clear(&mut self, sequence: u32) {
        self.remove(sequence, 0..i32::MAX);
    }

    /// Makes `to` equal to `from`, sharing all cells.
    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        if from == to {
            return;
        }
        self.clear(to);
        let held = self.sequences[from as usize].clone();
        held.cells.cells().for_each(|cell| self.owners[cell as usize] += 1);
        self.sequences[to as usize] = held;
    }

    /// Whether [`Ledger::shift`] has enough free cells for what other sequences share, and leaves everything that
    /// the next query sees.
    pub(crate) fn can_shift(&self, sequence: u32, keep: i32, discard: i32) -> Result<(), ShiftRefusal> {
        let (mut freed, mut needed) = (0, 0);
        for cell in self.sequences[sequence as usize].cells.cells() {
            let position = self.positions[cell as usize];
            let shared = self.owners[cell as usize] > 1;
            freed += u32::from(!shared && (keep..keep + discard).contains(&position));
            needed += u32::from(shared && position >= keep + discard);
        }
        let lost = lost_after_shift(self.lost(sequence), keep, discard);
        let next = self.next(sequence) - discard;
        if needed > self.free + freed {
            Err(ShiftRefusal::NoRoom { needed, free: self.free + freed })
        } else if self.horizon(next) < lost {
            Err(ShiftRefusal::PositionsLost)
        } else {
            Ok(())
        }
    }

    /// Forgets positions `keep..keep + discard` and moves later ones down by `discard`. Call
    /// [`Ledger::can_shift`] before.
    pub(crate) fn shift(&mut self, sequence: u32, keep: i32, discard: i32) -> Shift {
        let (next, lost) = (self.next(sequence), self.lost(sequence));
        self.remove(sequence, keep..keep + discard);
        let mut shift = Shift::default();
        let later: Vec<(i32, u32)> =
            self.held(sequence).into_iter().filter(|(position, _)| *position >= keep).collect();
        let shared: Vec<u32> =
            later.iter().map(|(_, cell)| *cell).filter(|cell| self.owners[*cell as usize] > 1).collect();
        let fresh = self.find(shared.len() as u32, None);
        let mut fresh_cells = fresh.iter().cloned().flatten();
        let mut moved = std::collections::HashMap::new();
        for from in shared {
            let Some(to) = fresh_cells.next() else { break };
            shift.copies.push(CellMove { from, to });
            moved.insert(from, to);
            self.owners[from as usize] -= 1;
            self.positions[to as usize] = self.positions[from as usize];
        }
        let held = &mut self.sequences[sequence as usize];
        held.cells = held.cells.filtered(|cell| !moved.contains_key(&cell));
        for run in fresh {
            self.free -= run.len() as u32;
            self.owners[run.start as usize..run.end as usize].fill(1);
            held.cells.insert(run);
        }
        for (position, cell) in later {
            let cell = moved.get(&cell).copied().unwrap_or(cell);
            self.positions[cell as usize] = position - discard;
            shift.turns.push((cell, -discard));
            held.newest = Some(cell);
        }
        held.next = next - discard;
        held.lost = lost_after_shift(lost, keep, discard);
        shift
    }

    /// Replaces a sequence by these ascending positions below `next` and returns the cells that take them, for
    /// the last so many positions that there is room for.
    pub(crate) fn adopt(&mut self, sequence: u32, positions: &[i32], next: i32, lost: i32) -> Vec<u32> {
        self.clear(sequence);
        let count = positions.len().min(self.free as usize);
        let (dropped, kept) = positions.split_at(positions.len() - count);
        let lost = dropped.last().map_or(lost, |position| lost.max(position + 1));
        let cells = self.take(sequence, kept);
        let held = &mut self.sequences[sequence as usize];
        held.next = next;
        held.lost = lost;
        cells
    }
}
