//! Random operations on ledgers with a make-believe cache, compared with plain maps.

use std::collections::BTreeMap;

use puna_graph::CacheGroup;

use super::{Ledger, Refusal};

/// SplitMix64 (Steele et al., 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() % limit as u64) as u32
    }
}

/// What a row left in the cache: which row it was, and the turns its key went through.
type Content = (u64, i32);

struct World {
    ledger: Ledger,
    window: Option<i32>,
    cache: Vec<Content>,
    naive: Vec<BTreeMap<i32, Content>>,
    next: Vec<i32>,
    rows: u64,
}

impl World {
    fn new(group: CacheGroup, cells: u32, sequences: u32) -> Self {
        let window = match group {
            CacheGroup::Full => None,
            CacheGroup::Window(length) => Some(length as i32),
            other => panic!("no test of {other:?} is random"),
        };
        Self {
            ledger: Ledger::new(group, cells, sequences).expect("there is memory"),
            window,
            cache: vec![(0, 0); cells as usize],
            naive: vec![BTreeMap::new(); sequences as usize],
            next: vec![0; sequences as usize],
            rows: 0,
        }
    }

    /// Cells that the naive model uses, shared ones once.
    fn distinct(&self) -> usize {
        let mut all: Vec<Content> = self.naive.iter().flat_map(|map| map.values().copied()).collect();
        all.sort();
        all.dedup();
        all.len()
    }

    fn append(&mut self, pieces: &[(u32, u32)]) {
        let total: u32 = pieces.iter().map(|(_, rows)| rows).sum();
        let mut ahead = self.next.clone();
        let starts = pieces.iter().map(|(sequence, rows)| {
            let start = ahead[*sequence as usize];
            ahead[*sequence as usize] += *rows as i32;
            start
        });
        let starts: Vec<i32> = starts.collect();
        let before = self.ledger.free();
        let step = match self.ledger.place(pieces) {
            Ok(step) => step,
            Err(wanted) => {
                assert_eq!(wanted, total);
                assert!(self.window.is_none(), "a window that is large enough always finds room");
                assert!(before < total);
                return;
            }
        };
        assert_eq!(step.write_cells.len(), total as usize);
        let mut row = 0;
        for (sequence, rows) in pieces {
            for _ in 0..*rows {
                self.rows += 1;
                let cell = step.write_cells[row] as usize;
                self.cache[cell] = (self.rows, 0);
                let next = &mut self.next[*sequence as usize];
                assert_eq!(self.ledger.positions[cell], *next);
                self.naive[*sequence as usize].insert(*next, (self.rows, 0));
                *next += 1;
                row += 1;
            }
        }
        let mut row = 0;
        for (((sequence, rows), span), start) in pieces.iter().zip(&step.spans).zip(starts) {
            assert_eq!(span.tokens, row..row + rows);
            row += rows;
            assert!(span.cells.iter().all(|run| !run.is_empty()));
            assert!(span.cells.windows(2).all(|pair| pair[0].end < pair[1].start));
            let seen: BTreeMap<i32, Content> = span
                .cells
                .iter()
                .cloned()
                .flatten()
                .map(|cell| (step.cell_positions[cell as usize], self.cache[cell as usize]))
                .collect();
            let horizon = self.window.map_or(0, |length| (start - length + 1).max(0));
            let expected: BTreeMap<i32, Content> =
                self.naive[*sequence as usize].range(horizon..).map(|(at, what)| (*at, *what)).collect();
            assert_eq!(seen, expected, "sequence {sequence} from {start}");
        }
    }

    fn shift(&mut self, sequence: u32, keep: i32, discard: i32) {
        let mut ledger = self.ledger.clone();
        let shift = match ledger.shift(sequence, keep, discard) {
            Ok(shift) => shift,
            Err(Refusal::NoRoom { .. }) => {
                assert!(self.window.is_none(), "a window that is large enough always finds room");
                return;
            }
            Err(Refusal::Recurrent) => panic!("recurrent ledgers have tests of their own"),
            Err(Refusal::PositionsLost) => {
                let lost = self.ledger.lost(sequence).min(keep);
                let window = self.window.expect("only windows lose positions");
                assert!(lost > self.next[sequence as usize] - discard - window + 1);
                return;
            }
        };
        self.ledger = ledger;
        // A copy counts as another row, so that every cell in use has contents of its own.
        let mut copied = BTreeMap::new();
        for copy in &shift.copies {
            self.rows += 1;
            let original = self.cache[copy.from as usize];
            self.cache[copy.to as usize] = (self.rows, original.1);
            copied.insert(original, self.rows);
        }
        for (cell, delta) in &shift.turns {
            self.cache[*cell as usize].1 += delta;
        }
        let old = std::mem::take(&mut self.naive[sequence as usize]);
        for (position, content) in old {
            let (row, turns) = content;
            if position < keep {
                self.naive[sequence as usize].insert(position, (row, turns));
            } else if position >= keep + discard {
                let row = copied.get(&content).copied().unwrap_or(row);
                self.naive[sequence as usize].insert(position - discard, (row, turns - discard));
            }
        }
        self.next[sequence as usize] -= discard;
    }

