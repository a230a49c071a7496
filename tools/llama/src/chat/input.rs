//! Messages from the person: with line editing on a terminal, plain lines otherwise.

use super::commands::COMMANDS;
use crate::failure::Failure;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Context, Editor, Event, EventContext, EventHandler, Helper,
    KeyEvent,
};
use std::borrow::Cow;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PROMPT: &str = "> ";
/// Lines of history that are kept.
const HISTORY: usize = 1000;

/// Where messages come from.
pub enum Input {
    /// A terminal with line editing.
    Editor {
        /// The editor.
        editor: Box<Editor<Assistant, FileHistory>>,
        /// Whether the line had text at the last Ctrl-C.
        typed: Arc<AtomicBool>,
    },
    /// Plain lines.
    Lines {
        /// Print a prompt before each.
        prompt: bool,
        /// Messages have several lines unless one ends with a backslash.
        multiline: bool,
        /// Lines that were read.
        lines: usize,
    },
}

/// What was read.
#[derive(PartialEq, Eq, Debug)]
pub enum Line {
    /// A message.
    Text(String),
    /// There are no more.
    End,
}

impl Input {
    /// With an editor if `edit` and the terminal allows it.
    pub fn new(edit: bool, prompt: bool, multiline: bool, colour: bool) -> Self {
        let plain = Self::Lines { prompt, multiline, lines: 0 };
        if !edit {
            return plain;
        }
        let config = Config::builder().auto_add_history(true).max_history_size(HISTORY);
        let editor = config.and_then(|config| Editor::with_history(config.build(), FileHistory::new()));
        let Ok(mut editor) = editor else { return plain };
        editor.set_helper(Some(Assistant { multiline, colour, files: FilenameCompleter::new() }));
        if let Some(path) = history_file() {
            // There is none before the first chat.
            let _ = editor.load_history(&path);
        }
        let typed = Arc::new(AtomicBool::new(false));
        let interrupt = EventHandler::Conditional(Box::new(Interrupt { typed: typed.clone() }));
        editor.bind_sequence(KeyEvent::ctrl('C'), interrupt);
        Self::Editor { editor: Box::new(editor), typed }
    }

    /// The next message. Ctrl-C drops the line; on an empty one it ends the input when it comes twice in a row.
    pub fn read(&mut self) -> Result<Line, Failure> {
        match self {
            Self::Editor { editor, typed } => edit(editor, typed),
            Self::Lines { prompt, multiline, lines } => {
                if *prompt {
                    io::stdout().write_all(PROMPT.as_bytes())?;
                    io::stdout().flush()?;
                }
                read_plain(&mut io::stdin().lock(), *multiline, lines)
            }
        }
    }

    /// Writes the history; a failure is no reason to complain at the end of a chat.
    pub fn save(&mut self) {
        if let (Self::Editor { editor, .. }, Some(path)) = (self, history_file()) {
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            let _ = editor.save_history(&path);
        }
    }
}

