//! What the engine needs of a model; tests inject failures here.

use puna_runtime::{Batch, Model, Outputs, Reach, RuntimeError};

/// A model that evaluates batches of sequences. [`Model`] is the one that counts.
pub trait Runner: Send {
    /// Number of tokens that exist.
    fn vocabulary(&self) -> u32;
    /// Positions that one sequence can hold.
    fn context(&self) -> u32;
    /// Whether a sequence holds that many because the model has learned no more positions.
    fn context_is_learned(&self) -> bool {
        false
    }
    /// Number of sequences.
    fn sequences(&self) -> u32;
    /// Bytes of its weights; 0 if nothing is known.
    fn weight_bytes(&self) -> u64 {
        0
    }
    /// Cells that no sequence holds.
    fn free_cells(&self) -> u32;
    /// Positions that the sequence holds.
    fn length(&self, sequence: u32) -> u32;
    /// Evaluates a batch. On error nothing of it stays in any sequence, or a sequence is emptied.
    fn run(&mut self, batch: &Batch) -> Result<Outputs, RuntimeError>;
    /// The token that a decoder begins with, if the model has an encoder, which reads the prompts.
    fn decoder_start(&self) -> Option<u32> {
        None
    }
    /// Starts the sequence over with what the encoder makes of these tokens.
    fn encode(&mut self, _sequence: u32, _tokens: &[u32]) -> Result<(), RuntimeError> {
        Ok(())
    }
    /// Tells that the sequence's text will have so many tokens. Returns whether what it holds suits that; if not, it is to be
    /// cleared and computed anew (see [`Model::expect`]).
    fn expect(&mut self, _sequence: u32, _length: u32) -> bool {
        true
    }
    /// The largest length up to `wanted` to which the sequence can be truncated.
    fn longest_truncation(&self, sequence: u32, wanted: u32) -> u32;
    /// Drops the positions from `position` on. An error leaves the sequence as it was.
    fn truncate(&mut self, sequence: u32, position: u32) -> Result<(), RuntimeError>;
    /// Whether sequences can be truncated to where a step ended only.
    fn keeps_checkpoints(&self) -> bool {
        false
    }
    /// The sequence may be truncated to its present length later.
    fn mark(&mut self, _sequence: u32) {}
    /// Drops everything of the sequence.
    fn clear(&mut self, sequence: u32);
    /// Drops `discard` positions after the first `keep` and moves the later ones down. An error leaves the
    /// sequence as it was, or empties it.
    fn shift(&mut self, sequence: u32, keep: u32, discard: u32) -> Result<(), RuntimeError>;
    /// Whether it makes embeddings instead of logits, so that only [`Runner::embed`] can be used.
    fn embeds(&self) -> bool {
        false
    }
    /// Tokens that a text to embed may have.
    fn longest_text(&self) -> u32 {
        self.context()
    }
    /// Embeddings of texts, each in range and not empty: for each its row, or a row per token one after another.
    fn embed(&mut self, _: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        Err(RuntimeError::Purpose { purpose: "generating text" })
    }
    /// How strongly each adapter counts, where that can be changed.
    fn adapters(&self) -> Vec<f32> {
        Vec::new()
    }
    /// Changes how strongly adapters count from the next batch on.
    fn set_adapters(&mut self, _: &[f32]) -> Result<(), RuntimeError> {
        Ok(())
    }
    /// A number that tells saved sequences of this model from those of others.
    fn identity(&mut self) -> u64 {
        0
    }
    /// How far back the sequence could go if it was saved now and restored later.
    fn reach(&self, _sequence: u32) -> Reach {
        Reach::default()
    }
    /// Number of parts in which the sequence is saved, at least 1, of about so many bytes each.
    fn saved_parts(&self, sequence: u32, bytes: u32) -> usize;
    /// A part of the sequence as bytes; `tokens` are those it holds, one for each position. Between parts other sequences
    /// may be used. If that changed what was saved, the first part is not the same any more.
    fn save_part(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        bytes: u32,
        part: usize,
    ) -> Result<Vec<u8>, RuntimeError>;
    /// Takes one of all parts of a saved sequence, which come in order. The first replaces what the sequence holds, or is
    /// refused and leaves it as it was; an error of a later one empties the sequence.
    fn restore_part(&mut self, sequence: u32, saved: &[Vec<u8>], part: usize) -> Result<(), RuntimeError>;
}

impl Runner for Model {
    fn vocabulary(&self) -> u32 {
        self.information().vocabulary
    }

    fn context(&self) -> u32 {
        self.information().context
    }

    fn context_is_learned(&self) -> bool {
        self.information().context_is_learned()
    }

    fn sequences(&self) -> u32 {
        self.options().sequences
    }

    fn weight_bytes(&self) -> u64 {
        Model::weight_bytes(self)
    }

    fn free_cells(&self) -> u32 {
        Model::free_cells(self)
    }

    fn length(&self, sequence: u32) -> u32 {
        Model::length(self, sequence)
    }

    fn run(&mut self, batch: &Batch) -> Result<Outputs, RuntimeError> {
        Model::run(self, batch)
    }

    fn decoder_start(&self) -> Option<u32> {
        self.has_encoder().then_some(self.information().decoder_start)
    }

    fn encode(&mut self, sequence: u32, tokens: &[u32]) -> Result<(), RuntimeError> {
        Model::encode(self, sequence, tokens)
    }

    fn expect(&mut self, sequence: u32, length: u32) -> bool {
        Model::expect(self, sequence, length)
    }

    fn embeds(&self) -> bool {
        self.embedded_rows().is_some()
    }

    fn longest_text(&self) -> u32 {
        Model::longest_text(self)
    }

    fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        Model::embed(self, texts)
    }

    fn longest_truncation(&self, sequence: u32, wanted: u32) -> u32 {
        Model::longest_truncation(self, sequence, wanted)
    }

    fn truncate(&mut self, sequence: u32, position: u32) -> Result<(), RuntimeError> {
        Model::truncate(self, sequence, position)
    }

    fn keeps_checkpoints(&self) -> bool {
        Model::keeps_checkpoints(self)
    }

    fn mark(&mut self, sequence: u32) {
        Model::mark(self, sequence);
    }

    fn clear(&mut self, sequence: u32) {
        Model::clear(self, sequence);
    }

    fn shift(&mut self, sequence: u32, keep: u32, discard: u32) -> Result<(), RuntimeError> {
        Model::shift(self, sequence, keep, discard)
    }

    fn adapters(&self) -> Vec<f32> {
        Model::adapters(self).to_vec()
    }

    fn set_adapters(&mut self, strengths: &[f32]) -> Result<(), RuntimeError> {
        Model::set_adapters(self, strengths)
    }

    fn identity(&mut self) -> u64 {
        Model::identity(self)
    }

    fn reach(&self, sequence: u32) -> Reach {
        Model::reach(self, sequence)
    }

    fn saved_parts(&self, sequence: u32, bytes: u32) -> usize {
        Model::saved_parts(self, sequence, bytes)
    }

    fn save_part(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        bytes: u32,
        part: usize,
    ) -> Result<Vec<u8>, RuntimeError> {
        Model::save_part(self, sequence, tokens, bytes, part)
    }

    fn restore_part(&mut self, sequence: u32, saved: &[Vec<u8>], part: usize) -> Result<(), RuntimeError> {
        Model::restore_part(self, sequence, saved, part)
    }
}
