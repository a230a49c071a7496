//! Operations on the caches of whole sequences.

use std::ops::Range;

use puna_backend::partition::immovable_state;
use puna_graph::CacheGroup;

use crate::ledger::{Refusal, Shift};
use crate::{Model, RuntimeError};

impl Model {
    /// Position of the sequence's next token. 0 for a sequence that does not exist.
    pub fn length(&self, sequence: u32) -> u32 {
        if self.exists(sequence) { self.next(sequence).unsigned_abs() } else { 0 }
    }

    /// Positions that every cache still has, short of what was removed in between: windows forget old ones.
    pub fn positions(&self, sequence: u32) -> Range<i32> {
        if !self.exists(sequence) {
            return 0..0;
        }
        let first = self.timed().map(|ledger| ledger.first(sequence)).max().unwrap_or(0);
        first..self.next(sequence)
    }

    /// The lowest length above 0 to which the sequence can be truncated; 0 if it can be to any.
    pub fn earliest_truncation(&self, sequence: u32) -> u32 {
        if !self.exists(sequence) {
            return 0;
        }
        self.timed().map(|ledger| ledger.earliest(sequence)).max().unwrap_or(0).unsigned_abs()
    }

    /// The largest length up to `wanted` to which the sequence can be truncated; 0 is always possible.
    pub fn longest_truncation(&self, sequence: u32, wanted: u32) -> u32 {
        let mut length = wanted.min(self.length(sequence));
        // Each ledger names its best below; all must agree on one.
        while self.exists(sequence) && length > 0 {
            let position = i32::try_from(length).unwrap_or(i32::MAX);
            let possible = self.timed().map(|ledger| ledger.longest_truncation(sequence, position));
            let possible = possible.min().unwrap_or(0).unsigned_abs();
            if possible == length {
                break;
            }
            length = possible;
        }
        length
    }

    /// Whether it has recurrent layers, so that sequences can be truncated to where a step ended only.
    pub fn keeps_checkpoints(&self) -> bool {
        self.is_recurrent()
    }

    /// Says that the sequence may be truncated to its present length later: recurrent states of other lengths are given
    /// up before this one.
    pub fn mark(&mut self, sequence: u32) {
        if self.exists(sequence) {
            self.ledgers.iter_mut().for_each(|ledger| ledger.mark(sequence));
        }
    }

    /// Forgets all positions from `from` on. Fails, changing nothing, if a windowed or recurrent cache has given up
    /// what the sequence needs to go on from there; see [`Model::longest_truncation`].
    pub fn truncate(&mut self, sequence: u32, from: u32) -> Result<(), RuntimeError> {
        self.remove(sequence, i32::try_from(from).unwrap_or(i32::MAX)..i32::MAX)
    }

    /// Forgets the positions of `range`. What follows keeps its positions, so a hole remains; if nothing follows
    /// this is [`Model::truncate`]. Models with recurrent layers refuse a hole.
    pub fn remove(&mut self, sequence: u32, range: Range<i32>) -> Result<(), RuntimeError> {
        self.check_sequence(sequence)?;
        let next = self.next(sequence);
        let range = range.start.max(0)..range.end;
        if range.is_empty() || range.start >= next {
            return Ok(());
        }
        if range.end < next && self.is_recurrent() {
            return Err(RuntimeError::Recurrent { sequence });
        }
        if range.end >= next && self.timed().any(|ledger| !ledger.can_continue(sequence, range.start)) {
            return Err(self.positions_lost(sequence, range.start));
        }
        for ledger in self.timed_mut() {
            ledger.remove(sequence, range.clone());
        }
        Ok(())
    }

    /// Makes the sequence `to` equal to `from`. Costs no cells: they are shared until the two diverge. Copying
    /// from a sequence that does not exist empties `to`; copying to one does nothing.
    pub fn copy(&mut self, from: u32, to: u32) {
        if !self.exists(from) {
            self.clear(to);
        } else if self.exists(to) {
            self.ledgers.iter_mut().for_each(|ledger| ledger.copy(from, to));
            self.texts.set(to, self.texts.is_long(from));
        }
    }

