//! What a caller asks for.

use std::sync::Arc;
use std::time::Instant;

use puna_grammar::{Budget, Grammar};
use puna_sampling::Parameters;

use crate::EngineError;

/// Identifies a request of one engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

/// `predict`: no limit.
pub const UNLIMITED: i32 = -1;
/// `predict`: until the context is full, without shifting it.
pub const UNTIL_FULL: i32 = -2;

/// A prompt and how to continue it. The engine knows token ids only.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most: 0 only evaluates the prompt, [`UNLIMITED`] and [`UNTIL_FULL`] are special.
    pub predict: i32,
    /// How tokens are chosen.
    pub sampling: Parameters,
    /// What the text has to follow. Its masks are made beside the model's steps.
    pub grammar: Option<Grammar>,
    /// How long it may reason. Tokens that this forces come instead of chosen ones, unless the grammar forbids them.
    pub reasoning: Option<Budget>,
    /// Tokens that end the generation.
    pub end_of_generation: Arc<[u32]>,
    /// Never choose those tokens instead.
    pub ignore_end: bool,
    /// Log-probabilities with each token: of the chosen one and so many of the most probable.
    pub log_probabilities: Option<usize>,
    /// Those are of what the samplers left, instead of the raw logits.
    pub after_sampling: bool,
    /// Sequence to use; without one the engine takes the idle one that shares the longest beginning.
    pub sequence: Option<u32>,
    /// Reuse what the sequence holds of the same beginning.
    pub reuse: bool,
    /// Later parts of the prompt that the sequence holds elsewhere, of at least so many tokens, are moved to their new
    /// places instead of being computed again; 0 for none. What they hold was computed after another beginning, so the
    /// answer may differ a little.
    pub move_parts: usize,
    /// Tokens at the beginning that a context shift keeps; below 0 the whole prompt.
    pub keep: i32,
    /// Tokens that a context shift drops; 0 for half of what is not kept.
    pub discard: u32,
    /// How strongly each adapter counts, where that can be changed: one number for each, or none. Requests that differ
    /// in this share neither steps nor what was computed.
    pub adapters: Arc<[f32]>,
    /// Requests with a lower number get a slot first, and more of a step for their prompts. Nobody loses a slot for them.
    pub priority: i32,
    /// When it is of no use any more: then what was generated is all, and without any it fails.
    pub deadline: Option<Instant>,
}

impl Request {
    /// A request with the defaults: no limit, the peer's sampling, reuse on, nothing kept by shifts.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            predict: UNLIMITED,
            sampling: Parameters::default(),
            grammar: None,
            reasoning: None,
            end_of_generation: Arc::from([]),
            ignore_end: false,
            log_probabilities: None,
            after_sampling: false,
            sequence: None,
            reuse: true,
            move_parts: 0,
            keep: 0,
            discard: 0,
            adapters: Arc::from([]),
            priority: 0,
            deadline: None,
        }
    }

    /// Whether its deadline is over.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Lower for those that go first: by priority, then by their number.
    pub(crate) fn order(&self, id: RequestId) -> u64 {
        let priority = i64::from(self.priority) - i64::from(i32::MIN);
        (priority as u64) << 32 | id.0 & u64::from(u32::MAX)
    }

    /// Checks the prompt against the limits of a model and its context, as the engine does when the request arrives.
    /// `learned` says whether the context is what the model has learned positions for.
    pub fn validate(
        &self,
        vocabulary: u32,
        context: u32,
        learned: bool,
        sequences: u32,
    ) -> Result<(), EngineError> {
        if self.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if self.prompt.len() > context as usize {
            return Err(EngineError::PromptTooLong { tokens: self.prompt.len(), context, learned });
        }
        if let Some(token) = self.prompt.iter().copied().find(|token| *token >= vocabulary) {
            return Err(EngineError::TokenOutOfRange { token, vocabulary });
        }
        match self.sequence {
            Some(sequence) if sequence >= sequences => Err(EngineError::NoSequence { sequence, sequences }),
            _ => Ok(()),
        }
    }
}
