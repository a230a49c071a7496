//! Token by token what a head says that reads the model's states: EAGLE-3 (Li et al., arXiv 2503.01840), or a layer of the
//! model's own file that guesses further ahead (multi-token prediction, DeepSeek-AI, arXiv 2412.19437).
//!
//! The head's row for a place in the text reads the model's states there and the token after it, and says the token after
//! that one. Beyond what the model has computed, the head's own state of the row before stands for the model's.

use puna_runtime::{Batch, DraftHead, DraftOutputs, HeadKind, OutputRows, Work};

use super::draft_simple::likely;
use super::learned::Reader;
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

    /// Lets the head read the rows of sequences that it has not read; with the last token of a text all of them, of which the
    /// last gives logits.
    fn read(&mut self, sequences: &[(usize, Option<u32>)], more: usize) -> Result<DraftOutputs, EngineError> {
        let (mut batch, mut features) = (Batch::default(), Vec::new());
        let mut needed = more;
        for (sequence, last) in sequences {
            let rows = self.reader.unread(*sequence, *last)?;
            needed += rows.tokens.len();
            let outputs = if last.is_some() { OutputRows::Last } else { OutputRows::None };
            batch.work.push(Work { sequence: *sequence as u32, tokens: rows.tokens, outputs });
            features.push(rows.features);
        }
        let asked: Vec<usize> = sequences.iter().map(|(sequence, _)| *sequence).collect();
        self.reader.make_room(needed, &asked)?;
        let outputs = guarded(|| self.reader.head.run(&batch, &features))?;
        asked.into_iter().for_each(|sequence| self.reader.note_read(sequence));
        Ok(outputs)
    }

    fn guess(&mut self, texts: &[Text<'_>]) -> Result<Vec<Vec<u32>>, EngineError> {
        let mut all = vec![Vec::new(); texts.len()];
        let mut going: Vec<Guess> = Vec::new();
        let mut sequences = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let most = self.reader.room(text.sequence, text.tokens).min(text.most).min(self.most);
            if most > 0 {
                going.push(Guess { index, sequence: text.sequence, most, tokens: Vec::new() });
                sequences.push((text.sequence, text.tokens.last().copied()));
            }
        }
        if going.is_empty() {
            return Ok(all);
        }
        let more = going.iter().map(|guess| guess.most).sum();
        let mut outputs = self.read(&sequences, more)?;
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
        if self.reader.learn(evaluated) && self.read(&[(evaluated.sequence, None)], 0).is_err() {
            self.reader.forget_all();
        }
    }

    fn computes(&self) -> bool {
        true
    }
}
