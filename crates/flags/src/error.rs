//! What can be wrong with a command line.

use thiserror::Error;

/// A command line (or environment variable) that a tool cannot use.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UsageError {
    /// No flag of this tool.
    #[error("unknown flag {flag}{}", hint(.suggestion))]
    Unknown {
        /// As it was given.
        flag: String,
        /// A similar flag.
        suggestion: Option<String>,
    },
    /// A flag of another tool.
    #[error("{tool} has no flag {flag}")]
    OtherTool {
        /// As it was given.
        flag: String,
        /// The tool that was started.
        tool: String,
    },
    /// A flag at the end, or before another flag.
    #[error("{flag} needs a value: {placeholder}")]
    MissingValue {
        /// As it was given.
        flag: String,
        /// Name of the value.
        placeholder: String,
    },
    /// A value that the flag cannot have.
    #[error("{flag} cannot be {value:?}: {reason}")]
    BadValue {
        /// As it was given.
        flag: String,
        /// The value.
        value: String,
        /// What was expected.
        reason: String,
    },
    /// A value for a flag that takes none.
    #[error("{flag} takes no value, but was given {value:?}")]
    UnexpectedValue {
        /// As it was given.
        flag: String,
        /// The value.
        value: String,
    },
    /// A flag that does nothing without another.
    #[error("{flag} needs {}", either(.needs))]
    Alone {
        /// Its name.
        flag: String,
        /// Flags of which one is needed.
        needs: Vec<String>,
    },
    /// A flag whose effect nobody has built.
    #[error("{flag} is not supported yet")]
    NotYet {
        /// As it was given, or the environment variable.
        flag: String,
    },
    /// An argument that is no flag, for a tool that takes none.
    #[error("unexpected argument {argument:?}")]
    UnexpectedArgument {
        /// The argument.
        argument: String,
    },
    /// A value in the environment that the flag cannot have.
    #[error("environment variable {name} ({flag}) cannot be {value:?}: {reason}")]
    Environment {
        /// Name of the variable.
        name: String,
        /// The flag that it stands for.
        flag: String,
        /// The value.
        value: String,
        /// What was expected.
        reason: String,
    },
    /// An argument that is not UTF-8.
    #[error("argument {argument:?} is not valid UTF-8")]
    NotUtf8 {
        /// The argument with its invalid parts replaced.
        argument: String,
    },
    /// A variable whose value is not UTF-8.
    #[error("environment variable {name} is not valid UTF-8")]
    NotUtf8Variable {
        /// Its name.
        name: String,
    },
    /// Anything else that the parser refuses.
    #[error("{0}")]
    Other(String),
}

/// Flags of which one is meant.
pub(crate) fn either(flags: &[String]) -> String {
    flags.join(" or ")
}

fn hint(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|flag| format!("; did you mean {flag}?")).unwrap_or_default()
}
