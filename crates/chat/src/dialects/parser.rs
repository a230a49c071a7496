//! Tells the parts of an answer apart while its text comes.

use super::named::earliest;
use super::{Body, Delta, Dialect, Memory, Reading, ReasoningMarks, Tools};

/// Longest body of a call; where a longer one stops being looked at, the call ends.
const LONGEST_BODY: usize = 16 << 20;
/// Bytes of blanks before a mark that can be held back; more of them are text.
const MOST_BLANKS: usize = 64;
/// Bytes of blanks that an answer may begin with so that what it begins with still counts.
const MOST_FIRST_BLANKS: usize = 1 << 10;
/// Characters of a mark from which on the end of an answer that was cut is taken for its beginning: one may be anything.
const LEAST_OF_MARK: usize = 2;

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
    /// What was read of the present body.
    memory: Memory,
    /// Bytes that were looked at, without those of the present body.
    work: u64,
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
            memory: Memory::default(),
            work: 0,
        }
    }

    /// Bytes that were looked at so far: a few times those that there were, however they were cut.
    pub fn work(&self) -> u64 {
        self.work + self.memory.work
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
        let rest = if self.state == State::Reasoning { without_blanks(&rest) } else { &rest };
        self.emit(rest, &mut deltas);
        deltas
    }

    /// Whether the text so far ends within the reasoning.
    pub fn reasons(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Ends an answer that a limit has cut off: the arguments of a call that has begun stay as far as they came, and what
    /// has begun to be a mark, or a call without a name yet, is nobody's text.
    pub fn cut(&mut self) -> Vec<Delta> {
        let called = match self.state {
            // Where the prompt opened it, there may be text without a recipient.
            State::Call(begin) if self.dialect.and_then(|dialect| dialect.opened) != Some(begin) => {
                self.memory.handed.0 > 0 || is_unmistakable(begin)
            }
            State::Call(_) | State::Bare => self.memory.handed.0 > 0,
            State::Start | State::Reasoning | State::Content => false,
        };
        // Directly behind a call, what looks like a mark is one.
        let frame = self.dialect.map_or(&[][..], |dialect| dialect.frame);
        let held = self.held.trim_start();
        let mark =
            self.state == State::Content && self.fresh && frame.iter().any(|mark| mark.starts_with(held));
        if called || mark {
            self.held.clear();
            return Vec::new();
        }
        let marks = match self.state {
            State::Start => {
                self.reasoning.map_or(Vec::new(), |marks| vec![marks.begin.trim_start(), marks.end])
            }
            State::Reasoning => self.reasoning.map_or(Vec::new(), |marks| vec![marks.end]),
            State::Content => self.content_marks(),
            State::Bare | State::Call(_) => Vec::new(),
        };
        let begun =
            marks.iter().filter(|mark| is_unmistakable(mark)).filter_map(|mark| begun(&self.held, mark));
        let enough = |place: &usize| self.held[*place..].chars().nth(LEAST_OF_MARK - 1).is_some();
        if let Some(place) = begun.filter(enough).min() {
            self.held.truncate(without_blanks(&self.held[..place]).len());
        }
        self.finish()
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
                self.work += self.held.len() as u64;
                if self.held.len() - text.len() > MOST_FIRST_BLANKS {
                    return self.enter(State::Bare, self.fresh);
                }
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
        if self.memory.calls.is_empty() {
            let text = self.held.trim_start();
            self.work += (self.held.len() - text.len()) as u64;
            if self.held.len() - text.len() > MOST_FIRST_BLANKS {
                return self.enter(State::Content, self.fresh);
            }
            if text.is_empty() {
                return false;
            }
            let begun = dialect.begin.iter().chain(dialect.frame).any(|mark| text.starts_with(mark));
            if begun || !(text.starts_with('{') || text.starts_with("```") || "```".starts_with(text)) {
                return self.enter(State::Content, self.fresh);
            }
        }
        let reading = self.read(dialect, true, done);
        self.hand_over(reading, deltas);
        match reading {
            Reading::Nothing => self.enter(State::Content, self.fresh),
            Reading::Partial => false,
            Reading::Complete(length) => {
                self.held.drain(..length);
                self.enter(State::Content, true)
            }
        }
    }

    /// What the dialect reads from what is held.
    fn read(&mut self, dialect: &Dialect, bare: bool, done: bool) -> Reading {
        let mut text = self.held.as_str();
        let whole = text.len() <= LONGEST_BODY;
        if !whole {
            let end = (0..=LONGEST_BODY).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text = &text[..end];
        }
        let done = done || !whole;
        (dialect.read)(&mut Body { text, done, tools: &self.tools, bare, memory: &mut self.memory })
    }

    /// Marks that may come within content.
    fn content_marks(&self) -> Vec<&'static str> {
        let reasoning = self.reasoning.filter(|marks| marks.anywhere).map(|marks| marks.begin);
        let calls = self.dialect.map(|dialect| dialect.begin.iter().chain(dialect.frame));
        reasoning.into_iter().chain(calls.into_iter().flatten().copied()).collect()
    }

    fn content(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let Some(mark) = self.until_mark(&self.content_marks(), deltas) else { return false };
        let begin = self.dialect.map_or(&[][..], |dialect| dialect.begin);
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
        let reading = self.read(dialect, false, done);
        self.hand_over(reading, deltas);
        match reading {
            Reading::Partial => false,
            Reading::Complete(length) => {
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
                self.enter(State::Content, false);
                self.emit(&text, deltas);
                true
            }
        }
    }

    /// Hands over what is new in the calls of a body.
    fn hand_over(&mut self, reading: Reading, deltas: &mut Vec<Delta>) {
        let Memory { calls, handed, .. } = &mut self.memory;
        let complete = match reading {
            Reading::Nothing => return,
            Reading::Partial => false,
            Reading::Complete(_) => true,
        };
        let first = handed.0.saturating_sub(1);
        for (index, call) in calls.iter().enumerate().skip(first) {
            if index >= handed.0 {
                deltas.push(Delta::Call(call.name.clone()));
                *handed = (index + 1, 0);
            }
            let closed = complete || index + 1 < calls.len();
            let arguments = match call.arguments.as_str() {
                // A function without arguments.
                "" if closed => "{}",
                written => written,
            };
            if let Some(new) = arguments.get(handed.1..).filter(|new| !new.is_empty()) {
                deltas.push(Delta::Arguments(new.to_owned()));
                handed.1 = arguments.len();
            }
        }
    }

    fn enter(&mut self, state: State, fresh: bool) -> bool {
        (self.state, self.fresh) = (state, fresh);
        self.work += std::mem::take(&mut self.memory).work;
        true
    }

    /// Hands over text up to the first of these marks, which it returns; blanks before a mark are dropped.
    fn until_mark(&mut self, marks: &[&'static str], deltas: &mut Vec<Delta>) -> Option<&'static str> {
        self.work += self.held.len() as u64;
        // A mark that may still become a longer one, or one that begins earlier, waits.
        let begun = marks.iter().filter_map(|mark| begun(&self.held, mark)).min().unwrap_or(self.held.len());
        if let Some((place, mark)) = earliest(&self.held, marks).filter(|(place, _)| *place < begun) {
            let rest = self.held.split_off(place + mark.len());
            let before = std::mem::replace(&mut self.held, rest);
            let text = without_blanks(&before[..place]);
            before[text.len()..place].clone_into(&mut self.gap);
            self.emit(text, deltas);
            return Some(mark);
        }
        let sure = without_blanks(&self.held[..begun]).len();
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

/// Whether a mark begins like no word or sentence does.
fn is_unmistakable(mark: &str) -> bool {
    mark.starts_with(['<', '>', '[', ']'])
}

/// Where the end of the text may be the beginning of a mark.
fn begun(text: &str, mark: &str) -> Option<usize> {
    let borders = mark.char_indices().map(|(place, _)| place).filter(|place| *place > 0);
    borders.filter(|place| text.ends_with(&mark[..*place])).max().map(|length| text.len() - length)
}

/// A text without the blanks at its end, but for those that are too many to be held back.
fn without_blanks(text: &str) -> &str {
    let mut end = text.len();
    for (place, character) in text.char_indices().rev() {
        if !character.is_whitespace() || text.len() - place > MOST_BLANKS {
            break;
        }
        end = place;
    }
    &text[..end]
}
