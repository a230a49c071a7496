//! Calls whose arguments are written one by one between tags, as text.

use serde_json::Value;

use super::named::{LONGEST_NAME, near};
use super::partial_json::escaped;
use super::{Body, Call, Reading};

/// How such a call is written.
pub(super) struct Tagged {
    /// What the name ends with. A mark that begins with `parameter` or a closing one is left for them.
    pub(super) until: &'static [&'static str],
    /// What else stands behind the name ends with this.
    pub(super) then: &'static str,
    /// Before the name of a parameter.
    pub(super) parameter: &'static str,
    /// After it.
    pub(super) key_end: &'static str,
    /// After what else stands there, before the value.
    pub(super) open_end: &'static str,
    /// After the value.
    pub(super) value_end: &'static str,
    /// After what else stands there.
    pub(super) close_end: &'static str,
    /// After the call, in this order, each if it is there.
    pub(super) ends: &'static [&'static str],
}

/// What was read.
#[derive(Default, Debug)]
pub(super) struct State {
    stage: Stage,
    /// Where the next part begins.
    at: usize,
    name: String,
    key: String,
}

#[derive(Default, Debug)]
enum Stage {
    #[default]
    Name,
    /// Before what ends that which follows the name.
    Then,
    /// Before a parameter or the end.
    Between,
    Key,
    /// Between the name of a parameter and its value.
    Attributes,
    Value(Written),
    /// After a value, before the end of its tag.
    Close,
}

/// A value as far as it was handed on.
#[derive(Debug)]
struct Written {
    /// Whether it is a text, if that is known.
    textual: Option<bool>,
    /// Line breaks that it begins with.
    lead: usize,
    /// Bytes of the value that stand in the arguments; nothing if it has to be whole first.
    bytes: Option<usize>,
}

impl Tagged {
    pub(super) fn read(&self, body: &mut Body<'_>) -> Reading {
        let mut state = std::mem::take(&mut body.memory.tagged);
        let reading = loop {
            if let Some(reading) = self.step(&mut state, body) {
                break reading;
            }
        };
        body.memory.tagged = state;
        reading
    }

    /// One part of the call; nothing if there is another one to read.
    fn step(&self, state: &mut State, body: &mut Body<'_>) -> Option<Reading> {
        match &mut state.stage {
            Stage::Name => return self.name(state, body),
            Stage::Then => {
                let Some(length) = body.find(state.at, self.then) else {
                    return Some(if body.done { Reading::Nothing } else { Reading::Partial });
                };
                state.at += length + self.then.len();
                state.begin(body);
            }
            Stage::Between => return self.between(state, body),
            Stage::Key => {
                let Some(length) = body.find(state.at, self.key_end) else { return unfinished(body) };
                body.rest(state.at)[..length].trim().clone_into(&mut state.key);
                state.at += length + self.key_end.len();
                state.stage = Stage::Attributes;
            }
            Stage::Attributes => {
                let Some(length) = body.find(state.at, self.open_end) else { return unfinished(body) };
                let attributes = &body.rest(state.at)[..length];
                let textual = is_text(attributes, body, &state.key);
                state.at += length + self.open_end.len();
                let arguments = arguments(body);
                if arguments.len() > 1 {
                    arguments.push_str(", ");
                }
                arguments.push_str(&format!("\"{}\": ", escaped(&state.key)));
                state.stage = Stage::Value(Written { textual, lead: 0, bytes: None });
            }
            Stage::Value(written) => {
                let found = body.find(state.at, self.value_end);
                let value = body.rest(state.at);
                let Some(length) = found else {
                    if body.done {
                        written.last(value, arguments(body));
                        arguments(body).push('}');
                    } else {
                        written.more(value, self.value_end, arguments(body));
                    }
                    return unfinished(body);
                };
                written.last(&value[..length], arguments(body));
                state.at += length + self.value_end.len();
                state.stage = Stage::Close;
            }
            Stage::Close => {
                let Some(length) = body.find(state.at, self.close_end) else { return unfinished(body) };
                state.at += length + self.close_end.len();
                state.stage = Stage::Between;
            }
        }
        None
    }

    fn name(&self, state: &mut State, body: &mut Body<'_>) -> Option<Reading> {
        let text = body.text;
        let Some((place, mark)) = near(text, self.until) else {
            return Some(match !body.done && text.len() < LONGEST_NAME {
                true => Reading::Partial,
                false => Reading::Nothing,
            });
        };
        let name = text[..place].trim();
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(char::is_whitespace) {
            return Some(Reading::Nothing);
        }
        name.clone_into(&mut state.name);
        let kept = mark == self.parameter || self.ends.contains(&mark);
        state.at = place + if kept { 0 } else { mark.len() };
        match self.then.is_empty() {
            true => state.begin(body),
            false => state.stage = Stage::Then,
        }
        None
    }