    /// Empties the sequence.
    pub fn clear(&mut self, sequence: u32) {
        if self.exists(sequence) {
            self.ledgers.iter_mut().for_each(|ledger| ledger.clear(sequence));
            self.forget_text(sequence);
        }
    }

    /// Empties all other sequences.
    pub fn keep(&mut self, sequence: u32) {
        for other in (0..self.options.sequences).filter(|other| *other != sequence) {
            self.clear(other);
        }
    }

    /// Makes room in a full sequence: drops positions `keep..keep + discard` and moves the later ones down by
    /// `discard`, turning their keys. Cells shared with other sequences are copied first, for which there must be
    /// free ones. Not every model can do it, see [`Model::check_shift`]. If a device fails the sequence is emptied; other errors change nothing.
    pub fn shift(&mut self, sequence: u32, keep: u32, discard: u32) -> Result<(), RuntimeError> {
        self.check_sequence(sequence)?;
        let length = self.length(sequence);
        if keep.checked_add(discard).is_none_or(|end| end > length) {
            return Err(RuntimeError::ShiftRange { keep, discard, length });
        }
        if discard == 0 {
            return Ok(());
        }
        self.check_shift(sequence)?;
        // Both are at most the length, which is a position.
        let (keep, discard) = (keep as i32, discard as i32);
        let mut ledgers = self.ledgers.clone();
        let mut shifts = Vec::with_capacity(ledgers.len());
        for ledger in &mut ledgers {
            if ledger.group() == CacheGroup::Encoder {
                shifts.push(Shift::default());
                continue;
            }
            let shift = ledger.shift(sequence, keep, discard);
            shifts.push(shift.map_err(|refusal| self.refused(sequence, length as i32 - discard, refusal))?);
        }
        self.ledgers = ledgers;
        let turned = self.shift_caches(&shifts);
        if turned.is_err() {
            self.clear(sequence);
        }
        turned
    }

    /// Whether [`Model::shift`] is possible at all: not with recurrent layers, and not where keys or values depend on
    /// positions otherwise than by a rotation right before they are kept.
    pub fn check_shift(&self, sequence: u32) -> Result<(), RuntimeError> {
        if self.is_recurrent() {
            return Err(RuntimeError::Recurrent { sequence });
        }
        match immovable_state(&self.graph) {
            Some(state) => Err(RuntimeError::Unshiftable { layer: self.graph.states[state.index()].layer() }),
            None => Ok(()),
        }
    }

    fn shift_caches(&mut self, shifts: &[Shift]) -> Result<(), RuntimeError> {
        for (group, shift) in shifts.iter().enumerate() {
            for segment in &mut self.segments {
                let states = segment.partition.states();
                states.copy(group, &shift.copies)?;
                states.shift(group, &shift.turns)?;
            }
        }
        Ok(())
    }

    /// The error for a ledger's refusal to let a sequence go on at `position`.
    pub(crate) fn refused(&self, sequence: u32, position: i32, refusal: Refusal) -> RuntimeError {
        match refusal {
            Refusal::NoRoom { needed, free } => {
                RuntimeError::ContextFull { needed, free, context: self.options.context }
            }
            Refusal::PositionsLost => self.positions_lost(sequence, position),
            Refusal::Recurrent => RuntimeError::Recurrent { sequence },
        }
    }

    fn is_recurrent(&self) -> bool {
        self.ledgers.iter().any(|ledger| ledger.group() == CacheGroup::Recurrent)
    }

    pub(crate) fn exists(&self, sequence: u32) -> bool {
        sequence < self.options.sequences
    }

    pub(crate) fn check_sequence(&self, sequence: u32) -> Result<(), RuntimeError> {
        let sequences = self.options.sequences;
        if self.exists(sequence) {
            Ok(())
        } else {
            Err(RuntimeError::SequenceOutOfRange { sequence, sequences })
        }
    }

    fn positions_lost(&self, sequence: u32, position: i32) -> RuntimeError {
        let earliest = self.timed().map(|ledger| ledger.earliest(sequence)).max().unwrap_or(0);
        RuntimeError::PositionsLost {
            sequence,
            position: position.unsigned_abs(),
            nearest: self.longest_truncation(sequence, position.unsigned_abs()),
            earliest: earliest.unsigned_abs(),
        }
    }
}
