//! Tells the parts of an answer apart while its text comes.

use super::named::earliest;
use super::{Body, Call, Delta, Dialect, Reading, ReasoningMarks, Tools};

/// Longest body of a call that is looked at; a longer one is text. A body is read anew with each piece of text.
const LONGEST_BODY: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Reasoning may begin.
    Start,
    Reasoning,
    /// A call without a mark may begin.
    Bare,
    Content,
    /// After this beginning.
    Call(&'static str),
}

/// Tells the parts of an answer apart. However the text is cut, the parts are the same.
#[derive(Debug)]
pub struct OutputParser {
    reasoning: Option<&'static ReasoningMarks>,
    dialect: Option<&'static Dialect>,
    tools: Tools,
    state: State,
    held: String,
    /// Blanks before the last mark.
    gap: String,
    /// Blanks at the beginning of the present part are dropped.
    fresh: bool,
    /// Calls of the present body that were handed over, and bytes of the last one's arguments.
    handed: (usize, usize),
}

impl OutputParser {
    /// For an answer to this prompt, which may have opened reasoning or a call already. `reasoning` says whether
    /// reasoning is told apart; calls are if there are a `dialect` and `tools`.
    pub fn new(
        template: &str,
        prompt: &str,
        reasoning: bool,
        dialect: Option<&'static Dialect>,
        tools: Tools,
    ) -> Self {
        let marks = ReasoningMarks::find(template).filter(|_| reasoning);
        let dialect = dialect.filter(|dialect| dialect.always || !tools.0.is_empty());
        let prompt = prompt.trim_end();
        let opened = marks.is_some_and(|marks| prompt.ends_with(marks.begin.trim_end()));
        let inside = dialect.and_then(|dialect| dialect.opened).filter(|mark| prompt.ends_with(mark));
        let state = match (marks, inside) {
            (Some(_), _) if opened => State::Reasoning,
            (_, Some(mark)) => State::Call(mark),
            _ => State::Start,
        };
        Self {
            reasoning: marks,
            dialect,
            tools,
            state,
            held: String::new(),
            gap: String::new(),
            fresh: opened,
            handed: (0, 0),
        }
    }

