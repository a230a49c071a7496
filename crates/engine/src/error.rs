//! Errors of requests and of the engine.

use puna_grammar::GrammarError;
use puna_runtime::RuntimeError;
use puna_sampling::SamplingError;

/// Why a request or a command failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request has no tokens.
    #[error("the prompt is empty: give a text of at least one token")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error("the prompt has {tokens} tokens, {}", match .learned {
        true => format!("and the model has learned {context} positions: it has to be shorter"),
        false => format!("the context holds {context}; a larger context is needed (-c)"),
    })]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that one sequence can hold.
        context: u32,
        /// Whether these are the positions that the model has learned.
        learned: bool,
    },
    /// A text to embed is too long: for a step, where it must be as a whole, or for the model.
    #[error(
        "a text has {tokens} tokens, at most {most} are possible: what a step holds (-b, -ub), or what the model has learned"
    )]
    TextTooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens that a text may have.
        most: u32,
    },
    /// The model was loaded for another purpose.
    #[error("the model was loaded to make {made_for}")]
    Purpose {
        /// What it makes.
        made_for: &'static str,
    },
    /// The prompt holds an id that is no token.
    #[error("token {token} is outside the vocabulary of {vocabulary} tokens")]
    TokenOutOfRange {
        /// Id given.
        token: u32,
        /// Number of tokens that exist.
        vocabulary: u32,
    },
    /// No such sequence.
    #[error("sequence {sequence} does not exist, there are {sequences}")]
    NoSequence {
        /// Sequence given.
        sequence: u32,
        /// How many there are.
        sequences: u32,
    },
    /// The sequence serves a request.
    #[error("sequence {sequence} is busy with a request; try again when that has ended")]
    Busy {
        /// Sequence given.
        sequence: u32,
    },
    /// Other sequences hold the cells that the request needs.
    #[error("no room: other sequences hold all {context} cells of the context")]
    NoRoom {
        /// Cells that all sequences share.
        context: u32,
    },
    /// There is no such kind of speculation.
    #[error("there is no speculation called '{name}', there are {}", names())]
    UnknownSpeculation {
        /// Name given.
        name: String,
    },
    /// A kind of speculation needs a second model.
    #[error("speculation by {name} needs a draft model of its kind (-md)")]
    NoDraftModel {
        /// Its name.
        name: &'static str,
    },
    /// Sampling settings or the model's logits are unusable.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The grammar of the request failed.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The model refused.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A step panicked; this is a fault of the program.
    #[error("internal error: {message}")]
    Panic {
        /// What the panic said.
        message: String,
    },
    /// The system has no thread for the engine.
    #[error("the engine thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The folder for saved sequences cannot be used.
    #[error("the cache folder {} cannot be used: {source}", folder.display())]
    DiskCache {
        /// The folder.
        folder: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The deadline of a request was over before its answer began.
    #[error("the deadline was over before the answer began")]
    Late,
    /// Bytes are no saved sequence, or a damaged one.
    #[error("no saved sequence: {source}")]
    NotSaved {
        /// What is wrong with them.
        source: std::io::Error,
    },
    /// A sequence could not be written.
    #[error("the sequence cannot be written: {source}")]
    NotWritten {
        /// What the system says.
        source: std::io::Error,
    },
    /// The engine thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

fn names() -> String {
    crate::SPECULATIONS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")
}
