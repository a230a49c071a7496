//! Token by token what a head says that reads the model's states: EAGLE-3 (Li et al., arXiv 2503.01840), or a layer of the
//! model's own file that guesses further ahead (multi-token prediction, DeepSeek-AI, arXiv 2412.19437).
//!
//! The head's row for a place in the text reads the model's states there and the token after it, and says the token after
//! that one. Beyond what the model has computed, the head's own state of the row before stands for the model's.

use puna_runtime::{Batch, DraftHead, DraftOutputs, HeadKind, OutputRows, Work};

use super::draft_simple::likely;
use super::learned::Reader;
use super::room::make_room;
use super::{Evaluated, Proposer, SpeculationSettings, Text};
use crate::EngineError;
use crate::worker::guarded;

pub(super) struct DraftSteps {
    reader: Reader,
    most: usize,
    least: usize,
    probability: f32,
}

/// A text being guessed at.
struct Guess {
    /// Index among those asked about.
    index: usize,
    sequence: usize,
    most: usize,
    tokens: Vec<u32>,
}

/// What the head shall read of a sequence: all rows that it has not read, with the last token of the text, where that is
/// known, also the last of them, which then gives logits.
struct Reading {
    sequence: usize,
    last: Option<u32>,
    /// Rows that will come after these.
    more: usize,
}

impl DraftSteps {
    /// None for a head of another kind.
    pub(super) fn new(kind: HeadKind, head: DraftHead, settings: &SpeculationSettings) -> Option<Self> {
        (head.kind() == kind).then(|| Self {
            reader: Reader::new(head, 1),
            most: settings.draft_most,
            least: settings.draft_least,
            probability: settings.draft_probability,
        })
    }

    /// Lets the head read. Returns the sequences that it had room for, in their order, with what came of them.
    fn read(&mut self, readings: &[Reading]) -> Result<(Vec<usize>, DraftOutputs), EngineError> {
        let (mut rows, mut needs) = (Vec::with_capacity(readings.len()), Vec::with_capacity(readings.len()));
        for Reading { sequence, last, more } in readings {
            let unread = self.reader.unread(*sequence, *last)?;
            needs.push((*sequence, unread.tokens.len() + more));
            rows.push(unread);
        }
        let kept = make_room(&mut self.reader, &needs);
        let (mut batch, mut features) = (Batch::default(), Vec::new());
        for (Reading { sequence, last, .. }, rows) in readings.iter().zip(rows) {
            if kept.contains(sequence) {
                let outputs = if last.is_some() { OutputRows::Last } else { OutputRows::None };
                batch.work.push(Work { sequence: *sequence as u32, tokens: rows.tokens, outputs });
                features.push(rows.features);
            }
        }
        let outputs = guarded(|| self.reader.head.run(&batch, &features))?;
        kept.iter().for_each(|sequence| self.reader.note_read(*sequence));
        Ok((kept, outputs))
    }

    fn guess(&mut self, texts: &[Text<'_>]) -> Result<Vec<Vec<u32>>, EngineError> {
        let mut all = vec![Vec::new(); texts.len()];
        let mut going: Vec<Guess> = Vec::new();
        let mut readings = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let most = self.reader.room(text.sequence, text.tokens).min(text.most).min(self.most);
            if most > 0 {
                going.push(Guess { index, sequence: text.sequence, most, tokens: Vec::new() });
                let last = text.tokens.last().copied();
                readings.push(Reading { sequence: text.sequence, last, more: most });
            }
        }
        if going.is_empty() {
            return Ok(all);
        }
        let (kept, mut outputs) = self.read(&readings)?;
        going.retain(|guess| kept.contains(&guess.sequence));
        loop {
            let (mut batch, mut features) = (Batch::default(), Vec::new());
            let width = outputs.hidden.len() / going.len().max(1);
            let mut still = Vec::new();
            for (row, mut guess) in going.into_iter().enumerate() {
                let best = likely(outputs.rows.row(row), self.probability);
                let token = best.and_then(|own| self.reader.head.token(own));
                guess.tokens.extend(token);
                match token {
                    Some(token) if guess.tokens.len() < guess.most => {
                        let (sequence, tokens) = (guess.sequence as u32, vec![token]);
                        batch.work.push(Work { sequence, tokens, outputs: OutputRows::Last });
                        features.push(outputs.hidden[row * width..(row + 1) * width].to_vec());
                        still.push(guess);
                    }
                    _ if guess.tokens.len() >= self.least => all[guess.index] = guess.tokens,
                    _ => {}
                }
            }
            if still.is_empty() {
                return Ok(all);
            }
            going = still;
            outputs = guarded(|| self.reader.head.run(&batch, &features))?;
        }
    }
}

impl Proposer for DraftSteps {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        self.guess(texts).unwrap_or_else(|_| {
            self.reader.forget_all();
            vec![Vec::new(); texts.len()]
        })
    }

    fn learn(&mut self, evaluated: &Evaluated<'_>) {
        let reading = Reading { sequence: evaluated.sequence, last: None, more: 0 };
        if self.reader.learn(evaluated) && self.read(&[reading]).is_err() {
            self.reader.forget_all();
        }
    }

    fn reads(&self) -> Option<u64> {
        Some(self.reader.head.weight_bytes())
    }
}
