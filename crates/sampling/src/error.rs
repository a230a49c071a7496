//! Errors of sampling.

/// Why no token can be chosen, or a chain cannot be built.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SamplingError {
    /// The model gave no logits at all.
    #[error("the row of logits is empty")]
    Empty,
    /// The model computed something that is not a number, or plus infinity.
    #[error("the model gave {value} as the logit of token {token}")]
    NotFinite {
        /// First token with such a logit.
        token: u32,
        /// The logit: not a number or plus infinity.
        value: f32,
    },
    /// Every token is ruled out: all logits are minus infinity.
    #[error("no token is left to choose from: all logits are minus infinity")]
    NoCandidate,
    /// A parameter is outside its range.
    #[error("{name} is {value}, it must be {expected}")]
    Parameter {
        /// Name of the field of [`crate::Parameters`].
        name: &'static str,
        /// What was given.
        value: f32,
        /// What is allowed, in words.
        expected: &'static str,
    },
    /// A biased or suppressed token does not exist.
    #[error("token {token} is outside the vocabulary of {vocabulary} tokens")]
    TokenOutOfRange {
        /// Token given.
        token: u32,
        /// Number of tokens that exist.
        vocabulary: usize,
    },
    /// No sampler has this name.
    #[error("unknown sampler \"{name}\", known are {known}")]
    UnknownName {
        /// Name given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// No sampler has this letter.
    #[error("unknown sampler letter '{letter}', known are {known}")]
    UnknownLetter {
        /// Letter given.
        letter: char,
        /// The letters that exist.
        known: String,
    },
}
