//! Which block and place of a paged cache holds which cell.
//!
//! The runtime's ledger gives out single cells; attention over pages wants, for each sequence, blocks in the order of its
//! positions. A table is such an order. A step names a sequence by the cells that it sees: if these are what a table
//! holds, the new ones are appended; if they are the beginning of one, its full blocks are shared and the last is
//! copied; otherwise a new table is made by copying. A cell that is written again is forgotten wherever it was.

use std::collections::HashMap;

/// Cells of one block.
pub(crate) const BLOCK: usize = 32;
/// Marks a place whose cell was forgotten.
const DEAD: u32 = u32::MAX;

/// A place in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Slot {
    pub(crate) block: u32,
    pub(crate) offset: u32,
}

/// What a step reads and writes for one sequence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Run {
    /// Blocks in order, those of the new cells included.
    pub(crate) blocks: Vec<u32>,
    /// Cells in them before the new ones.
    pub(crate) past: usize,
    /// To be copied before the step.
    pub(crate) copies: Vec<(Slot, Slot)>,
}

/// Blocks and tables of one cache group.
#[derive(Default)]
pub(crate) struct Pages {
    tables: Vec<Table>,
    /// Tables that use each block.
    users: Vec<u32>,
    free: Vec<u32>,
}

#[derive(Clone, Default)]
struct Table {
    /// Blocks whose cells are all forgotten are given back.
    blocks: Vec<Option<u32>>,
    cells: Vec<u32>,
}

impl Table {
    fn slot(&self, index: usize) -> Option<Slot> {
        let block = self.blocks.get(index / BLOCK).copied().flatten()?;
        Some(Slot { block, offset: (index % BLOCK) as u32 })
    }
}

impl Pages {
    /// Blocks that there must be room for.
    pub(crate) fn blocks(&self) -> usize {
        self.users.len()
    }

    fn take_block(&mut self) -> u32 {
        if let Some(block) = self.free.pop() {
            self.users[block as usize] = 1;
            return block;
        }
        self.users.push(1);
        self.users.len() as u32 - 1
    }

    fn give_back(&mut self, block: u32) {
        let users = &mut self.users[block as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(block);
        }
    }

    /// Forgets cells, because they are about to hold something else.
    pub(crate) fn forget(&mut self, cells: &[u32]) {
        let gone: std::collections::HashSet<u32> = cells.iter().copied().collect();
        let mut given = Vec::new();
        for table in &mut self.tables {
            let mut changed = false;
            for cell in table.cells.iter_mut().filter(|cell| gone.contains(cell)) {
                *cell = DEAD;
                changed = true;
            }
            if !changed {
                continue;
            }
            while table.cells.last() == Some(&DEAD) {
                table.cells.pop();
            }
            let used = table.cells.len().div_ceil(BLOCK);
            given.extend(table.blocks.drain(used..).flatten());
            for (block, cells) in table.blocks.iter_mut().zip(table.cells.chunks(BLOCK)) {
                if cells.iter().all(|cell| *cell == DEAD) {
                    given.extend(block.take());
                }
            }
        }
        given.into_iter().for_each(|block| self.give_back(block));
        self.tables.retain(|table| !table.cells.is_empty());
    }

