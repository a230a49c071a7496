//! Who owns which cache cell: integers only, one ledger per cache group.
//!
//! A cell has a position and belongs to any number of sequences, so copying a sequence costs nothing and memory
//! is shared until the copies diverge: new rows always go to cells of nobody. A sequence keeps its cells as
//! ranges, and new cells continue the last range where they can, so a back end sees few ranges.
//!
//! A ledger of [`CacheGroup::Window`] keeps cells that no later query can see for as long as there is room, so
//! that a sequence can be truncated by that much. Where it needs room it gives up the oldest positions and
//! remembers that they are gone.
//!
//! In a ledger of [`CacheGroup::Recurrent`] a cell holds the state after its position, so a sequence needs the cell
//! of its newest position only; older ones are checkpoints to go back to. Some of them may be marked as anchors.

mod place;
mod recurrent;
mod runs;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{HashMap, TryReserveError};
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
    /// Cells of recurrent states that are worth more than others, with their age: older ones have smaller numbers.
    anchors: HashMap<u32, u64>,
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

/// Why a sequence cannot be shifted or restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// There are too few cells for it.
    NoRoom { needed: u32, free: u32 },
    /// The next query would see positions that a window gave up.
    PositionsLost,
    /// The state of a recurrent layer cannot lose single positions.
    Recurrent,
}

/// So many zeroes. Their pages cost nothing until they are touched, which for a context larger than what is ever
/// used matters; only `vec!` does that, but it ends the program where there is no memory, so that is asked first.
fn zeroes<T: Clone + Default>(count: usize) -> Result<Vec<T>, TryReserveError> {
    Vec::<T>::new().try_reserve_exact(count)?;
    Ok(vec![T::default(); count])
}

impl Ledger {
    /// An empty ledger of `cells` cells for sequences 0 to `sequences - 1`. Fails if there is no memory for it.
    pub(crate) fn new(group: CacheGroup, cells: u32, sequences: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            group,
            positions: zeroes(cells as usize)?,
            owners: zeroes(cells as usize)?,
            free: cells,
            sequences: vec![Held::default(); sequences as usize],
            anchors: HashMap::new(),
        })
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
        if self.group == CacheGroup::Recurrent {
            return 0;
        }
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

    /// Forgets positions `keep..keep + discard` and moves later ones down by `discard`. After a refusal the
    /// ledger is not to be used any more: shift a clone.
    pub(crate) fn shift(&mut self, sequence: u32, keep: i32, discard: i32) -> Result<Shift, Refusal> {
        if self.group == CacheGroup::Recurrent {
            return Err(Refusal::Recurrent);
        }
        let next = self.next(sequence);
        let lost = self.lost(sequence);
        self.forget(sequence, &(keep..keep + discard));
        let lost = self.make_room_for_shift(sequence, keep, discard).max(lost);
        let lost = if lost <= keep { lost } else { keep.max(lost - discard) };
        if self.horizon(next - discard) < lost {
            return Err(Refusal::PositionsLost);
        }
        let held = self.held(sequence);
        let later: Vec<(i32, u32)> = held.into_iter().filter(|(position, _)| *position >= keep).collect();
        let shared: Vec<u32> =
            later.iter().map(|(_, cell)| *cell).filter(|cell| self.owners[*cell as usize] > 1).collect();
        let needed = shared.len() as u32;
        if needed > self.free {
            return Err(Refusal::NoRoom { needed, free: self.free });
        }
        let fresh = self.find(needed, None);
        let copies = shared.into_iter().zip(fresh.iter().cloned().flatten());
        let copies: Vec<CellMove> = copies.map(|(from, to)| CellMove { from, to }).collect();
        copies.iter().for_each(|copy| self.owners[copy.from as usize] -= 1);
        let moved: HashMap<u32, u32> = copies.iter().map(|copy| (copy.from, copy.to)).collect();
        let held = &mut self.sequences[sequence as usize];
        held.cells = held.cells.filtered(|cell| !moved.contains_key(&cell));
        for run in fresh {
            self.free -= run.len() as u32;
            self.owners[run.start as usize..run.end as usize].fill(1);
            held.cells.insert(run);
        }
        let mut turns = Vec::with_capacity(later.len());
        for (position, cell) in later {
            let cell = moved.get(&cell).copied().unwrap_or(cell);
            self.positions[cell as usize] = position - discard;
            turns.push((cell, -discard));
        }
        held.next = next - discard;
        held.lost = lost;
        let newest = |cell: &u32| self.positions[*cell as usize] == held.next - 1;
        held.newest = held.cells.cells().find(newest);
        Ok(Shift { copies, turns })
    }

    /// Replaces a sequence by these ascending positions below `next` and returns the cells that take them in their order:
    /// the last so many positions that there is room for, of a recurrent group those that cover the others best. After a
    /// refusal the ledger is not to be used any more.
    pub(crate) fn adopt(
        &mut self,
        sequence: u32,
        positions: &[i32],
        next: i32,
        lost: i32,
    ) -> Result<Vec<u32>, Refusal> {
        self.clear(sequence);
        let horizon = self.horizon(next);
        let needed = positions.iter().filter(|position| **position >= horizon).count() as u32;
        self.give_up(needed, &self.others(sequence));
        if needed > self.free {
            return Err(Refusal::NoRoom { needed, free: self.free });
        }
        if self.group == CacheGroup::Recurrent {
            return Ok(self.adopt_checkpoints(sequence, positions, next));
        }
        let count = positions.len().min(self.free as usize);
        let (dropped, kept) = positions.split_at(positions.len() - count);
        let lost = dropped.last().map_or(lost, |position| lost.max(position + 1));
        let cells = self.take(sequence, kept);
        let held = &mut self.sequences[sequence as usize];
        held.next = next;
        held.lost = lost;
        Ok(cells)
    }

    fn others(&self, sequence: u32) -> Vec<u32> {
        (0..self.sequences.len() as u32).filter(|other| *other != sequence).collect()
    }
}
