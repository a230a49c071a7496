//! What the engine needs of a model; tests inject failures here.

use puna_runtime::{Batch, Outputs, RuntimeError};

/// A model that evaluates batches of sequences. [`puna_runtime::Model`] is the one that counts.
pub trait Runner: Send {
    /// Number of tokens that exist.
    fn vocabulary(&self) -> u32;
    /// Positions that one sequence can hold.
    fn context(&self) -> u32;
    /// Number of sequences.
    fn sequences(&self) -> u32;
    /// Cells that no sequence holds.
    fn free_cells(&self) -> u32;
    /// Evaluates a batch. On error nothing of it stays in any sequence.
    fn run(&mut self, batch: &Batch) -> Result<Outputs, RuntimeError>;
    /// Drops the positions from `position` on. An error leaves the sequence as it was.
    fn truncate(&mut self, sequence: u32, position: u32) -> Result<(), RuntimeError>;
    /// Drops everything of the sequence.
    fn clear(&mut self, sequence: u32);
    /// Drops `discard` positions after the first `keep` and moves the later ones down.
    fn shift(&mut self, sequence: u32, keep: u32, discard: u32) -> Result<(), RuntimeError>;
    /// The sequence as bytes; `tokens` are those it holds.
    fn save(&mut self, sequence: u32, tokens: &[u32]) -> Result<Vec<u8>, RuntimeError>;
    /// Replaces the sequence by a saved one and returns its tokens. An error leaves it as it was.
    fn restore(&mut self, sequence: u32, bytes: &[u8]) -> Result<Vec<u32>, RuntimeError>;
}
