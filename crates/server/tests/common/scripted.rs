//! A model that follows scripts. A prompt that ends with `@name:` is continued with the tokens of that script and
//! then ends; other prompts are continued with letters that depend on everything before them, so a mistake in
//! what the cache holds changes the text.

use std::time::Duration;

pub use super::arithmetic::Arithmetic as Scripted;
use super::arithmetic::Script;

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

/// So many sequences that share a context of so many tokens.
pub fn scripted(context: u32, sequences: usize) -> Scripted {
    Scripted {
        vocabulary: VOCABULARY,
        cells: context,
        faults: false,
        logits: Some(logits),
        ..Scripted::new(context, sequences)
    }
}

impl Scripted {
    /// With a script.
    pub fn script(mut self, name: &str, tokens: Vec<u32>) -> Self {
        self.scripts.push((bytes(format!("@{name}:")), tokens));
        self
    }

    /// With so much time for each step.
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// With so many bytes more in saved sequences.
    pub fn ballast(self, ballast: usize) -> Self {
        Self { ballast, ..self }
    }
}

/// The logits after what a sequence holds.
fn logits(held: &[u32], scripts: &[Script]) -> Vec<f32> {
    let mut row = vec![0.0; VOCABULARY as usize];
    let after = |name: &[u32]| {
        held.windows(name.len()).rposition(|part| part == name).map(|place| place + name.len())
    };
    let letter = |hash: u64| BYTES + u32::from(b'a') + (hash % 26) as u32;
    if after(&bytes("@abort:")).is_some() {
        std::process::abort();
    } else if after(&bytes("@late:")).is_some_and(|end| held.len() > end + 20) {
        // What was generated is on its way to the client; on a busy machine that takes a moment.
        std::thread::sleep(Duration::from_millis(700));
        std::process::abort();
    } else if after(&bytes("@nan:")).is_some() {
        row.fill(f32::NAN);
    } else if after(&bytes("@random:")).is_some() {
        (0..26).for_each(|hash| row[letter(hash) as usize] = 20.0);
    } else if let Some((place, script)) =
        scripts.iter().filter_map(|(name, script)| Some((after(name)?, script))).max_by_key(|found| found.0)
    {
        let next = script.get(held.len() - place).copied().unwrap_or(END);
        row[next as usize] = 40.0;
    } else {
        let hash = held.iter().fold(7u64, |hash, token| (hash * 31 + u64::from(*token) + 1) % 1_000_003);
        row[letter(hash) as usize] = 40.0;
    }
    row
}
