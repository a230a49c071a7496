//! What models write: reasoning, text and tool calls told apart while the text comes.
//!
//! How a model marks its reasoning and its calls is seen from its template. [`REASONING`] and [`CALLS`] are the
//! marks that are known; a new one is a row, and a file if its calls have a form of their own.

mod hermes;

use serde_json::Value;

/// How a kind of model marks its reasoning.
#[derive(Debug)]
pub struct ReasoningMarks {
    /// Text before it.
    pub begin: &'static str,
    /// Text after it. The first one ends the reasoning, also where the reasoning only speaks of the mark.
    pub end: &'static str,
}

/// How a kind of model writes tool calls.
#[derive(Debug)]
pub struct CallDialect {
    /// Its name.
    pub name: &'static str,
    /// Whether a template belongs to such a model.
    pub detect: fn(&str) -> bool,
    /// Text before a call.
    pub begin: &'static str,
    /// Text after a call.
    pub end: &'static str,
    /// The call between them, if it is one.
    pub parse: fn(&str) -> Option<Call>,
}

/// Every known way to mark reasoning.
pub const REASONING: &[ReasoningMarks] = &[ReasoningMarks { begin: "<think>", end: "</think>" }];

/// Every known way to write tool calls.
pub const CALLS: &[CallDialect] = &[hermes::DIALECT];

/// A tool call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Name of the function.
    pub name: String,
    /// Its arguments as JSON text.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delta {
    /// Text for the user.
    Content(String),
    /// Text of the reasoning.
    Reasoning(String),
    /// A whole call.
    Call(Call),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Reasoning may begin.
    Start,
    Reasoning,
    Content,
    Call,
}

/// Tells the parts of an answer apart. However the text is cut, the parts are the same.
#[derive(Debug)]
pub struct OutputParser {
    reasoning: Option<&'static ReasoningMarks>,
    calls: Option<&'static CallDialect>,
    state: State,
    held: String,
    /// Blanks before the last mark.
    gap: String,
    /// Blanks at the beginning of the present part are dropped.
    fresh: bool,
}

impl OutputParser {
    /// For a model with this template and an answer to this prompt, which may have opened the reasoning already.
    /// `reasoning` and `calls` say whether they are looked for at all.
    pub fn new(template: &str, prompt: &str, reasoning: bool, calls: bool) -> Self {
        let marks = REASONING.iter().find(|marks| reasoning && template.contains(marks.end));
        let opened = marks.is_some_and(|marks| prompt.trim_end().ends_with(marks.begin));
        let state = match marks {
            Some(_) if opened => State::Reasoning,
            Some(_) => State::Start,
            None => State::Content,
        };
        Self {
            reasoning: marks,
            calls: CALLS.iter().find(|dialect| calls && (dialect.detect)(template)),
            state,
            held: String::new(),
            gap: String::new(),
            fresh: opened,
        }
    }

    /// Adds text and returns what is known of it.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut deltas = Vec::new();
        while self.advance(&mut deltas) {}
        deltas
    }

    /// Ends the answer: what was held back is what it looks like.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = self.push("");
        let rest = std::mem::take(&mut self.held);
        match (self.state, self.calls) {
            (State::Reasoning, _) => self.emit(rest.trim_end(), &mut deltas),
            (State::Call, Some(dialect)) => match (dialect.parse)(&rest) {
                // The closing mark is missing, as happens at the end of an answer.
                Some(call) => deltas.push(Delta::Call(call)),
                None => deltas.push(Delta::Content(format!("{}{}{rest}", self.gap, dialect.begin))),
            },
            _ => self.emit(&rest, &mut deltas),
        }
        deltas
    }

    /// One step; false if more text is needed.
    fn advance(&mut self, deltas: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Start => {
                let Some(marks) = self.reasoning else { return self.enter(State::Content, false) };
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(marks.begin) {
                    self.held = rest.to_owned();
                    return self.enter(State::Reasoning, true);
                }
                // Either more is needed to tell, or it is no reasoning.
                !marks.begin.starts_with(text) && self.enter(State::Content, false)
            }
            State::Reasoning => match self.reasoning {
                Some(marks) => self.until(marks.end, State::Content, deltas),
                None => self.enter(State::Content, false),
            },
            State::Content => match self.calls {
                Some(dialect) => self.until(dialect.begin, State::Call, deltas),
                None => {
                    let text = std::mem::take(&mut self.held);
                    self.emit(&text, deltas);
                    false
                }
            },
            State::Call => {
                let Some(dialect) = self.calls else { return self.enter(State::Content, false) };
                let Some((inside, rest)) = self.held.split_once(dialect.end) else { return false };
                let call = (dialect.parse)(inside);
                let parsed = call.is_some();
                deltas.push(match call {
                    Some(call) => Delta::Call(call),
                    None => Delta::Content(format!("{}{}{inside}{}", self.gap, dialect.begin, dialect.end)),
                });
                self.held = rest.to_owned();
                self.enter(State::Content, parsed)
            }
        }
    }

    fn enter(&mut self, state: State, fresh: bool) -> bool {
        (self.state, self.fresh) = (state, fresh);
        true
    }

    /// Hands over text up to a mark; blanks before the mark are dropped. True if the mark came.
    fn until(&mut self, mark: &str, next: State, deltas: &mut Vec<Delta>) -> bool {
        if let Some((text, rest)) = self.held.split_once(mark) {
            let (before, rest) = (text.to_owned(), rest.to_owned());
            let text = before.trim_end();
            self.gap = before[text.len()..].to_owned();
            self.held = rest;
            self.emit(text, deltas);
            return self.enter(next, true);
        }
        let borders = mark.char_indices().map(|(place, _)| place).filter(|place| *place > 0);
        let begun = borders.filter(|place| self.held.ends_with(&mark[..*place])).max().unwrap_or(0);
        let sure = self.held[..self.held.len() - begun].trim_end().len();
        let rest = self.held.split_off(sure);
        let text = std::mem::replace(&mut self.held, rest);
        self.emit(&text, deltas);
        false
    }

    fn emit(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        let text = if self.fresh { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        let text = text.to_owned();
        deltas.push(if self.state == State::Reasoning {
            Delta::Reasoning(text)
        } else {
            Delta::Content(text)
        });
    }
}

/// A call from an object with these members; arguments are an object, or JSON text of one, or absent.
fn call_of(value: &Value, name: &str, arguments: &str) -> Option<Call> {
    let name = value.get(name)?.as_str().filter(|name| !name.is_empty())?.to_owned();
    let arguments = match value.get(arguments) {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return None,
    };
    Some(Call { name, arguments })
}
