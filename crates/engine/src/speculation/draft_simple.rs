//! What a smaller model with the same vocabulary would say.

use puna_runtime::{Batch, OutputRows, Work};

use super::room::{Room, make_room};
use super::{Proposer, SpeculationSettings, Text};
use crate::Runner;
use crate::worker::{common_prefix, guarded};

/// Tokens that the draft model reads in one step at most, so that a new prompt delays the others only a little; the
/// rest is read before the next steps.
const CATCH_UP: usize = 512;

pub(super) struct DraftSimple {
    model: Box<dyn Runner>,
    /// Tokens in its cache, for each sequence.
    held: Vec<Vec<u32>>,
    most: usize,
    least: usize,
    probability: f32,
}

/// A text being guessed at.
struct Guess {
    /// Index among those asked about.
    index: usize,
    sequence: u32,
    most: usize,
    tokens: Vec<u32>,
}

impl DraftSimple {
    pub(super) fn new(model: Box<dyn Runner>, settings: &SpeculationSettings) -> Self {
        Self {
            held: vec![Vec::new(); model.sequences() as usize],
            model,
            most: settings.draft_most,
            least: settings.draft_least,
            probability: settings.draft_probability,
        }
    }

    /// Runs a batch of which the last tokens are asked for where `wanted` says so; the best token after each of these.
    /// None for one that is not probable enough.
    fn run(&mut self, work: Vec<(u32, Vec<u32>, bool)>) -> Result<Vec<Option<u32>>, crate::EngineError> {
        let sequences: Vec<(u32, bool)> =
            work.iter().map(|(sequence, _, wanted)| (*sequence, *wanted)).collect();
        let output = |wanted| if wanted { OutputRows::Last } else { OutputRows::None };
        let works = work.iter().map(|(sequence, tokens, wanted)| Work {
            sequence: *sequence,
            tokens: tokens.clone(),
            outputs: output(*wanted),
        });
        let batch = Batch::of(works.collect());
        let outputs = guarded(|| self.model.run(&batch))?;
        for (sequence, tokens, _) in work {
            self.held[sequence as usize].extend(tokens);
        }
        let best = |sequence| outputs.last(sequence).and_then(|logits| likely(logits, self.probability));
        Ok(sequences.into_iter().filter(|(_, wanted)| *wanted).map(|(sequence, _)| best(sequence)).collect())
    }

    /// Makes sequences hold as much of their texts as a step has room for. Those that hold all get a first guess.
    fn catch_up(&mut self, texts: &[Text<'_>]) -> Result<Vec<Guess>, crate::EngineError> {
        let mut work = Vec::new();
        let mut guesses = Vec::new();
        let mut room = CATCH_UP;
        let context = self.model.context() as usize;
        for (index, text) in texts.iter().enumerate() {
            let most = text.most.min(self.most).min((context + 1).saturating_sub(text.tokens.len()));
            if text.sequence >= self.held.len() || most == 0 {
                continue;
            }
            let sequence = text.sequence as u32;
            // The last token is always evaluated: its logits are needed.
            let common = common_prefix(&self.held[text.sequence], text.tokens).min(text.tokens.len() - 1);
            let common = self.model.longest_truncation(sequence, common as u32);
            guarded(|| self.model.truncate(sequence, common))?;
            self.held[text.sequence].truncate(common as usize);
            let missing = &text.tokens[common as usize..];
            let taken = &missing[..missing.len().min(room)];
            room -= taken.len();
            if taken.is_empty() {
                continue;
            }
            let complete = taken.len() == missing.len();
            work.push((sequence, taken.to_vec(), complete));
            if complete {
                guesses.push(Guess { index, sequence, most, tokens: Vec::new() });
            }
        }
        let more = |sequence: u32| {
            let guess = guesses.iter().find(|guess| guess.sequence == sequence);
            guess.map_or(0, |guess| guess.most)
        };
        let needs =
            work.iter().map(|(sequence, tokens, _)| (*sequence as usize, tokens.len() + more(*sequence)));
        let kept = make_room(self, &needs.collect::<Vec<_>>());
        work.retain(|(sequence, _, _)| kept.contains(&(*sequence as usize)));
        guesses.retain(|guess| kept.contains(&(guess.sequence as usize)));
        if work.is_empty() {
            return Ok(guesses);
        }
        let first = self.run(work)?;
        for (guess, token) in guesses.iter_mut().zip(first) {
            guess.tokens.extend(token);
        }
        Ok(guesses)
    }

    fn guess(&mut self, texts: &[Text<'_>]) -> Result<Vec<Vec<u32>>, crate::EngineError> {
        let mut guesses = self.catch_up(texts)?;
        for length in 1.. {
            let going: Vec<usize> = guesses
                .iter()
                .enumerate()
                .filter(|(_, guess)| guess.tokens.len() == length && length < guess.most)
                .map(|(index, _)| index)
                .collect();
            if going.is_empty() {
                break;
            }
            let work = going.iter().map(|index| {
                let guess = &guesses[*index];
                (guess.sequence, guess.tokens[length - 1..].to_vec(), true)
            });
            let next = self.run(work.collect())?;
            for (index, token) in going.into_iter().zip(next) {
                guesses[index].tokens.extend(token);
            }
        }
        let mut all = vec![Vec::new(); texts.len()];
        for guess in guesses.into_iter().filter(|guess| guess.tokens.len() >= self.least) {
            all[guess.index] = guess.tokens;
        }
        Ok(all)
    }
}

impl Room for DraftSimple {
    fn sequences(&self) -> usize {
        self.held.len()
    }

    fn free(&mut self) -> usize {
        self.model.free_cells() as usize
    }

    fn forget(&mut self, sequence: usize) {
        self.held[sequence].clear();
        let _ = guarded(|| {
            self.model.clear(sequence as u32);
            Ok::<_, crate::EngineError>(())
        });
    }
}

/// The best token, if it has at least this probability.
pub(super) fn likely(logits: &[f32], least: f32) -> Option<u32> {
    let better = |best: (u32, f32), (token, logit): (usize, &f32)| {
        if *logit > best.1 { (token as u32, *logit) } else { best }
    };
    let (token, best) = logits.iter().enumerate().fold((u32::MAX, f32::NEG_INFINITY), better);
    if best == f32::NEG_INFINITY {
        return None;
    }
    let sum = || logits.iter().map(|logit| f64::from(logit - best).exp()).sum::<f64>();
    (least <= 0.0 || 1.0 / sum() >= f64::from(least)).then_some(token)
}

impl Proposer for DraftSimple {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        self.guess(texts).unwrap_or_else(|_| {
            // Guesses are not needed; what the failed step left cannot be relied on.
            (0..self.held.len()).for_each(|sequence| self.forget(sequence));
            vec![Vec::new(); texts.len()]
        })
    }

    fn reads(&self) -> Option<u64> {
        Some(self.model.weight_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::likely;

    #[test]
    fn the_best_token_must_be_probable_enough() {
        let logits = [0.0, 2.0f32.ln(), 0.0];
        assert_eq!(
            (likely(&logits, 0.0), likely(&logits, 0.49), likely(&logits, 0.51)),
            (Some(1), Some(1), None)
        );
        assert_eq!(likely(&[f32::NAN, f32::NEG_INFINITY], 0.0), None);
        assert_eq!(likely(&[], 0.0), None);
    }
}
