//! What can go wrong between a template source and a prompt.

/// Errors of parsing and rendering a chat template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The source is not a valid template.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line of the source, from 1.
        line: usize,
        /// What the parser found and expected.
        message: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refused the conversation (line {line}): {message}")]
    Raised {
        /// Line of the source, from 1; 0 if unknown.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// A filter, test, function or method does not exist, a value is missing or of the wrong type.
    #[error("chat template, line {line}: {message}")]
    Render {
        /// Line of the source, from 1; 0 if unknown.
        line: usize,
        /// What failed, with the name concerned.
        message: String,
    },
    /// The template needs more work or memory than allowed (endless loop or recursion).
    #[error("the chat template exceeds its limit of {fuel} steps (line {line})")]
    TooMuchWork {
        /// The number of steps that were allowed.
        fuel: u64,
        /// Line of the source where it stopped, from 1; 0 if unknown.
        line: usize,
    },
    /// The rendered text is longer than allowed.
    #[error("the chat template writes more than {limit} bytes")]
    TooLong {
        /// The allowed length in bytes.
        limit: usize,
    },
    /// The source is longer than allowed.
    #[error("the chat template has {found} bytes, more than {limit}")]
    SourceTooLong {
        /// Length of the source in bytes.
        found: usize,
        /// The allowed length in bytes.
        limit: usize,
    },
    /// No built-in template has this name.
    #[error("no built-in chat template is called {name:?}")]
    UnknownBuiltin {
        /// The name asked for.
        name: String,
    },
    /// A message of the conversation is not usable.
    #[error("message {index}: {message}")]
    Message {
        /// Position in the conversation, from 0.
        index: usize,
        /// What is wrong with it.
        message: String,
    },
    /// The system refuses a thread to render on.
    #[error("cannot start a thread with {bytes} bytes of stack for the chat template: {reason}")]
    Thread {
        /// Size of the stack in bytes.
        bytes: usize,
        /// The system's message.
        reason: String,
    },
}
