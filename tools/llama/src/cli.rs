//! `llama cli`: chat with a model.

use crate::chat::Chat;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::prompt;
use crate::session::Session;
use puna_engine::UNLIMITED;
use puna_flags::{Config, FLAGS, Spec, ToolSet};

/// Flags of `cli`.
pub const SPEC: Spec<Config> = Spec {
    name: "cli",
    tool: ToolSet::CLI,
    about: "Chat with a model: on a terminal with line editing, on pipes one message a line",
    groups: FLAGS,
    positional: None,
};

/// `llama cli`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let first = prompt::message(&config)?;
    let session = Session::start(invocation, &SPEC, &config, &console, UNLIMITED)?;
    Chat::new(invocation, &session, &config, &console)?.run(first)
}
