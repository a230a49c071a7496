//! Errors of grammars, schemas and constraints.

/// Why a grammar cannot be used, or a constraint cannot go on.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GrammarError {
    /// The text of a GBNF grammar is wrong at one place.
    #[error("the grammar is wrong at line {line}, column {column}: {problem}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A GBNF grammar has no start.
    #[error("the grammar has no rule named \"root\"")]
    NoRoot,
    /// A rule begins with itself, so nothing could ever be read.
    #[error("the grammar is left recursive: {cycle}")]
    LeftRecursion {
        /// Names of the rules, from one back to itself.
        cycle: String,
    },
    /// A limit on the size of grammars.
    #[error("the grammar is too large: {what} {found}, at most {most}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is at least.
        found: usize,
        /// How much may be.
        most: usize,
    },
    /// A keyword of a JSON schema cannot be enforced, or has no meaning.
    #[error("the schema cannot be enforced at {pointer}: {problem}")]
    Schema {
        /// JSON pointer to the keyword, as a URI fragment: `#` is the whole schema.
        pointer: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A Lark grammar or a regular expression does not compile.
    #[error("the {kind} does not compile: {problem}")]
    Compile {
        /// What it was meant to be.
        kind: &'static str,
        /// The compiler's message.
        problem: String,
    },
    /// A trigger of a lazy grammar cannot be used.
    #[error("trigger {index} cannot be used: {problem}")]
    Trigger {
        /// Its place in the list, from 0.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A token that the grammar does not allow was accepted.
    #[error("token {token} is not allowed by the grammar here")]
    NotAllowed {
        /// The token.
        token: u32,
    },
    /// The text so far can be read in too many ways.
    #[error("the grammar is too ambiguous: more than {most} {what} at one place")]
    TooAmbiguous {
        /// What there are too many of.
        what: &'static str,
        /// How many may be.
        most: usize,
    },
    /// The matcher failed.
    #[error("the grammar cannot go on: {problem}")]
    Matcher {
        /// What happened.
        problem: String,
    },
    /// More tokens were to be taken back than are remembered.
    #[error("{asked} tokens cannot be taken back, only {known} are remembered")]
    Rollback {
        /// Tokens to take back.
        asked: usize,
        /// Tokens that can be.
        known: usize,
    },
}
