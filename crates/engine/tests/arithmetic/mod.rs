//! A model by arithmetic: its logits depend on every token that a sequence holds and on their order, so any
//! mistake in what the cache holds changes what is generated. Some tokens make steps fail. Tests of the server use it, too,
//! with scripts.
#![allow(dead_code)] // each test file uses a part

use std::sync::{Arc, Mutex};
use std::time::Duration;

use puna_engine::Runner;
use puna_runtime::{Batch, Best, OutputRow, OutputRows, Outputs, RuntimeError};

pub const VOCABULARY: u32 = 50;
/// A step with this token is refused.
pub const REFUSED: u32 = 40;
/// A step with this token panics.
pub const PANICS: u32 = 41;
/// Logits after this token are not numbers.
pub const NOT_A_NUMBER: u32 = 42;
/// Logits after this token are all minus infinity.
pub const NOTHING: u32 = 43;
/// A saved sequence with this token cannot be taken back to the end.
pub const BREAKS: u32 = 44;
/// Tokens below this are generated.
const GENERATED: u64 = 40;

/// What the model was asked to do: sequence and number of tokens of every work of every batch.
pub type Log = Arc<Mutex<Vec<Vec<(u32, usize)>>>>;

/// What follows a text that ends with these tokens.
pub type Script = (Vec<u32>, Vec<u32>);

/// The logits after what a sequence holds.
pub type Logits = fn(&[u32], &[Script]) -> Vec<f32>;

pub struct Arithmetic {
    pub vocabulary: u32,
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
    /// Tokens in a part of a saved sequence.
    pub part: usize,
    /// Time for each of these parts.
    pub part_delay: Duration,
    /// Bytes that a saved sequence has beside.
    pub ballast: usize,
    /// Steps change what sequences are saved as.
    pub restless: bool,
    /// Where the highest logits suffice it gives no others.
    pub gives_best: bool,
    /// Some tokens make steps fail.
    pub faults: bool,
    /// What comes after tokens.
    pub following: fn(&[u32]) -> u32,
    /// The same in another way.
    pub logits: Option<Logits>,
    pub scripts: Vec<Script>,
    pub log: Log,
    /// Whether each batch was to be computed row by row.
    pub deterministic: Arc<Mutex<Vec<bool>>>,
    /// How many of the highest logits of each batch sufficed.
    pub best: Arc<Mutex<Vec<Option<u32>>>>,
}

impl Arithmetic {
    pub fn new(context: u32, sequences: usize) -> Self {
        Self {
            vocabulary: VOCABULARY,
            context,
            cells: context * sequences as u32,
            held: vec![Vec::new(); sequences],
            shifts: true,
            truncates: true,
            delay: Duration::ZERO,
            row_delay: Duration::ZERO,
            checkpoints: 1,
            part: usize::MAX,
            part_delay: Duration::ZERO,
            ballast: 0,
            restless: false,
            gives_best: true,
            faults: true,
            following,
            logits: None,
            scripts: Vec::new(),
            log: Log::default(),
            deterministic: Arc::default(),
            best: Arc::default(),
        }
    }

    /// The first part of a saved sequence.
    fn head(&self, tokens: usize) -> Vec<u8> {
        let steps = if self.restless { self.log.lock().unwrap().len() } else { 0 };
        [(tokens as u32).to_le_bytes(), (steps as u32).to_le_bytes()].concat()
    }

    fn row(&self, held: &[u32]) -> Vec<f32> {
        if let Some(logits) = self.logits {
            return logits(held, &self.scripts);
        }
        let mut row = vec![0.0; VOCABULARY as usize];
        row[(self.following)(held) as usize] = 8.0;
        match held.last() {
            Some(&NOT_A_NUMBER) => row[3] = f32::NAN,
            Some(&NOTHING) => row.fill(f32::NEG_INFINITY),
            _ => {}
        }
        row
    }