    fn between(&self, state: &mut State, body: &mut Body<'_>) -> Option<Reading> {
        let at = body.skip_blanks(state.at);
        let rest = body.rest(at);
        if self.ends.iter().any(|mark| !mark.is_empty() && rest.starts_with(mark)) {
            // What follows the call may not be there yet; the brace is put only once.
            return Some(match self.close(body, at) {
                Reading::Partial => Reading::Partial,
                reading => {
                    arguments(body).push('}');
                    reading
                }
            });
        }
        // An end may begin as a parameter does.
        let begun = |mark: &&str| mark.len() > rest.len() && mark.starts_with(rest);
        if !body.done && (begun(&self.parameter) || self.ends.iter().any(begun)) {
            return Some(Reading::Partial);
        }
        if rest.starts_with(self.parameter) {
            (state.at, state.stage) = (at + self.parameter.len(), Stage::Key);
            return None;
        }
        // The closing tag is missing.
        arguments(body).push('}');
        Some(Reading::Complete(at))
    }

    fn close(&self, body: &mut Body<'_>, mut end: usize) -> Reading {
        for mark in self.ends {
            let at = body.skip_blanks(end);
            let rest = body.rest(at);
            if rest.starts_with(mark) {
                end = at + mark.len();
            } else if !body.done && mark.starts_with(rest) {
                return Reading::Partial;
            }
        }
        Reading::Complete(end)
    }
}

impl State {
    /// It is a call.
    fn begin(&mut self, body: &mut Body<'_>) {
        body.memory.calls.push(Call { name: std::mem::take(&mut self.name), arguments: "{".to_owned() });
        self.stage = Stage::Between;
    }
}

impl Written {
    /// Hands on what is sure of a value that goes on.
    fn more(&mut self, value: &str, mark: &str, arguments: &mut String) {
        if self.textual != Some(true) {
            return;
        }
        let Some(bytes) = self.bytes else {
            const MARK: &str = "<![CDATA[";
            self.lead += value[self.lead..].len() - value[self.lead..].trim_start_matches('\n').len();
            let rest = &value[self.lead..];
            if !rest.starts_with(MARK) && !MARK.starts_with(rest) {
                arguments.push('"');
                self.bytes = Some(usize::from(value.starts_with('\n')));
                self.more(value, mark, arguments);
            }
            return;
        };
        // A last line break may belong to the tag.
        let sure = held(value, mark);
        let sure = sure.strip_suffix('\n').unwrap_or(sure);
        if let Some(new) = sure.get(bytes..) {
            arguments.push_str(&escaped(new));
            self.bytes = Some(bytes + new.len());
        }
    }

    /// Hands on the rest of a value that is all there.
    fn last(&self, value: &str, arguments: &mut String) {
        let Some(bytes) = self.bytes else {
            arguments.push_str(&json_value(trimmed(value), self.textual));
            return;
        };
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.push_str(&escaped(value.get(bytes..).unwrap_or_default()));
        arguments.push('"');
    }
}

/// The arguments of the call that is being read.
fn arguments<'a>(body: &'a mut Body<'_>) -> &'a mut String {
    if body.memory.calls.is_empty() {
        body.memory.calls.push(Call { name: String::new(), arguments: String::new() });
    }
    let last = body.memory.calls.len() - 1;
    &mut body.memory.calls[last].arguments
}

fn unfinished(body: &Body<'_>) -> Option<Reading> {
    Some(if body.done { Reading::Complete(body.text.len()) } else { Reading::Partial })
}

/// Whether a value is a text: as its tag says, or else as the function's parameters say.
fn is_text(attributes: &str, body: &Body<'_>, key: &str) -> Option<bool> {
    if attributes.contains("string=\"true\"") || attributes.contains("type=\"string\"") {
        return Some(true);
    }
    if attributes.contains("string=\"false\"") || attributes.contains("type=\"") {
        return Some(false);
    }
    body.tools.is_text(&body.memory.calls.last()?.name, key)
}

/// A value that ends before a mark that may have begun.
fn held<'a>(value: &'a str, mark: &str) -> &'a str {
    let borders = mark.char_indices().map(|(place, _)| place).filter(|place| *place > 0);
    let begun = borders.filter(|place| value.ends_with(&mark[..*place])).max().unwrap_or(0);
    &value[..value.len() - begun]
}

/// Without the line breaks that set a value apart from its tags.
fn trimmed(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    let value = value.strip_suffix('\n').unwrap_or(value);
    match value.strip_prefix("<![CDATA[") {
        Some(inner) => inner.strip_suffix("]]>").unwrap_or(inner),
        None => value,
    }
}

/// A value as JSON. What should be something else than a text and is not JSON stays the text that it is.
fn json_value(value: &str, textual: Option<bool>) -> String {
    let quoted = || format!("\"{}\"", escaped(value));
    if textual == Some(true) {
        return quoted();
    }
    let parsed = match value.trim() {
        // As Python writes them.
        "True" => Some(Value::from(true)),
        "False" => Some(Value::from(false)),
        "None" => Some(Value::Null),
        other => serde_json::from_str(other).ok(),
    };
    match parsed {
        Some(Value::String(_)) if textual.is_none() => quoted(),
        Some(value) => value.to_string(),
        None => quoted(),
    }
}