    fn check(&mut self) {
        let mut owners = vec![0; self.cache.len()];
        for sequence in 0..self.naive.len() {
            let id = sequence as u32;
            assert_eq!(self.ledger.next(id), self.next[sequence]);
            let lost = self.ledger.lost(id);
            let held = self.ledger.held(id);
            held.iter().for_each(|(_, cell)| owners[*cell as usize] += 1);
            let held: BTreeMap<i32, Content> =
                held.iter().map(|(position, cell)| (*position, self.cache[*cell as usize])).collect();
            // The naive model learns what is gone, after checking that no later query needs it.
            if lost > 0 {
                let window = self.window.expect("only windows lose positions");
                assert!(self.ledger.can_continue(id, self.next[sequence]));
                assert!(lost <= self.next[sequence] - window + 1);
                self.naive[sequence] = self.naive[sequence].split_off(&lost);
            }
            assert_eq!(held, self.naive[sequence], "sequence {sequence}");
        }
        assert_eq!(owners, self.ledger.owners);
        assert_eq!(self.ledger.free() as usize, owners.iter().filter(|owners| **owners == 0).count());
        if self.window.is_none() {
            assert_eq!(self.distinct(), self.cache.len() - self.ledger.free() as usize);
        }
    }
}

fn random_operations(group: CacheGroup, cells: u32, sequences: u32, most_rows: u32, seed: u64) {
    let mut random = Random(seed);
    let mut world = World::new(group, cells, sequences);
    for _ in 0..4000 {
        let sequence = random.below(sequences);
        let length = world.next[sequence as usize];
        match random.below(20) {
            0..=9 => {
                let mut left = most_rows;
                let mut pieces = Vec::new();
                for _ in 0..1 + random.below(sequences) {
                    let rows = 1 + random.below(left);
                    pieces.push((random.below(sequences), rows));
                    left -= rows;
                    if left == 0 {
                        break;
                    }
                }
                world.append(&pieces);
            }
            10..=12 => world.append(&[(sequence, 1)]),
            13 | 14 if length > 0 => {
                let from = random.below(length as u32) as i32;
                if world.ledger.can_continue(sequence, from) {
                    assert!(from == 0 || from >= world.ledger.earliest(sequence));
                    world.ledger.remove(sequence, from..i32::MAX);
                    world.naive[sequence as usize].split_off(&from);
                    world.next[sequence as usize] = from;
                } else {
                    assert!(from < world.ledger.earliest(sequence));
                }
            }
            15 if length > 2 => {
                let from = random.below(length as u32 - 1) as i32;
                let to = (from + 1 + random.below(5) as i32).min(length - 1);
                world.ledger.remove(sequence, from..to);
                world.naive[sequence as usize].retain(|position, _| !(from..to).contains(position));
            }
            16 => {
                let to = random.below(sequences);
                world.ledger.copy(sequence, to);
                world.naive[to as usize] = world.naive[sequence as usize].clone();
                world.next[to as usize] = length;
            }
            17 => {
                world.ledger.clear(sequence);
                world.naive[sequence as usize].clear();
                world.next[sequence as usize] = 0;
            }
            18 if length > 4 => {
                let keep = random.below(3) as i32;
                let discard = 1 + random.below(length as u32 - 4) as i32;
                world.shift(sequence, keep, discard);
            }
            19 if length > 0 => {
                // What a restore does: the same positions in other cells.
                let held = world.ledger.held(sequence);
                let kept: Vec<Content> = held.iter().map(|(_, cell)| world.cache[*cell as usize]).collect();
                let positions: Vec<i32> = held.iter().map(|(position, _)| *position).collect();
                let lost = world.ledger.lost(sequence);
                let mut ledger = world.ledger.clone();
                let Ok(cells) = ledger.adopt(sequence, &positions, length, lost) else {
                    assert!(world.window.is_none(), "a window that is large enough always finds room");
                    continue;
                };
                world.ledger = ledger;
                for (cell, content) in cells.iter().zip(&kept[kept.len() - cells.len()..]) {
                    // A copy is a cell of its own from now on.
                    world.rows += 1;
                    world.cache[*cell as usize] = (world.rows, content.1);
                    let position = world.ledger.positions[*cell as usize];
                    world.naive[sequence as usize].insert(position, (world.rows, content.1));
                }
            }
            _ => {}
        }
        world.check();
    }
}