    /// Refuses batches with certain tokens.
    fn fail(&mut self, batch: &Batch) -> Result<(), RuntimeError> {
        let tokens = || batch.work.iter().flat_map(|work| &work.tokens);
        if tokens().any(|token| *token == REFUSED) {
            return Err(RuntimeError::TokenOutOfRange { token: REFUSED, vocabulary: REFUSED });
        }
        if tokens().any(|token| *token == PANICS) {
            // As a real fault would: after half of the work is done.
            self.held[batch.work[0].sequence as usize].push(0);
            panic!("the evaluation of token {PANICS} went wrong");
        }
        Ok(())
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

impl Runner for Arithmetic {
    fn vocabulary(&self) -> u32 {
        self.vocabulary
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
        self.deterministic.lock().unwrap().push(batch.deterministic);
        self.best.lock().unwrap().push(batch.best);
        let needed = batch.work.iter().map(|work| work.tokens.len() as u32).sum::<u32>();
        if needed > self.free_cells() {
            return Err(RuntimeError::ContextFull { needed, free: self.free_cells(), context: self.cells });
        }
        if self.faults {
            self.fail(batch)?;
        }
        let mut outputs = Outputs { width: self.vocabulary as usize, ..Outputs::default() };
        for work in &batch.work {
            let sequence = work.sequence as usize;
            for (index, token) in work.tokens.iter().enumerate() {
                self.held[sequence].push(*token);
                let held = &self.held[sequence];
                let wanted = match work.outputs {
                    OutputRows::All => true,
                    OutputRows::Last => index + 1 == work.tokens.len(),
                    OutputRows::None | OutputRows::First => false,
                };
                if wanted {
                    let position = held.len() as u32 - 1;
                    outputs.rows.push(OutputRow { sequence: work.sequence, position });
                    outputs.logits.extend(self.row(held));
                }
            }
            let length = self.held[sequence].len();
            assert!(length <= self.context as usize, "sequence {sequence} is too long");
        }
        if let Some(count) = batch.best.filter(|_| self.gives_best) {
            let logits = std::mem::take(&mut outputs.logits);
            outputs.best = Some(Best::of(&logits, outputs.width, count as usize));
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
    fn saved_parts(&self, sequence: u32, _: u32) -> usize {
        1 + self.held[sequence as usize].len().div_ceil(self.part)
    }
    fn save_part(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        _: u32,
        part: usize,
    ) -> Result<Vec<u8>, RuntimeError> {
        let held = &self.held[sequence as usize];
        assert_eq!(held, tokens);
        std::thread::sleep(self.part_delay);
        let Some(index) = part.checked_sub(1) else { return Ok(self.head(tokens.len())) };
        let part = held.chunks(self.part).nth(index).expect("there is such a part");
        let mut bytes: Vec<u8> = part.iter().flat_map(|token| (*token as u16).to_le_bytes()).collect();
        bytes.resize(bytes.len() + self.ballast, 7);
        Ok(bytes)
    }
    fn restore_part(&mut self, sequence: u32, saved: &[Vec<u8>], part: usize) -> Result<(), RuntimeError> {
        std::thread::sleep(self.part_delay);
        let held = &mut self.held[sequence as usize];
        let count = u32::from_le_bytes(saved[0][..4].try_into().unwrap()) as usize;
        if part == 0 {
            // Until their contents come, cells hold anything.
            *held = vec![1; count];
            return Ok(());
        }
        let place = (part - 1) * self.part.min(count);
        let bytes = &saved[part][..2 * self.part.min(count - place)];
        for (held, token) in held[place..].iter_mut().zip(bytes.chunks_exact(2)) {
            *held = u32::from(u16::from_le_bytes([token[0], token[1]]));
        }
        if self.faults && held.contains(&BREAKS) {
            // As a device fails: the sequence is empty afterwards.
            held.clear();
            return Err(RuntimeError::NotALanguageModel { what: "device" });
        }
        Ok(())
    }
}
