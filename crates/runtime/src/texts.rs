//! Short and long texts: models with LongRoPE turn them by different frequencies, so that a text belongs to one kind from its
//! first token on.

use crate::{Batch, Model};

/// Which sequences hold long texts.
pub(crate) struct Texts {
    /// Most tokens of a short one; none where there is no difference.
    limit: Option<u32>,
    /// Lengths that empty sequences are expected to reach.
    expected: Vec<u32>,
    /// Whether a sequence that is not empty counts as long.
    long: Vec<bool>,
}

impl Texts {
    pub(crate) fn new(limit: Option<u32>, sequences: u32) -> Self {
        let sequences = if limit.is_some() { sequences as usize } else { 0 };
        Self { limit, expected: vec![0; sequences], long: vec![false; sequences] }
    }

    /// Whether the text counts as long.
    pub(crate) fn is_long(&self, sequence: u32) -> bool {
        self.long.get(sequence as usize).copied().unwrap_or(false)
    }

    /// Says of which kind a sequence's text is.
    pub(crate) fn set(&mut self, sequence: u32, long: bool) {
        if let Some(place) = self.long.get_mut(sequence as usize) {
            *place = long;
        }
    }

    /// Whether each piece of a step belongs to a long text; nothing where there is no difference.
    pub(crate) fn of_pieces(&self, pieces: &[(u32, u32)]) -> Vec<bool> {
        let pieces = if self.limit.is_some() { pieces } else { &[] };
        pieces.iter().map(|(sequence, _)| self.is_long(*sequence)).collect()
    }

    fn expect(&mut self, sequence: u32, length: u32) {
        if let Some(place) = self.expected.get_mut(sequence as usize) {
            *place = length;
        }
    }
}

impl Model {
    /// Tells that a sequence's text will have so many tokens. Whether a text counts as long, as models with LongRoPE must know
    /// from its first token on, follows from that and from the batch that begins it; one that outgrows a short text goes on as
    /// it began. Returns whether what the sequence holds suits that length; if not, it should be cleared and computed anew.
    pub fn expect(&mut self, sequence: u32, length: u32) -> bool {
        let Some(limit) = self.texts.limit else { return true };
        if self.length(sequence) == 0 {
            self.texts.expect(sequence, length);
            return true;
        }
        self.texts.is_long(sequence) == (length > limit)
    }

    /// Decides about the texts that a batch begins.
    pub(crate) fn begin_texts(&mut self, batch: &Batch) {
        let Some(limit) = self.texts.limit else { return };
        for sequence in batch.work.iter().map(|work| work.sequence) {
            if self.length(sequence) == 0 {
                let own = batch.work.iter().filter(|work| work.sequence == sequence);
                let tokens: usize = own.map(|work| work.tokens.len()).sum();
                let expected = self.texts.expected.get(sequence as usize).copied().unwrap_or(0);
                self.texts.set(sequence, expected > limit || tokens > limit as usize);
            }
        }
    }

    /// An emptied sequence expects nothing.
    pub(crate) fn forget_text(&mut self, sequence: u32) {
        self.texts.expect(sequence, 0);
    }
}