    /// Finds or makes the table of a sequence that sees `past` in this order, and appends `new`, which were forgotten
    /// before. `may_precede`: older cells before the first of them do no harm, because no row sees that far.
    /// `None` if a cell of the past is nowhere.
    pub(crate) fn place(&mut self, past: &[u32], new: &[u32], may_precede: bool) -> Option<Run> {
        let mut copies = Vec::new();
        let found = self.tables.iter().enumerate().find_map(|(index, table)| {
            let first = match past.first() {
                Some(first) => table.cells.iter().position(|cell| cell == first)?,
                None => return None,
            };
            let same = table.cells[first..].starts_with(past) && (first == 0 || may_precede);
            same.then_some((index, first))
        });
        let (table, first) = match found {
            Some((index, first)) if first + past.len() == self.tables[index].cells.len() => (index, first),
            Some((index, first)) => {
                copies = self.branch(index, first + past.len())?;
                (self.tables.len() - 1, first)
            }
            None => {
                copies.extend(self.rebuild(past)?);
                (self.tables.len() - 1, 0)
            }
        };
        for cell in new {
            if self.tables[table].cells.len() == self.tables[table].blocks.len() * BLOCK {
                let block = self.take_block();
                self.tables[table].blocks.push(Some(block));
            }
            self.tables[table].cells.push(*cell);
        }
        let held = &self.tables[table];
        let first_block = first / BLOCK;
        let blocks = held.blocks[first_block..].iter().copied().collect::<Option<Vec<u32>>>()?;
        let past = held.cells.len() - new.len() - first_block * BLOCK;
        if held.cells.is_empty() {
            self.tables.remove(table);
        }
        Some(Run { blocks, past, copies })
    }

    /// A table of the first cells of another.
    fn branch(&mut self, index: usize, length: usize) -> Option<Vec<(Slot, Slot)>> {
        let mut table = self.tables[index].clone();
        table.cells.truncate(length);
        table.blocks.truncate(length / BLOCK);
        for block in table.blocks.iter().flatten() {
            self.users[*block as usize] += 1;
        }
        let mut copies = Vec::new();
        if !length.is_multiple_of(BLOCK) {
            let block = self.take_block();
            table.blocks.push(Some(block));
            for place in length / BLOCK * BLOCK..length {
                if table.cells[place] != DEAD {
                    copies.push((self.tables[index].slot(place)?, table.slot(place)?));
                }
            }
        }
        self.tables.push(table);
        Some(copies)
    }

    /// A table of cells that lie anywhere.
    fn rebuild(&mut self, cells: &[u32]) -> Option<Vec<(Slot, Slot)>> {
        let from = self.slots(cells).into_iter().collect::<Option<Vec<Slot>>>()?;
        let to = self.add(cells);
        Some(from.into_iter().zip(to).collect())
    }

    /// A new table; returns its slots.
    fn add(&mut self, cells: &[u32]) -> Vec<Slot> {
        let blocks = (0..cells.len().div_ceil(BLOCK)).map(|_| Some(self.take_block())).collect();
        let table = Table { blocks, cells: cells.to_vec() };
        let slots = (0..cells.len()).filter_map(|index| table.slot(index)).collect();
        self.tables.push(table);
        slots
    }

    /// Places of cells that are about to be filled from outside: a table of their own.
    pub(crate) fn adopt(&mut self, cells: &[u32]) -> Vec<Slot> {
        if let Some(table) = self.tables.iter().find(|table| table.cells == cells) {
            return (0..cells.len()).filter_map(|index| table.slot(index)).collect();
        }
        self.forget(cells);
        self.add(cells)
    }

    /// Where cells are.
    pub(crate) fn slots(&self, cells: &[u32]) -> Vec<Option<Slot>> {
        let mut places: HashMap<u32, Slot> = HashMap::new();
        for table in &self.tables {
            for (index, cell) in table.cells.iter().enumerate() {
                if *cell != DEAD
                    && let Some(slot) = table.slot(index)
                {
                    places.insert(*cell, slot);
                }
            }
        }
        cells.iter().map(|cell| places.get(cell).copied()).collect()
    }

