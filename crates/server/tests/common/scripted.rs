//! A model that follows scripts. A prompt that ends with `@name:` is continued with the tokens of that script and
//! then ends; other prompts are continued with letters that depend on everything before them, so a mistake in
//! what the cache holds changes the text.

use std::time::Duration;

use puna_engine::Runner;
use puna_runtime::{Batch, OutputRow, OutputRows, Outputs, RuntimeError};

pub const VOCABULARY: u32 = 262;
const END: u32 = 2;
/// Token of a byte.
const BYTES: u32 = 3;
/// The token `yab`.
pub const YAB: u32 = 260;
/// The token `z?` with a line break.
pub const QUESTION: u32 = 261;

/// Tokens of a text, one for each byte.
pub fn bytes(text: impl AsRef<[u8]>) -> Vec<u32> {
    text.as_ref().iter().map(|byte| BYTES + u32::from(*byte)).collect()
}

pub struct Scripted {
    context: u32,
    held: Vec<Vec<u32>>,
    scripts: Vec<(Vec<u32>, Vec<u32>)>,
    delay: Duration,
    ballast: usize,
}

impl Scripted {
    /// So many sequences that share a context of so many tokens.
    pub fn new(context: u32, sequences: usize) -> Self {
        Self {
            context,
            held: vec![Vec::new(); sequences],
            scripts: Vec::new(),
            delay: Duration::ZERO,
            ballast: 0,
        }
    }

    /// With a script.
    pub fn script(mut self, name: &str, tokens: Vec<u32>) -> Self {
        self.scripts.push((bytes(format!("@{name}:")), tokens));
        self
    }

    /// With so much time for each step.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// With so many bytes more in saved sequences.
    pub fn ballast(mut self, bytes: usize) -> Self {
        self.ballast = bytes;
        self
    }

    /// The logits after what a sequence holds.
    fn logits(&self, held: &[u32]) -> Vec<f32> {
        let mut row = vec![0.0; VOCABULARY as usize];
        let after = |name: &[u32]| {
            held.windows(name.len()).rposition(|part| part == name).map(|place| place + name.len())
        };
        let letter = |hash: u64| BYTES + u32::from(b'a') + (hash % 26) as u32;
        if after(&bytes("@abort:")).is_some() {
            std::process::abort();
        } else if after(&bytes("@late:")).is_some_and(|end| held.len() > end + 20) {
            // What was generated is on its way to the client; on a busy machine that takes a moment.
            std::thread::sleep(std::time::Duration::from_millis(700));
            std::process::abort();
        } else if after(&bytes("@nan:")).is_some() {
            row.fill(f32::NAN);
        } else if after(&bytes("@random:")).is_some() {
            (0..26).for_each(|hash| row[letter(hash) as usize] = 20.0);
        } else if let Some((place, script)) = self
            .scripts
            .iter()
            .filter_map(|(name, script)| Some((after(name)?, script)))
            .max_by_key(|found| found.0)
        {
            let next = script.get(held.len() - place).copied().unwrap_or(END);
            row[next as usize] = 40.0;
        } else {
            let hash = held.iter().fold(7u64, |hash, token| (hash * 31 + u64::from(*token) + 1) % 1_000_003);
            row[letter(hash) as usize] = 40.0;
        }
        row
    }
}

impl Runner for Scripted {
    fn longest_truncation(&self, _: u32, length: u32) -> u32 {
        length
    }

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
        self.context - self.held.iter().map(|held| held.len() as u32).sum::<u32>()
    }
    fn length(&self, sequence: u32) -> u32 {
        self.held[sequence as usize].len() as u32
    }
    fn run(&mut self, batch: &Batch) -> Result<Outputs, RuntimeError> {
        std::thread::sleep(self.delay);
        let mut outputs = Outputs { width: VOCABULARY as usize, ..Outputs::default() };
        for work in &batch.work {
            let sequence = work.sequence as usize;
            for (index, token) in work.tokens.iter().enumerate() {
                self.held[sequence].push(*token);
                let last = index + 1 == work.tokens.len();
                if work.outputs == OutputRows::All || (last && work.outputs == OutputRows::Last) {
                    let position = self.held[sequence].len() as u32 - 1;
                    outputs.rows.push(OutputRow { sequence: work.sequence, position });
                    outputs.logits.extend(self.logits(&self.held[sequence]));
                }
            }
        }
        Ok(outputs)
    }
    fn truncate(&mut self, sequence: u32, position: u32) -> Result<(), RuntimeError> {
        self.held[sequence as usize].truncate(position as usize);
        Ok(())
    }
    fn clear(&mut self, sequence: u32) {
        self.held[sequence as usize].clear();
    }
    fn shift(&mut self, sequence: u32, keep: u32, discard: u32) -> Result<(), RuntimeError> {
        self.held[sequence as usize].drain(keep as usize..(keep + discard) as usize);
        Ok(())
    }
    fn save(&mut self, _: u32, tokens: &[u32]) -> Result<Vec<u8>, RuntimeError> {
        let mut bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        bytes.resize(bytes.len() + self.ballast, 7);
        bytes.extend(checksum(&bytes).to_le_bytes());
        Ok(bytes)
    }
    fn restore(&mut self, sequence: u32, bytes: &[u8]) -> Result<Vec<u32>, RuntimeError> {
        let refused = RuntimeError::NotALanguageModel { what: "damaged file" };
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else { return Err(refused) };
        if *sum != checksum(body).to_le_bytes() || body.len() < self.ballast {
            return Err(refused);
        }
        let tokens = body[..body.len() - self.ballast].chunks_exact(4);
        let tokens: Vec<u32> = tokens.map(|part| u32::from_le_bytes(part.try_into().unwrap())).collect();
        self.held[sequence as usize].clone_from(&tokens);
        Ok(tokens)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}
