//! How a tool ends when it does not succeed.

use crate::console;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// Why a tool ends early.
#[derive(Debug)]
pub enum Failure {
    /// The command line cannot be used; exit code 2. The second text is the program to ask for help.
    Usage(String, String),
    /// The command line names a device that there is not; exit code 2.
    NoDevice(String),
    /// Anything else that the user should read in one line; exit code 1.
    Failed(String),
    /// The output says all there is to say; exit code 1.
    Told,
    /// Whoever read the output has gone; there is nobody to tell.
    BrokenPipe,
    /// Ctrl-C; the exit code is the shell's custom for it.
    Interrupted,
}

impl Failure {
    /// What the user should read, if that was not said already.
    pub fn message(&self) -> String {
        match self {
            Self::Usage(message, _) | Self::NoDevice(message) | Self::Failed(message) => message.clone(),
            Self::Told | Self::BrokenPipe => "it failed".into(),
            Self::Interrupted => "it was interrupted".into(),
        }
    }

    /// Prints the error line and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Usage(message, program) => {
                console::error(message);
                console::plain(&format!("try '{program} --help'"));
                ExitCode::from(2)
            }
            Self::NoDevice(message) => {
                console::error(message);
                console::plain("try 'llama devices'");
                ExitCode::from(2)
            }
            Self::Failed(message) => {
                console::error(message);
                ExitCode::from(1)
            }
            Self::Told => ExitCode::from(1),
            Self::BrokenPipe => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(130),
        }
    }
}

/// For what writes to the standard output; whoever reads or writes files names them.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Failed(format!("standard output: {error}")),
        }
    }
}

impl From<puna_gguf::Error> for Failure {
    fn from(error: puna_gguf::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<puna_tokenizer::Error> for Failure {
    fn from(error: puna_tokenizer::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<puna_hub::Error> for Failure {
    fn from(error: puna_hub::Error) -> Self {
        match error {
            puna_hub::Error::Cancelled => Self::Interrupted,
            other => Self::Failed(other.to_string()),
        }
    }
}