    /// Adds text and returns what is known of it.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut deltas = Vec::new();
        while self.advance(false, &mut deltas) {}
        deltas
    }

    /// Ends the answer: what was held back is what it looks like.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        while self.advance(true, &mut deltas) {}
        let rest = std::mem::take(&mut self.held);
        let rest = if self.state == State::Reasoning { rest.trim_end() } else { &rest };
        self.emit(rest, &mut deltas);
        deltas
    }

    /// Texts that end or begin a part and that control tokens may stand for.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let reasoning = self.reasoning.map(|marks| [marks.begin, marks.end]).into_iter().flatten();
        let calls = self.dialect.map(|dialect| [dialect.begin, dialect.frame]).into_iter().flatten();
        reasoning.chain(calls.flatten().copied())
    }

    /// One step; false if more text is needed.
    fn advance(&mut self, done: bool, deltas: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Start => {
                let Some(marks) = self.reasoning else { return self.enter(State::Bare, false) };
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(marks.begin.trim_start()) {
                    self.held = rest.to_owned();
                    return self.enter(State::Reasoning, true);
                }
                if let Some(rest) = text.strip_prefix(marks.end) {
                    // The prompt opened it in a way of its own, and there is none.
                    self.held = rest.to_owned();
                    return self.enter(State::Bare, true);
                }
                let begun = [marks.begin.trim_start(), marks.end].iter().any(|mark| mark.starts_with(text));
                (done || !begun) && self.enter(State::Bare, self.fresh)
            }
            State::Reasoning => match self.reasoning {
                Some(marks) => {
                    self.until_mark(&[marks.end], deltas).is_some_and(|_| self.enter(State::Bare, true))
                }
                None => self.enter(State::Bare, false),
            },
            State::Bare => self.bare(done, deltas),
            State::Content => self.content(deltas),
            State::Call(begin) => self.call(begin, done, deltas),
        }
    }

    /// Where an answer begins without any mark.
    fn bare(&mut self, done: bool, deltas: &mut Vec<Delta>) -> bool {
        let Some(dialect) = self.dialect.filter(|dialect| dialect.bare) else {
            return self.enter(State::Content, self.fresh);
        };
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        let begun = dialect.begin.iter().chain(dialect.frame).any(|mark| text.starts_with(mark));
        if begun || !(text.starts_with('{') || text.starts_with("```") || "```".starts_with(text)) {
            return self.enter(State::Content, self.fresh);
        }
        let body = Body { text: &self.held, done, tools: &self.tools, bare: true };
        match (dialect.read)(&body) {
            Reading::Nothing => self.enter(State::Content, self.fresh),
            Reading::Partial(calls) => {
                self.hand_over(&calls, false, deltas);
                false
            }
            Reading::Complete(calls, length) => {
                self.hand_over(&calls, true, deltas);
                self.held.drain(..length);
                self.enter(State::Content, true)
            }
        }
    }

    fn content(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let mut marks: Vec<&'static str> = Vec::new();
        if let Some(reasoning) = self.reasoning.filter(|marks| marks.anywhere) {
            marks.push(reasoning.begin);
        }
        let (begin, frame) =
            self.dialect.map_or((&[][..], &[][..]), |dialect| (dialect.begin, dialect.frame));
        marks.extend(begin.iter().chain(frame));
        let Some(mark) = self.until_mark(&marks, deltas) else { return false };
        if self.reasoning.is_some_and(|marks| marks.anywhere && marks.begin == mark) {
            return self.enter(State::Reasoning, true);
        }
        match begin.contains(&mark) {
            true => self.enter(State::Call(mark), true),
            false => self.enter(State::Content, true),
        }
    }

    fn call(&mut self, begin: &'static str, done: bool, deltas: &mut Vec<Delta>) -> bool {
        let Some(dialect) = self.dialect else { return self.enter(State::Content, false) };
        let done = done || self.held.len() > LONGEST_BODY;
        let body = Body { text: &self.held, done, tools: &self.tools, bare: false };
        match (dialect.read)(&body) {
            Reading::Partial(calls) => {
                self.hand_over(&calls, false, deltas);
                false
            }
            Reading::Complete(calls, length) => {
                self.hand_over(&calls, true, deltas);
                self.held.drain(..length);
                self.enter(State::Content, true)
            }
            Reading::Nothing => {
                // What is no call is text, its beginning too.
                let text = if dialect.opened == Some(begin) {
                    String::new()
                } else {
                    format!("{}{begin}", self.gap)
                };
                self.state = State::Content;
                self.fresh = false;
                self.emit(&text, deltas);
                true
            }
        }
    }

    /// Hands over what is new in the calls of a body.
    fn hand_over(&mut self, calls: &[Call], complete: bool, deltas: &mut Vec<Delta>) {
        for (index, call) in calls.iter().enumerate() {
            let (count, bytes) = self.handed;
            if index + 1 < count {
                continue;
            }
            if index >= count {
                deltas.push(Delta::Call(call.name.clone()));
                self.handed = (index + 1, 0);
            }
            let bytes = if index >= count { 0 } else { bytes };
            let closed = complete || index + 1 < calls.len();
            let arguments = match call.arguments.as_str() {
                // A function without arguments.
                "" if closed => "{}",
                written => written,
            };
            if let Some(new) = arguments.get(bytes..).filter(|new| !new.is_empty()) {
                deltas.push(Delta::Arguments(new.to_owned()));
                self.handed.1 = arguments.len();
            }
        }
        if complete {
            self.handed = (0, 0);
        }
    }

    fn enter(&mut self, state: State, fresh: bool) -> bool {
        (self.state, self.fresh) = (state, fresh);
        true
    }

    /// Hands over text up to the first of these marks, which it returns; blanks before a mark are dropped.
    fn until_mark(&mut self, marks: &[&'static str], deltas: &mut Vec<Delta>) -> Option<&'static str> {
        // A mark that may still become a longer one, or one that begins earlier, waits.
        let begun = marks.iter().filter_map(|mark| begun(&self.held, mark)).min().unwrap_or(self.held.len());
        if let Some((place, mark)) = earliest(&self.held, marks).filter(|(place, _)| *place < begun) {
            let rest = self.held.split_off(place + mark.len());
            let before = std::mem::replace(&mut self.held, rest);
            let text = before[..place].trim_end();
            before[text.len()..place].clone_into(&mut self.gap);
            self.emit(text, deltas);
            return Some(mark);
        }
        let sure = self.held[..begun].trim_end().len();
        let rest = self.held.split_off(sure);
        let text = std::mem::replace(&mut self.held, rest);
        self.emit(&text, deltas);
        None
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

/// Where the end of the text may be the beginning of a mark.
fn begun(text: &str, mark: &str) -> Option<usize> {
    let borders = mark.char_indices().map(|(place, _)| place).filter(|place| *place > 0);
    borders.filter(|place| text.ends_with(&mark[..*place])).max().map(|length| text.len() - length)
}