    /// Every place where one of these cells is, with the cell's index in the list; each place once.
    pub(crate) fn all_slots(&self, cells: &[u32]) -> Vec<(Slot, usize)> {
        let wanted: HashMap<u32, usize> =
            cells.iter().enumerate().map(|(index, cell)| (*cell, index)).collect();
        let mut all = Vec::new();
        for table in &self.tables {
            for (index, cell) in table.cells.iter().enumerate() {
                if let (Some(place), Some(slot)) = (wanted.get(cell), table.slot(index)) {
                    all.push((slot, *place));
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(range: std::ops::Range<u32>) -> Vec<u32> {
        range.collect()
    }

    /// A cache of one number per place, to see that a run's blocks hold the right cells.
    #[derive(Default)]
    struct Memory(HashMap<Slot, u32>);

    impl Memory {
        fn step(&mut self, pages: &mut Pages, past: &[u32], new: &[u32]) -> Run {
            pages.forget(new);
            let run = pages.place(past, new, false).expect("all cells are somewhere");
            for (from, to) in &run.copies {
                let content = self.0[from];
                self.0.insert(*to, content);
            }
            for (index, cell) in new.iter().enumerate() {
                let place = run.past + index;
                let slot = Slot { block: run.blocks[place / BLOCK], offset: (place % BLOCK) as u32 };
                self.0.insert(slot, *cell);
            }
            let seen: Vec<u32> = (0..run.past + new.len())
                .map(|place| {
                    self.0[&Slot { block: run.blocks[place / BLOCK], offset: (place % BLOCK) as u32 }]
                })
                .collect();
            assert_eq!(seen, [past, new].concat());
            run
        }
    }

    #[test]
    fn a_sequence_grows_in_place() {
        let (mut pages, mut memory) = (Pages::default(), Memory::default());
        memory.step(&mut pages, &[], &cells(0..40));
        let run = memory.step(&mut pages, &cells(0..40), &[40]);
        assert_eq!((run.past, run.blocks.len(), run.copies.len()), (40, 2, 0));
        assert_eq!(pages.blocks(), 2);
    }

    #[test]
    fn branches_share_full_blocks_and_leave_each_other_alone() {
        let (mut pages, mut memory) = (Pages::default(), Memory::default());
        memory.step(&mut pages, &[], &cells(0..40));
        let one = memory.step(&mut pages, &cells(0..40), &[50]);
        let two = memory.step(&mut pages, &cells(0..40), &[60]);
        assert_eq!(one.blocks[0], two.blocks[0]);
        assert_ne!(one.blocks[1], two.blocks[1]);
        assert_eq!(two.copies.len(), 8);
        memory.step(&mut pages, &[cells(0..40), vec![50]].concat(), &[51]);
        memory.step(&mut pages, &[cells(0..40), vec![60]].concat(), &[61]);
    }

    #[test]
    fn truncation_holes_and_reuse_of_cells() {
        let (mut pages, mut memory) = (Pages::default(), Memory::default());
        memory.step(&mut pages, &[], &cells(0..70));
        // Truncated to 33 and continued in the freed cells.
        memory.step(&mut pages, &cells(0..33), &cells(33..36));
        // A hole: positions 4 to 9 are gone.
        let holed = [cells(0..4), cells(10..36)].concat();
        memory.step(&mut pages, &holed, &[4]);
        // Another sequence takes all cells.
        memory.step(&mut pages, &[], &cells(0..64));
        assert!(pages.place(&[69, 200], &[], false).is_none());
        let before = pages.blocks();
        for _ in 0..10 {
            memory.step(&mut pages, &[], &cells(0..64));
        }
        assert_eq!(pages.blocks(), before.max(4), "blocks are used again");
    }

    #[test]
    fn what_a_window_gave_up_may_stay_before_it() {
        let mut pages = Pages::default();
        pages.place(&[], &cells(0..80), true);
        // The window forgot the first 40 cells, and the ledger gave some of them out again.
        pages.forget(&cells(0..33));
        let run = pages.place(&cells(40..80), &[0], true).expect("they are there");
        assert_eq!((run.past, run.blocks.len()), (48, 2));
        assert!(run.copies.is_empty());
    }

    #[test]
    fn adopted_cells_have_places_and_shared_ones_are_named_once() {
        let mut pages = Pages::default();
        let slots = pages.adopt(&cells(5..45));
        assert_eq!(pages.adopt(&cells(5..45)), slots);
        assert_eq!(pages.slots(&[6, 99]), [Some(slots[1]), None]);
        pages.place(&cells(5..38), &[80], false);
        assert_eq!(pages.all_slots(&cells(5..37)).len(), 32);
        // The copied end of the branch is another place of the same cell.
        assert_eq!(pages.all_slots(&[37]).len(), 2);
    }
}
