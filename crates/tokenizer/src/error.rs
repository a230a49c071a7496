//! Why a file's tokenizer cannot be used.

/// Errors of building a tokenizer from metadata.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] puna_gguf::Error),
    /// `tokenizer.ggml.model` names a tokenizer that is not implemented.
    #[error("tokenizer.ggml.model is {found:?}, known are {known}")]
    UnknownModel {
        /// The name in the file.
        found: String,
        /// All known names, separated by commas.
        known: String,
    },
    /// `tokenizer.ggml.pre` names an unknown pre-tokenizer: guessing one would change the model's input silently.
    #[error("tokenizer.ggml.pre is {found:?}, which is not a known pre-tokenizer (convert the model anew)")]
    UnknownPreTokenizer {
        /// The name in the file.
        found: String,
    },
    /// An array has another length than the vocabulary.
    #[error("{key} has {found} elements, expected one for each of the {expected} tokens")]
    ArrayLength {
        /// The array's key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// The vocabulary is empty or has more tokens than ids.
    #[error("tokenizer.ggml.tokens has {found} elements, expected 1 to {limit}")]
    VocabularySize {
        /// The number of tokens in the file.
        found: usize,
        /// The largest number allowed.
        limit: usize,
    },
    /// A merge rule is not two texts with a space between them.
    #[error("tokenizer.ggml.merges: element {index} is {found:?}, expected two texts separated by a space")]
    Merge {
        /// Position in the array.
        index: usize,
        /// The element.
        found: String,
    },
    /// A table of the file is damaged.
    #[error("{key}: {message}")]
    Damaged {
        /// The table's key.
        key: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// An automaton over the vocabulary cannot be built.
    #[error("tokenizer.ggml.tokens: {message}")]
    Automaton {
        /// The builder's message.
        message: String,
    },
}
