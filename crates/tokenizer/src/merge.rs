//! Greedy pair merging in `n log n`: the core of both SentencePiece and byte-pair encoding.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A piece of the text; pieces form a doubly linked list in text order.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    length: usize,
    previous: usize,
    next: usize,
    id: u32,
}

const END: usize = usize::MAX;
/// Up to so many symbols the best pair is looked for anew each time, which is quicker than a queue.
const FEW: usize = 24;

/// A pair that may be merged. Ordered by priority, then from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<P> {
    priority: P,
    left: usize,
    right: usize,
    /// Bytes of both symbols: tells whether the pair is still the one that was queued.
    length: usize,
    merged: u32,
}

/// Buffers for merging, reused from word to word.
#[derive(Debug)]
pub(crate) struct Merger<P> {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate<P>>>,
    /// What each symbol and its neighbour on the right become.
    pairs: Vec<Option<(P, u32)>>,
}

impl<P: Ord + Copy> Merger<P> {
    pub(crate) fn new() -> Merger<P> {
        Merger { symbols: Vec::new(), queue: BinaryHeap::new(), pairs: Vec::new() }
    }

    /// Removes the symbols of the last word.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends a symbol of `length` bytes.
    pub(crate) fn push(&mut self, length: usize, id: u32) {
        let position = self.symbols.len();
        let previous = position.checked_sub(1).unwrap_or(END);
        let start = match self.symbols.last_mut() {
            None => 0,
            Some(last) => {
                last.next = position;
                last.start + last.length
            }
        };
        self.symbols.push(Symbol { start, length, previous, next: END, id });
    }

    /// Merges until no pair can be merged: always the pair of the smallest priority, the leftmost among equals.
    /// `pair` gets the ids of two neighbours and the bytes they span, and says what they become.
    pub(crate) fn merge(&mut self, mut pair: impl FnMut(u32, u32, Range<usize>) -> Option<(P, u32)>) {
        match self.symbols.len() {
            0..=FEW => self.merge_few(&mut pair),
            _ => self.merge_many(&mut pair),
        }
    }

    fn merge_few(&mut self, pair: &mut impl FnMut(u32, u32, Range<usize>) -> Option<(P, u32)>) {
        let mut of = |symbols: &[Symbol], left: usize| match symbols.get(left..) {
            Some([a, b, ..]) => pair(a.id, b.id, a.start..a.start + a.length + b.length),
            _ => None,
        };
        self.pairs.clear();
        self.pairs.extend((1..self.symbols.len()).map(|right| of(&self.symbols, right - 1)));
        loop {
            let found = self.pairs.iter().enumerate().filter_map(|(place, pair)| Some((place, (*pair)?)));
            // The first of equal ones.
            let Some((left, (_, merged))) = found.min_by_key(|(_, (priority, _))| *priority) else { return };
            let right = self.symbols.remove(left + 1);
            self.pairs.remove(left);
            if let Some(symbol) = self.symbols.get_mut(left) {
                symbol.length += right.length;
                symbol.id = merged;
            }
            for left in left.saturating_sub(1)..=left {
                if let Some(place) = self.pairs.get_mut(left) {
                    *place = of(&self.symbols, left);
                }
            }
        }
    }

    fn merge_many(&mut self, pair: &mut impl FnMut(u32, u32, Range<usize>) -> Option<(P, u32)>) {
        for position in 1..self.symbols.len() {
            self.consider(position - 1, position, pair);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            let (Some(&left), Some(&right)) =
                (self.symbols.get(candidate.left), self.symbols.get(candidate.right))
            else {
                continue;
            };
            // Symbols that were merged away have length 0, grown ones another length.
            if left.length == 0 || right.length == 0 || left.length + right.length != candidate.length {
                continue;
            }
            if left.next != candidate.right {
                continue;
            }
            if let Some(left) = self.symbols.get_mut(candidate.left) {
                left.length = candidate.length;
                left.next = right.next;
                left.id = candidate.merged;
            }
            if let Some(right) = self.symbols.get_mut(candidate.right) {
                right.length = 0;
            }
            if let Some(next) = self.symbols.get_mut(right.next) {
                next.previous = candidate.left;
            }
            self.consider(left.previous, candidate.left, pair);
            self.consider(candidate.left, right.next, pair);
        }
    }

    fn consider(
        &mut self,
        left: usize,
        right: usize,
        pair: &mut impl FnMut(u32, u32, Range<usize>) -> Option<(P, u32)>,
    ) {
        let (Some(a), Some(b)) = (self.symbols.get(left), self.symbols.get(right)) else { return };
        let length = a.length + b.length;
        if let Some((priority, merged)) = pair(a.id, b.id, a.start..a.start + length) {
            self.queue.push(Reverse(Candidate { priority, left, right, length, merged }));
        }
    }

    /// The symbols that remain, from left to right: id and bytes.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = (u32, Range<usize>)> + '_ {
        let live = self.symbols.iter().filter(|symbol| symbol.length > 0);
        live.map(|symbol| (symbol.id, symbol.start..symbol.start + symbol.length))
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW, Merger};

    /// Merges equal neighbours into their sum, smaller sums first.
    fn merged(ids: &[u32], few: bool) -> Vec<(u32, usize)> {
        let mut merger = Merger::new();
        ids.iter().for_each(|id| merger.push(1, *id));
        let mut pair = |a: u32, b: u32, _| (a ^ b).is_multiple_of(3).then_some(((a + b) / 2, a + b));
        match few {
            true => merger.merge_few(&mut pair),
            false => merger.merge_many(&mut pair),
        }
        merger.symbols().map(|(id, range)| (id, range.len())).collect()
    }

    #[test]
    fn both_ways_give_the_same() {
        let mut state = 1u32;
        for _ in 0..2_000 {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 24
            };
            let ids: Vec<u32> = (0..next() as usize % (FEW + 1)).map(|_| next() % 8).collect();
            assert_eq!(merged(&ids, true), merged(&ids, false), "{ids:?}");
        }
    }
}