#[test]
fn full_ledgers_agree_with_the_naive_model() {
    for seed in 0..4 {
        random_operations(CacheGroup::Full, 100, 5, 12, seed);
        random_operations(CacheGroup::Full, 17, 2, 9, 100 + seed);
    }
    random_operations(CacheGroup::Full, 300, 70, 30, 7);
}

#[test]
fn window_ledgers_agree_with_the_naive_model() {
    for seed in 0..4 {
        random_operations(CacheGroup::Window(8), 5 * 8 + 12, 5, 12, seed);
        random_operations(CacheGroup::Window(8), 5 * 8 + 40, 5, 12, 50 + seed);
        random_operations(CacheGroup::Window(3), 2 * 3 + 9, 2, 9, 100 + seed);
    }
    random_operations(CacheGroup::Window(1), 4 + 6, 4, 6, 9);
}

#[test]
fn sequences_that_advance_together_stay_in_few_ranges() {
    let mut ledger = Ledger::new(CacheGroup::Full, 4096, 4).expect("there is memory");
    for sequence in 0..4 {
        ledger.place(&[(sequence, 100)]).expect("has room");
    }
    for _ in 0..400 {
        ledger.place(&[(0, 1), (1, 1), (2, 1), (3, 1)]).expect("has room");
    }
    let step = ledger.place(&[(0, 1), (1, 1), (2, 1), (3, 1)]).expect("has room");
    for span in step.spans {
        assert!(span.cells.len() <= 3, "{:?}", span.cells);
    }
}

#[test]
fn a_window_goes_round_its_cells() {
    let mut ledger = Ledger::new(CacheGroup::Window(8), 16, 1).expect("there is memory");
    for _ in 0..1000 {
        let step = ledger.place(&[(0, 1)]).expect("has room");
        let span = &step.spans[0];
        assert!(span.cells.len() <= 2, "{:?}", span.cells);
        assert!(span.cells.iter().map(|run| run.len()).sum::<usize>() <= 8);
    }
    assert_eq!(ledger.next(0), 1000);
    assert_eq!(ledger.first(0), 984);
    assert_eq!(ledger.earliest(0), 991);
    assert!(!ledger.can_continue(0, 990));
    assert!(ledger.can_continue(0, 991));
}

#[test]
fn a_copy_costs_no_cell_and_writing_goes_elsewhere() {
    let mut ledger = Ledger::new(CacheGroup::Full, 32, 2).expect("there is memory");
    ledger.place(&[(0, 20)]).expect("has room");
    ledger.copy(0, 1);
    assert_eq!(ledger.free(), 12);
    let step = ledger.place(&[(0, 1), (1, 1)]).expect("has room");
    assert_eq!(step.write_cells[0], 20);
    assert_ne!(step.write_cells[1], 20);
    ledger.clear(0);
    assert_eq!(ledger.free(), 32 - 21);
    assert_eq!(ledger.place(&[(1, 12)]), Err(12));
    assert_eq!(ledger.next(1), 21);
}

#[test]
fn a_ledger_without_memory_is_an_error() {
    assert!(super::zeroes::<u32>(usize::MAX / 4).is_err());
    assert!(super::zeroes::<u32>(isize::MAX as usize / 4).is_err());
    assert_eq!(super::zeroes::<u32>(3).expect("there is memory"), [0; 3]);
    // Either is right; what matters is that the program goes on, and that untouched cells cost no memory.
    if let Ok(mut ledger) = Ledger::new(CacheGroup::Full, 1 << 26, 1) {
        assert_eq!(ledger.free(), 1 << 26);
        ledger.place(&[(0, 4)]).expect("there is room");
        assert_eq!(ledger.free(), (1 << 26) - 4);
    }
}