fn edit(editor: &mut Editor<Assistant, FileHistory>, typed: &AtomicBool) -> Result<Line, Failure> {
    let mut warned = false;
    // The editor hears Ctrl-C as a key, and has a terminal to put in order before anything ends.
    let _busy = crate::interrupt::busy();
    loop {
        match editor.readline(PROMPT) {
            Ok(text) => {
                let multiline = editor.helper().is_some_and(|helper| helper.multiline);
                return Ok(Line::Text(message(&text, multiline)));
            }
            // The one that only drops what was typed does not leave.
            Err(ReadlineError::Interrupted) if !warned || typed.load(Ordering::Relaxed) => {
                warned = true;
                crate::console::plain("(Ctrl-C again or /exit leaves)");
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(Line::End),
            Err(error) => return Err(Failure::Failed(format!("terminal: {error}"))),
        }
    }
}

fn read_plain(input: &mut dyn BufRead, multiline: bool, lines: &mut usize) -> Result<Line, Failure> {
    let mut text = String::new();
    loop {
        let Some(line) = crate::files::read_line(input, *lines)? else {
            // The message was to go on, but nothing came.
            let text = text.trim_end_matches('\n');
            let rest = if text.is_empty() { Line::End } else { Line::Text(message(text, multiline)) };
            return Ok(rest);
        };
        *lines += 1;
        text.push_str(line.trim_end_matches(['\n', '\r']));
        if complete(&text, multiline) {
            return Ok(Line::Text(message(&text, multiline)));
        }
        text.push('\n');
    }
}

const QUOTES: &str = "\"\"\"";

/// Whether a message is complete: a backslash at the end says that it goes on (or, for messages of several
/// lines, that it ends), and three quotes at the beginning ask for three at the end.
fn complete(text: &str, multiline: bool) -> bool {
    if text.starts_with('/') && !text.contains('\n') {
        return true;
    }
    if let Some(rest) = text.trim_start().strip_prefix(QUOTES) {
        return rest.trim_end().ends_with(QUOTES);
    }
    text.ends_with('\\') == multiline
}

/// The message without the marks that say where it ends.
fn message(text: &str, multiline: bool) -> String {
    if let Some(rest) = text.trim().strip_prefix(QUOTES) {
        return rest.strip_suffix(QUOTES).unwrap_or(rest).trim_matches('\n').to_string();
    }
    match multiline {
        true => text.strip_suffix('\\').unwrap_or(text).to_string(),
        false => text.replace("\\\n", "\n"),
    }
}

/// `chat_history` in the platform's folder for data.
fn history_file() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME");
    let folder = if cfg!(windows) {
        variable("APPDATA")
    } else if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Application Support"))
    } else {
        variable("XDG_DATA_HOME").or_else(|| home().map(|home| home.join(".local/share")))
    };
    folder.map(|folder| folder.join("puna").join("chat_history"))
}

/// Ctrl-C as a key: says whether there was text that it drops.
struct Interrupt {
    typed: Arc<AtomicBool>,
}

impl ConditionalEventHandler for Interrupt {
    fn handle(&self, _: &Event, _: u16, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        self.typed.store(!context.line().is_empty(), Ordering::Relaxed);
        Some(Cmd::Interrupt)
    }
}

/// Completion, several lines and colour of the editor.
pub struct Assistant {
    multiline: bool,
    colour: bool,
    files: FilenameCompleter,
}

impl Helper for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match complete(context.input(), self.multiline) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Highlighter for Assistant {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        if self.colour { Cow::Owned(format!("\x1b[1;32m{prompt}\x1b[0m")) } else { Cow::Borrowed(prompt) }
    }
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        place: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..place).unwrap_or(line);
        match typed.strip_prefix('/') {
            Some(name) if !name.contains(' ') => {
                let fitting = COMMANDS.iter().filter(|command| command.name.starts_with(name));
                let pairs = fitting.map(|command| Pair {
                    display: format!("/{}", command.name),
                    replacement: format!("/{} ", command.name),
                });
                Ok((0, pairs.collect()))
            }
            Some(_) => self.files.complete(line, place, context),
            None => Ok((place, Vec::new())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str, multiline: bool) -> Vec<String> {
        let mut input = text.as_bytes();
        let mut all = Vec::new();
        let mut lines = 0;
        while let Line::Text(message) = read_plain(&mut input, multiline, &mut lines).unwrap() {
            all.push(message);
        }
        all
    }

    #[test]
    fn one_message_a_line_unless_it_goes_on() {
        assert_eq!(messages("one\ntwo\r\nthree", false), ["one", "two", "three"]);
        assert_eq!(messages("one\\\ntwo\nthree\n", false), ["one\ntwo", "three"]);
        assert_eq!(messages("\"\"\"one\ntwo\"\"\"\nthree\n", false), ["one\ntwo", "three"]);
        assert_eq!(messages("\"\"\"\none\n\"\"\"\n", false), ["one"]);
        assert_eq!(messages("\"\"\"never ended\n", false), ["never ended\n".trim_end()]);
        assert_eq!(messages("goes on\\", false), ["goes on\\"]);
        assert_eq!(messages("", false), Vec::<String>::new());
    }

    #[test]
    fn messages_of_several_lines_end_with_a_backslash() {
        assert_eq!(messages("one\ntwo\\\nthree\\\n/exit\n", true), ["one\ntwo", "three", "/exit"]);
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let failure = read_plain(&mut &b"a\xffb\n"[..], false, &mut 2);
        assert!(
            matches!(&failure, Err(Failure::Failed(text)) if text.contains("line 3: byte 1")),
            "{failure:?}"
        );
    }
}
