//! Calls as JSON objects that hold name and arguments, alone, in a list or one after the other.

use super::json_object::{Event, ObjectScan, Slot};
use super::partial_json::TextScan;
use super::{Body, Call, Reading, Tools};

pub(super) const NAMES: &[&str] = &["name", "tool_name", "function"];
pub(super) const ARGUMENTS: &[&str] = &["arguments", "parameters", "args"];
const FENCES: &[&str] = &["```json", "```tool_call", "```"];

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Stage {
    /// Before the fence that there may be.
    #[default]
    Begin,
    /// Before the bracket that there may be.
    List,
    Calls,
    Closing,
}

/// What was read.
#[derive(Default, Debug)]
pub(super) struct State {
    stage: Stage,
    /// Where the next part begins.
    at: usize,
    /// The calls stand in brackets.
    list: bool,
    /// Where the last whole call ends.
    end: usize,
    object: Option<Reader>,
}

/// An object that may be a call.
#[derive(Debug)]
struct Reader {
    outer: ObjectScan,
    /// In OpenAI's own form the call is an object within it: {"type": "function", "function": {"name": …, "arguments": …}}.
    inner: Option<ObjectScan>,
    /// It is a call: where its arguments stand.
    source: Option<Source>,
    /// Arguments that are written as a string.
    decoder: TextScan,
}

/// Where the arguments of a call stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Outer,
    Inner,
    /// The value of the first member is the arguments.
    First,
}

/// What an object says of a call.
#[derive(PartialEq, Eq, Debug)]
enum Found {
    /// It may be one; its name is not there yet.
    Perhaps,
    /// A call of this function.
    Call(String, Source),
    /// It is none.
    Not,
}

/// Reads calls up to one of these marks; models often leave the mark out.
pub(super) fn read(body: &mut Body<'_>, ends: &[&str]) -> Reading {
    let mut state = std::mem::take(&mut body.memory.json);
    let reading = state.read(body, ends);
    body.memory.json = state;
    reading
}

impl State {
    fn read(&mut self, body: &mut Body<'_>, ends: &[&str]) -> Reading {
        loop {
            match self.stage {
                Stage::Begin => {
                    let at = body.skip_blanks(0);
                    match optional(body.rest(at), FENCES, body.done) {
                        Some(None) => return Reading::Partial,
                        Some(Some(length)) => self.at = at + length,
                        None => self.at = at,
                    }
                    self.stage = Stage::List;
                }
                Stage::List => {
                    let at = body.skip_blanks(self.at);
                    if at == body.text.len() && !body.done {
                        return Reading::Partial;
                    }
                    self.list = body.rest(at).starts_with('[');
                    self.at = at + usize::from(self.list);
                    (self.end, self.stage) = (self.at, Stage::Calls);
                }
                Stage::Calls => {
                    let step = match self.object.take() {
                        Some(object) => self.object(object, body),
                        None => self.between(body),
                    };
                    if let Some(reading) = step {
                        return reading;
                    }
                }
                Stage::Closing if body.memory.calls.is_empty() => return Reading::Nothing,
                Stage::Closing => {
                    return closing(body, self.end, if self.list { &["]"] } else { &[] }, ends);
                }
            }
        }
    }

    /// Between two objects.
    fn between(&mut self, body: &mut Body<'_>) -> Option<Reading> {
        self.at = body.skip_blanks(self.at);
        match body.text.as_bytes().get(self.at) {
            Some(b',' | b';') if !body.memory.calls.is_empty() => self.at += 1,
            Some(b'{') => {
                let outer = ObjectScan::new(self.at);
                self.object = Some(Reader { outer, inner: None, source: None, decoder: TextScan::default() });
            }
            None if !body.done => return Some(Reading::Partial),
            _ => self.stage = Stage::Closing,
        }
        None
    }

    /// Goes on in an object.
    fn object(&mut self, mut object: Reader, body: &mut Body<'_>) -> Option<Reading> {
        loop {
            let event = object.outer.next(body.text, &mut body.memory.work);
            let found = object.found(body);
            if let Found::Call(name, source) = found {
                object.source = Some(source);
                body.memory.calls.push(Call { name, arguments: String::new() });
            } else if found == Found::Not {
                self.stage = Stage::Closing;
                return None;
            }
            object.grow(body);
            match event {
                Event::Part => {}
                Event::End(end) if object.source.is_some() => {
                    (self.at, self.end) = (end, end);
                    return None;
                }
                Event::Wait if object.source.is_some() && body.done => {
                    return Some(Reading::Complete(body.text.len()));
                }
                Event::Wait if !body.done => {
                    self.object = Some(object);
                    return Some(Reading::Partial);
                }
                Event::End(_) | Event::Wait => {
                    self.stage = Stage::Closing;
                    return None;
                }
            }
        }
    }
}

