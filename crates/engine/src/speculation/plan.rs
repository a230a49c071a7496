//! Which guesses the next step checks.

use std::time::{Duration, Instant};

use super::payoff::{Lesson, StepTimes, Trust, least_price};
use super::{Evaluated, Proposer, Text};
use crate::worker::guarded;

/// A text that a guess may be made about.
pub(crate) struct Wish<'a> {
    pub(crate) sequence: usize,
    pub(crate) tokens: &'a [u32],
    /// Tokens that the request and its sequence have room for.
    pub(crate) most: usize,
}

/// The proposers of an engine, and what is known of their worth.
pub(crate) struct Speculation {
    proposers: Vec<Box<dyn Proposer>>,
    times: StepTimes,
    /// What a token of a guess costs at least.
    least_price: f64,
    lesson: Lesson,
    trust: Vec<Trust>,
}

impl Speculation {
    /// For so many sequences of a model with so many bytes of weights.
    pub(crate) fn new(proposers: Vec<Box<dyn Proposer>>, sequences: usize, bytes: u64) -> Self {
        let prices = proposers.iter().filter_map(|proposer| proposer.reads());
        let least_price = prices.map(|read| least_price(read, bytes)).fold(0.0, f64::max);
        let lesson = Lesson::default();
        let trust = vec![lesson.trust(); sequences];
        Self { proposers, times: StepTimes::default(), least_price, lesson, trust }
    }

    /// Whether there is anything to ask.
    pub(crate) fn is_on(&self) -> bool {
        !self.proposers.is_empty()
    }

    /// Another request begins in a sequence.
    pub(crate) fn begin(&mut self, sequence: usize) {
        self.trust[sequence] = self.lesson.trust();
    }

    /// A step with so many rows took so long.
    pub(crate) fn note(&mut self, rows: usize, time: Duration) {
        self.times.note(rows, time.as_secs_f64());
    }

    /// Of a guess so many tokens were right, and whether one was wrong.
    pub(crate) fn judge(&mut self, sequence: usize, right: usize, wrong: bool) {
        self.trust[sequence].judge(right, wrong);
        self.lesson.judge(right, wrong);
    }

    /// The model has computed something of a text.
    pub(crate) fn learn(&mut self, evaluated: &Evaluated<'_>) {
        for proposer in &mut self.proposers {
            // One that fails guesses worse.
            let _ = guarded(|| {
                proposer.learn(evaluated);
                Ok::<_, crate::EngineError>(())
            });
        }
    }

    /// Guesses for texts, as long as they pay beside `rows` rows that the step has anyway: pairs of a sequence and its
    /// guess. Only tokens below `vocabulary` are guessed.
    pub(crate) fn guess(
        &mut self,
        wishes: &[Wish<'_>],
        rows: usize,
        vocabulary: u32,
    ) -> Vec<(usize, Vec<u32>)> {
        let computes = self.proposers.iter().any(|proposer| proposer.reads().is_some());
        let price = self.times.price(rows, computes).max(self.least_price);
        let trust = &mut self.trust;
        let mut texts: Vec<Text<'_>> = wishes
            .iter()
            .map(|wish| {
                let most = trust[wish.sequence].worth(price, wish.most);
                Text { sequence: wish.sequence, tokens: wish.tokens, most }
            })
            .filter(|text| text.most > 0)
            .collect();
        let mut guesses = Vec::new();
        for proposer in &mut self.proposers {
            if texts.is_empty() {
                break;
            }
            let start = Instant::now();
            // Without a guess everything goes on as it would.
            let found = guarded(|| Ok::<_, crate::EngineError>(proposer.propose(&texts))).unwrap_or_default();
            if proposer.reads().is_some() {
                let tokens = found.iter().map(Vec::len).sum();
                self.times.note_guess(tokens, start.elapsed().as_secs_f64());
            }
            let mut found = found.into_iter();
            texts.retain(|text| {
                let mut guess = found.next().unwrap_or_default();
                guess.truncate(text.most);
                let known = guess.iter().take_while(|token| **token < vocabulary).count();
                guess.truncate(known);
                let none = guess.is_empty();
                if !none {
                    guesses.push((text.sequence, guess));
                }
                none
            });
        }
        guesses
    }
}
