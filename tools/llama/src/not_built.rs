//! Tools whose flags are known and whose work is not built.

use crate::failure::Failure;
use crate::invocation::Invocation;
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};

const TEXT: Positional<Config> = Positional {
    placeholder: "PROMPT",
    help: "The prompt",
    set: |config, value| config.positional.push(value.to_owned()),
};

/// Flags of `cli`.
pub const CLI: Spec<Config> =
    Spec { name: "cli", tool: ToolSet::CLI, about: "Chat with a model", groups: FLAGS, positional: None };
/// Flags of `completion`.
pub const COMPLETION: Spec<Config> = Spec {
    name: "completion",
    tool: ToolSet::COMPLETION,
    about: "Continue a text",
    groups: FLAGS,
    positional: None,
};
/// Flags of `simple`.
pub const SIMPLE: Spec<Config> = Spec {
    name: "simple",
    tool: ToolSet::SIMPLE,
    about: "Continue a text greedily",
    groups: FLAGS,
    positional: Some(TEXT),
};
/// Flags of `run`.
pub const RUN: Spec<Config> = Spec {
    name: "run",
    tool: ToolSet::RUN,
    about: "Run a model by its name, once or as a chat",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "MODEL [PROMPT]",
        help: "A file, USER/MODEL[:QUANT] of the hub, or an address; then the prompt",
        ..TEXT
    }),
};
/// Flags of `logits`.
pub const LOGITS: Spec<Config> = Spec {
    name: "logits",
    tool: ToolSet::LOGITS,
    about: "Write a model's logits for given tokens",
    groups: FLAGS,
    positional: None,
};
/// Checks the command line and says that there is no more.
pub fn run(invocation: &Invocation, spec: &Spec<Config>) -> Result<(), Failure> {
    match invocation.parse(spec)? {
        None => Ok(()),
        Some(_) => Err(Failure::Failed(format!("{} is not built yet", invocation.program))),
    }
}
