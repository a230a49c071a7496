//! How a tool was started, and the first steps that all tools share.

use crate::console::{self, Console, INFORMATION};
use crate::failure::Failure;
use crate::{devices, pages, pull};
use puna_flags::{Action, Config, Outcome, Spec, Toggle, UsageError};
use std::ffi::OsString;
use std::io::IsTerminal;

/// How a tool was started.
#[derive(Clone)]
pub struct Invocation {
    /// `llama cli` or `llama-cli`.
    pub program: String,
    /// Everything after it.
    pub arguments: Vec<OsString>,
}

impl Invocation {
    /// With these parts.
    pub fn new(program: String, arguments: Vec<OsString>) -> Self {
        Self { program, arguments }
    }

    /// An error of the command line.
    pub fn usage(&self, message: impl ToString) -> Failure {
        Failure::Usage(message.to_string(), self.program.clone())
    }

    /// Reads the shared flags. `None` if they asked for something that is done now (`--help`, `--version`, ...).
    pub fn parse(&self, spec: &Spec<Config>) -> Result<Option<(Config, Console)>, Failure> {
        let Some((config, warnings)) = self.parse_over(spec, Config::default())? else { return Ok(None) };
        let console = Console::new(&config.log, INFORMATION)?;
        warnings.iter().for_each(|warning| console.warn(warning));
        Ok(Some((config, console)))
    }

    /// The same for any table of flags; also returns warnings.
    pub fn parse_over<C>(&self, spec: &Spec<C>, config: C) -> Result<Option<(C, Vec<String>)>, Failure> {
        let environment = |name: &str| std::env::var_os(name);
        let outcome = spec.parse(config, &self.arguments, &environment).map_err(|error| match error {
            UsageError::OtherTool { flag, .. } => self.usage(format!("{} has no flag {flag}", self.program)),
            other => self.usage(other),
        })?;
        match outcome {
            Outcome::Run { config, warnings } => return Ok(Some((config, warnings))),
            Outcome::Action(Action::Help) => {
                let colour = console::colour(Toggle::Auto, std::io::stdout().is_terminal());
                pages::print(spec.help(&self.program, colour).as_bytes())?;
            }
            Outcome::Action(Action::Version) => pages::version()?,
            Outcome::Action(Action::CompletionBash) => {
                pages::bash(&self.program, spec.command(&self.program))?
            }
            Outcome::Action(Action::ListDevices) => devices::print(false, "auto")?,
            Outcome::Action(Action::ListModels) => pull::print_cached(&Config::default())?,
        }
        Ok(None)
    }
}
