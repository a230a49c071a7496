//! Commands of a chat: a table.

use super::conversation::{Conversation, Role};
use super::{Chat, Flow};
use crate::console;
use crate::failure::Failure;
use crate::files;
use crate::session::summary;
use puna_flags::closest;
use std::path::Path;

/// One command.
pub struct Command {
    /// Name after the slash.
    pub name: &'static str,
    /// Another name.
    alias: Option<&'static str>,
    /// What follows it.
    arguments: &'static str,
    /// One sentence.
    help: &'static str,
    run: fn(&mut Chat<'_>, &str) -> Result<Flow, Failure>,
}

/// All commands, in the order of the help.
pub const COMMANDS: &[Command] = &[
    Command { name: "help", alias: Some("?"), arguments: "", help: "Print the commands", run: help },
    Command { name: "clear", alias: None, arguments: "", help: "Start a new conversation", run: clear },
    Command { name: "regen", alias: None, arguments: "", help: "Answer the last message again", run: again },
    Command {
        name: "system",
        alias: None,
        arguments: "[TEXT]",
        help: "Show or set the system message; - removes it",
        run: system,
    },
    Command {
        name: "read",
        alias: None,
        arguments: "FILE",
        help: "Put a file before the next message",
        run: read,
    },
    Command {
        name: "save",
        alias: None,
        arguments: "FILE",
        help: "Write the conversation as JSON",
        run: save,
    },
    Command { name: "load", alias: None, arguments: "FILE", help: "Go on with a written one", run: load },
    Command {
        name: "stats",
        alias: None,
        arguments: "",
        help: "Print speed, context and memory",
        run: stats,
    },
    Command { name: "exit", alias: Some("quit"), arguments: "", help: "Leave", run: |_, _| Ok(Flow::Exit) },
];

/// Runs the command of a line without its slash.
pub(super) fn obey(chat: &mut Chat<'_>, line: &str) -> Result<Flow, Failure> {
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match COMMANDS.iter().find(|command| command.name == name || command.alias == Some(name)) {
        Some(command) => (command.run)(chat, argument.trim()),
        None => {
            let near = closest(name, COMMANDS.iter().map(|command| command.name));
            let hint = near.map_or("/help lists them".to_string(), |near| format!("did you mean /{near}?"));
            Err(Failure::Failed(format!("unknown command /{name}; {hint}")))
        }
    }
}

fn help(_: &mut Chat<'_>, _: &str) -> Result<Flow, Failure> {
    for command in COMMANDS {
        let name = format!("/{} {}", command.name, command.arguments);
        let other = command.alias.map(|alias| format!(" (also /{alias})")).unwrap_or_default();
        console::plain(&format!("  {name:<16} {}{other}", command.help));
    }
    console::plain(
        "  A line that ends with \\ goes on in the next one, and so does text that begins with \"\"\".",
    );
    Ok(Flow::On)
}

fn clear(chat: &mut Chat<'_>, _: &str) -> Result<Flow, Failure> {
    chat.conversation.clear();
    chat.attached.clear();
    chat.note("(a new conversation)");
    Ok(Flow::On)
}

fn again(chat: &mut Chat<'_>, _: &str) -> Result<Flow, Failure> {
    let Some(old) = chat.conversation.pop(Role::Assistant) else {
        return Err(Failure::Failed("there is no answer yet".into()));
    };
    let answered = chat.answer();
    if answered.is_err() {
        chat.conversation.push(Role::Assistant, old);
    }
    answered.map(|()| Flow::On)
}

fn system(chat: &mut Chat<'_>, text: &str) -> Result<Flow, Failure> {
    match text {
        "" => console::plain(chat.conversation.system().unwrap_or("(no system message)")),
        "-" => chat.conversation.set_system(None),
        text => chat.conversation.set_system(Some(text.to_string())),
    }
    Ok(Flow::On)
}

fn path(argument: &str) -> Result<&Path, Failure> {
    if argument.is_empty() { Err(Failure::Failed("which file?".into())) } else { Ok(Path::new(argument)) }
}

fn read(chat: &mut Chat<'_>, argument: &str) -> Result<Flow, Failure> {
    let text = files::read_text(path(argument)?, files::PROMPT)?;
    chat.note(&format!("({argument}, {}, goes before the next message)", console::size(text.len() as u64)));
    chat.attached.push_str(&text);
    if !text.ends_with('\n') {
        chat.attached.push('\n');
    }
    Ok(Flow::On)
}

fn save(chat: &mut Chat<'_>, argument: &str) -> Result<Flow, Failure> {
    chat.conversation.save(path(argument)?)?;
    chat.note(&format!("({} messages in {argument})", chat.conversation.len()));
    Ok(Flow::On)
}

fn load(chat: &mut Chat<'_>, argument: &str) -> Result<Flow, Failure> {
    chat.conversation = Conversation::load(path(argument)?)?;
    chat.note(&format!("({} messages)", chat.conversation.len()));
    Ok(Flow::On)
}

fn stats(chat: &mut Chat<'_>, _: &str) -> Result<Flow, Failure> {
    let session = chat.session;
    let information = &session.information;
    let held = session.engine.held(0).map(|tokens| tokens.len()).unwrap_or(0);
    let printable = |text| console::printable(text, 100);
    let (name, architecture) = (printable(&information.name), printable(&information.architecture));
    console::plain(&format!("  model     {name} ({architecture})"));
    console::plain(&format!(
        "  size      {}, {:.1} M parameters",
        console::size(information.file_bytes),
        information.parameters as f64 / 1e6
    ));
    console::plain(&format!(
        "  context   {held} of {} tokens, {} messages",
        information.context,
        chat.conversation.len()
    ));
    console::plain(&format!("  cache     {}", console::size(session.cache_bytes)));
    console::plain(&format!("  seed      {}", session.seed()));
    if chat.totals.answers > 0 {
        console::plain(&format!("  last      {}", summary(&chat.totals.last)));
        console::plain(&format!("  all {:<5} {}", chat.totals.answers, summary(&chat.totals.sum)));
    }
    Ok(Flow::On)
}