impl Reader {
    /// What is known now; once it is a call nothing new.
    fn found(&mut self, body: &mut Body<'_>) -> Found {
        if self.source.is_some() {
            return Found::Perhaps;
        }
        let Some(name) = self.outer.name().filter(|name| body.text[name.from..].starts_with('{')) else {
            return found(&self.outer, Source::Outer, body.tools, body.bare);
        };
        let text = &body.text[..name.to];
        let inner = self.inner.get_or_insert_with(|| ObjectScan::new(name.from));
        loop {
            let event = inner.next(text, &mut body.memory.work);
            let nested = inner.name().is_some_and(|name| text[name.from..].starts_with('{'));
            let found = match nested || inner.has_function {
                true => Found::Not,
                false => found(inner, Source::Inner, body.tools, body.bare),
            };
            // What comes first counts, however the text is cut.
            if found != Found::Perhaps || event != Event::Part {
                return found;
            }
        }
    }

    /// Adds what is new to the arguments of the last call.
    fn grow(&mut self, body: &mut Body<'_>) {
        let Some(source) = self.source else { return };
        if source == Source::Inner
            && let (Some(inner), Some(name)) = (&mut self.inner, self.outer.name())
        {
            while inner.next(&body.text[..name.to], &mut body.memory.work) == Event::Part {}
        }
        let slot = match source {
            Source::Outer => self.outer.arguments(),
            Source::Inner => self.inner.as_ref().and_then(ObjectScan::arguments),
            Source::First => self.outer.first(),
        };
        let (Some(slot), Some(call)) = (slot, body.memory.calls.last_mut()) else { return };
        let value = &body.text[slot.from..slot.to];
        let new = match value.as_bytes().first() {
            // An object, or the text of one; anything else is none.
            Some(b'{') => value.get(call.arguments.len()..),
            Some(b'"') => {
                self.decoder.read(value, &mut body.memory.work);
                self.decoder.decoded.get(call.arguments.len()..)
            }
            _ => None,
        };
        call.arguments.push_str(new.unwrap_or_default());
    }
}

/// What an object says as far as it is there.
fn found(object: &ObjectScan, own: Source, tools: &Tools, bare: bool) -> Found {
    let unknown = if object.ended { Found::Not } else { Found::Perhaps };
    if let Some(Slot { whole, text, .. }) = object.name() {
        let Some(name) = text else {
            return if *whole { Found::Not } else { unknown };
        };
        if name.is_empty() || (bare && !tools.declares(name)) {
            return Found::Not;
        }
        // Without a mark only the arguments show that it is a call.
        return match bare && object.arguments().is_none() {
            true => unknown,
            false => Found::Call(name.clone(), own),
        };
    }
    let Some(first) = object.first() else { return unknown };
    // Apertus: {"name": {arguments}}.
    if own == Source::Outer && tools.declares(&first.key) {
        return Found::Call(first.key.clone(), Source::First);
    }
    let known = ["type", "id", "tool_call_id"].contains(&first.key.as_str())
        || ARGUMENTS.contains(&first.key.as_str());
    if known || !bare { unknown } else { Found::Not }
}

/// What follows the calls, which end here: a bracket, a fence, the closing mark, each only if it is there.
pub(super) fn closing(body: &mut Body<'_>, end: usize, brackets: &[&str], ends: &[&str]) -> Reading {
    let groups: [&[&str]; 3] = [brackets, &["```"], ends];
    if body.memory.closed.0 == 0 {
        body.memory.closed.1 = end;
    }
    while let Some(marks) = groups.get(body.memory.closed.0) {
        let mut end = body.memory.closed.1;
        if !marks.is_empty() {
            let at = body.skip_blanks(end);
            match optional(body.rest(at), marks, body.done) {
                Some(Some(length)) => end = at + length,
                Some(None) => return Reading::Partial,
                None => {}
            }
        }
        body.memory.closed = (body.memory.closed.0 + 1, end);
    }
    Reading::Complete(body.memory.closed.1)
}

/// The length of the mark that `rest` begins with; `Some(None)` if it may become one.
fn optional(rest: &str, marks: &[&str], done: bool) -> Option<Option<usize>> {
    if let Some(mark) = marks.iter().find(|mark| rest.starts_with(**mark)) {
        let longer = marks.iter().any(|other| other.len() > rest.len() && other.starts_with(rest));
        return Some((!longer || done).then_some(mark.len()));
    }
    (!done && marks.iter().any(|mark| mark.starts_with(rest))).then_some(None)
}
