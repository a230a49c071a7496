//! A model by arithmetic: its logits depend on every token that a sequence holds and on their order, so any
//! mistake in what the cache holds changes what is generated. Some tokens make steps fail.
#![allow(dead_code)] // each test file uses a part

use std::sync::{Arc, Mutex};
use std::time::Duration;

use puna_engine::Runner;
use puna_runtime::{Batch, OutputRow, OutputRows, Outputs, RuntimeError};

pub const VOCABULARY: u32 = 50;
/// A step with this token is refused.
pub const REFUSED: u32 = 40;
/// A step with this token panics.
pub const PANICS: u32 = 41;
/// Logits after this token are not numbers.
pub const NOT_A_NUMBER: u32 = 42;
/// Logits after this token are all minus infinity.
pub const NOTHING: u32 = 43;
/// Tokens below this are generated.
const GENERATED: u64 = 40;

/// What the model was asked to do: sequence and number of tokens of every work of every batch.
pub type Log = Arc<Mutex<Vec<Vec<(u32, usize)>>>>;

pub struct Arithmetic {
    pub context: u32,
    pub cells: u32,
    pub held: Vec<Vec<u32>>,
    pub shifts: bool,
    pub truncates: bool,
    /// Time for each step.
    pub delay: Duration,
    /// Time for each token of a step.
    pub row_delay: Duration,
    /// Sequences can be truncated to multiples of this.
    pub checkpoints: u32,
    /// What comes after tokens.
    pub following: fn(&[u32]) -> u32,
    pub log: Log,
}

impl Arithmetic {
    pub fn new(context: u32, sequences: usize) -> Self {
        Self {
            context,
            cells: context * sequences as u32,
            held: vec![Vec::new(); sequences],
            shifts: true,
            truncates: true,
            delay: Duration::ZERO,
            row_delay: Duration::ZERO,
            checkpoints: 1,
            following,
            log: Log::default(),
        }
    }
}

/// The token that follows `held`.
pub fn following(held: &[u32]) -> u32 {
    let hash = held.iter().fold(7u64, |hash, token| (hash * 31 + u64::from(*token) + 1) % 1_000_003);
    (hash % GENERATED) as u32
}

/// The same, but most of the text repeats itself with a period of ten tokens.
pub fn repeating(held: &[u32]) -> u32 {
    match held.len().checked_sub(10) {
        Some(earlier) if !held.len().is_multiple_of(23) => held[earlier] % GENERATED as u32,
        _ => following(held),
    }
}

/// What greedy generation gives after a prompt, without any cache.
pub fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut held = prompt.to_vec();
    for _ in 0..count {
        held.push(following(&held));
    }
    held.split_off(prompt.len())
}

/// Restoring this fails as a device does: the sequence is empty afterwards.
pub const BROKEN: &[u8] = b"broken";

impl Runner for Arithmetic {
    fn vocabulary(&self) -> u32 {
        VOCABULARY
    }
    fn context(&self) -> u32 {
        self.context
    }
    fn sequences(&self) -> u32 {
        self.held.len() as u32
    }
    fn free_cells(&self) -> u32 {
        self.cells - self.held.iter().map(|held| held.len() as u32).sum::<u32>()
    }
    fn length(&self, sequence: u32) -> u32 {
        self.held[sequence as usize].len() as u32
    }
    fn run(&mut self, batch: &Batch) -> Result<Outputs, RuntimeError> {
        let rows: usize = batch.work.iter().map(|work| work.tokens.len()).sum();
        std::thread::sleep(self.delay + self.row_delay * rows as u32);
        let sizes = batch.work.iter().map(|work| (work.sequence, work.tokens.len()));
        self.log.lock().unwrap().push(sizes.collect());
        let needed = batch.work.iter().map(|work| work.tokens.len() as u32).sum::<u32>();
        if needed > self.free_cells() {
            return Err(RuntimeError::ContextFull { needed, free: self.free_cells(), context: self.cells });
        }
        let tokens = || batch.work.iter().flat_map(|work| &work.tokens);
        if tokens().any(|token| *token == REFUSED) {
            return Err(RuntimeError::TokenOutOfRange { token: REFUSED, vocabulary: REFUSED });
        }
        if tokens().any(|token| *token == PANICS) {
            // As a real fault would: after half of the work is done.
            self.held[batch.work[0].sequence as usize].push(0);
            panic!("the evaluation of token {PANICS} went wrong");
        }
        let mut outputs = Outputs { width: VOCABULARY as usize, ..Outputs::default() };
        for work in &batch.work {
            let held = &mut self.held[work.sequence as usize];
            for (index, token) in work.tokens.iter().enumerate() {
                held.push(*token);
                let wanted = match work.outputs {
                    OutputRows::All => true,
                    OutputRows::Last => index + 1 == work.tokens.len(),
                    OutputRows::None | OutputRows::First => false,
                };
                if !wanted {
                    continue;
                }
                let mut row = vec![0.0; VOCABULARY as usize];
                row[(self.following)(held) as usize] = 8.0;
                match held.last() {
                    Some(&NOT_A_NUMBER) => row[3] = f32::NAN,
                    Some(&NOTHING) => row.fill(f32::NEG_INFINITY),
                    _ => {}
                }
                outputs.rows.push(OutputRow { sequence: work.sequence, position: held.len() as u32 - 1 });
                outputs.logits.extend(row);
            }
            assert!(held.len() <= self.context as usize, "sequence {} is too long", work.sequence);
        }
        Ok(outputs)
    }
    fn longest_truncation(&self, _: u32, wanted: u32) -> u32 {
        // A state every so many tokens, as recurrent models have.
        wanted - wanted % self.checkpoints
    }
    fn truncate(&mut self, sequence: u32, position: u32) -> Result<(), RuntimeError> {
        if !self.truncates {
            return Err(RuntimeError::ContextFull { needed: 0, free: 0, context: 0 });
        }
        self.held[sequence as usize].truncate(position as usize);
        Ok(())
    }
    fn clear(&mut self, sequence: u32) {
        self.held[sequence as usize].clear();
    }
    fn shift(&mut self, sequence: u32, keep: u32, discard: u32) -> Result<(), RuntimeError> {
        if !self.shifts {
            return Err(RuntimeError::ContextFull { needed: 0, free: 0, context: 0 });
        }
        self.held[sequence as usize].drain(keep as usize..(keep + discard) as usize);
        Ok(())
    }
    fn save(&mut self, sequence: u32, tokens: &[u32]) -> Result<Vec<u8>, RuntimeError> {
        assert_eq!(self.held[sequence as usize], tokens);
        Ok(tokens.iter().map(|token| *token as u8).collect())
    }
    fn restore(&mut self, sequence: u32, bytes: &[u8]) -> Result<Vec<u32>, RuntimeError> {
        if bytes == BROKEN {
            self.held[sequence as usize].clear();
            return Err(RuntimeError::NotALanguageModel { what: "device" });
        }
        if bytes.iter().any(|byte| u32::from(*byte) >= VOCABULARY) {
            return Err(RuntimeError::TokenOutOfRange { token: 255, vocabulary: VOCABULARY });
        }
        self.held[sequence as usize] = bytes.iter().map(|byte| u32::from(*byte)).collect();
        Ok(self.held[sequence as usize].clone())
    }
}
