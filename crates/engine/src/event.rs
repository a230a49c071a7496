//! What a request's owner hears.

use std::time::Duration;

use puna_sampling::LogProbabilities;

use crate::EngineError;

/// One thing that happened to a request. `Finished` or `Failed` is the last one.
#[derive(Debug)]
pub enum Event {
    /// A sequence was chosen for the request, whose evaluation begins.
    Started {
        /// The sequence.
        sequence: u32,
        /// Prompt tokens that it holds already.
        cached: usize,
    },
    /// A part of the prompt was evaluated. The first one tells how much was reused.
    Progress {
        /// Prompt tokens in the cache now, reused ones included.
        processed: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// A token was generated.
    Token {
        /// Its id.
        id: u32,
        /// Log-probabilities, if they were asked for.
        log_probabilities: Option<LogProbabilities>,
    },
    /// The request is done.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        timings: Timings,
    },
    /// The request cannot go on.
    Failed(EngineError),
}

/// Why a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// The model chose one of the request's end-of-generation tokens; it is not sent as [`Event::Token`].
    EndOfGeneration {
        /// The token.
        token: u32,
    },
    /// The grammar of the request allows nothing more, and the end of the text is not a token to choose.
    GrammarEnd,
    /// As many tokens as asked for, the context is full, or the deadline is over.
    Length,
    /// The owner cancelled it or stopped listening.
    Cancelled,
}

/// Counts and durations of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// Prompt tokens that were in the cache already.
    pub cached_tokens: usize,
    /// Prompt tokens that were evaluated.
    pub prompt_tokens: usize,
    /// From the first evaluation to the first logits.
    pub prompt: Duration,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// From the first logits to the end.
    pub generation: Duration,
    /// Tokens that were guessed and checked.
    pub guessed_tokens: usize,
    /// Those of them that were right.
    pub accepted_tokens: usize,
    /// Guesses made.
    pub guesses: usize,
    /// Whether the context was full: then a part of the text was dropped, or the answer ended there.
    pub full: bool,
}

impl Timings {
    /// Prompt tokens evaluated per second.
    pub fn prompt_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt)
    }

    /// Tokens generated per second. The first one costs no evaluation of its own and is not counted.
    pub fn generated_per_second(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.generation)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
