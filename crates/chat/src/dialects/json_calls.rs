//! Calls as JSON objects that hold name and arguments, alone, in a list or one after the other.

use super::partial_json::{End, Object, object, skip_blanks, string};
use super::{Body, Call, Reading};

const NAMES: &[&str] = &["name", "tool_name", "function"];
const ARGUMENTS: &[&str] = &["arguments", "parameters", "args"];
const FENCES: &[&str] = &["```json", "```tool_call", "```"];

/// What an object says of a call.
enum Found {
    /// It may be one; its name is not there yet.
    Perhaps,
    /// So far.
    Call(Call),
    /// It is none.
    Not,
}

/// Reads calls up to one of these marks; models often leave the mark out.
pub(super) fn read(body: &Body<'_>, ends: &[&str]) -> Reading {
    let text = body.text;
    let mut calls = Vec::new();
    let mut at = skip_blanks(text, 0);
    if let Some(step) = optional(&text[at..], FENCES, body.done) {
        match step {
            Some(length) => at = skip_blanks(text, at + length),
            None => return Reading::Partial(calls),
        }
    }
    let list = text[at..].starts_with('[');
    at += usize::from(list);
    let mut end = at;
    loop {
        at = skip_blanks(text, at);
        match text.as_bytes().get(at) {
            Some(b',' | b';') if !calls.is_empty() => at += 1,
            Some(b'{') => {
                let Some(object) = object(&text[at..]) else { break };
                match (call_of(&object, body), object.end) {
                    (Found::Call(call), Some(length)) => {
                        calls.push(call);
                        at += length;
                        end = at;
                    }
                    (Found::Call(call), None) => {
                        calls.push(call);
                        return match body.done {
                            true => Reading::Complete(calls, text.len()),
                            false => Reading::Partial(calls),
                        };
                    }
                    (Found::Perhaps, None) if !body.done => return Reading::Partial(calls),
                    (Found::Perhaps | Found::Not, _) => break,
                }
            }
            None if !body.done => return Reading::Partial(calls),
            _ => break,
        }
    }
    if calls.is_empty() {
        return Reading::Nothing;
    }
    closing(body, calls, end, if list { &["]"] } else { &[] }, ends)
}

/// What follows the calls: a bracket, a fence, the closing mark, each only if it is there.
pub(super) fn closing(
    body: &Body<'_>,
    calls: Vec<Call>,
    mut end: usize,
    brackets: &[&str],
    ends: &[&str],
) -> Reading {
    for marks in [brackets, &["```"], ends] {
        if marks.is_empty() {
            continue;
        }
        let at = skip_blanks(body.text, end);
        match optional(&body.text[at..], marks, body.done) {
            Some(Some(length)) => end = at + length,
            Some(None) => return Reading::Partial(calls),
            None => {}
        }
    }
    Reading::Complete(calls, end)
}

/// The length of the mark that `rest` begins with; `Some(None)` if it may become one.
fn optional(rest: &str, marks: &[&str], done: bool) -> Option<Option<usize>> {
    if let Some(mark) = marks.iter().find(|mark| rest.starts_with(**mark)) {
        let longer = marks.iter().any(|other| other.len() > rest.len() && other.starts_with(rest));
        return Some((!longer || done).then_some(mark.len()));
    }
    (!done && marks.iter().any(|mark| mark.starts_with(rest))).then_some(None)
}

fn call_of(object: &Object<'_>, body: &Body<'_>) -> Found {
    let member = |names: &[&str]| object.members.iter().find(|member| names.contains(&member.key.as_str()));
    let unknown = if object.end.is_none() { Found::Perhaps } else { Found::Not };
    if let Some(name) = member(NAMES) {
        if name.value.starts_with('{') {
            // OpenAI's own form: {"type": "function", "function": {"name": …, "arguments": …}}.
            return match super::partial_json::object(name.value) {
                Some(inner) if !inner.members.iter().any(|member| member.key == "function") => {
                    call_of(&inner, body)
                }
                _ => Found::Not,
            };
        }
        let whole = name.whole;
        let (name, End::Closed(_)) = string(name.value) else {
            return if whole { Found::Not } else { unknown };
        };
        if name.is_empty() || (body.bare && !body.tools.declares(&name)) {
            return Found::Not;
        }
        return match member(ARGUMENTS) {
            // Without a mark only the arguments show that it is a call.
            None if body.bare => unknown,
            None => Found::Call(Call { name, arguments: String::new() }),
            Some(value) => Found::Call(Call { name, arguments: arguments(value.value) }),
        };
    }
    let Some(first) = object.members.first() else { return unknown };
    // Apertus: {"name": {arguments}}.
    if body.tools.declares(&first.key) {
        return Found::Call(Call { name: first.key.clone(), arguments: arguments(first.value) });
    }
    let known = ["type", "id", "tool_call_id"].contains(&first.key.as_str())
        || ARGUMENTS.contains(&first.key.as_str());
    if known || !body.bare { unknown } else { Found::Not }
}

/// Arguments as they are written: an object, or the text of one; anything else is none.
fn arguments(value: &str) -> String {
    match value.as_bytes().first() {
        Some(b'{') => value.to_owned(),
        Some(b'"') => string(value).0,
        _ => String::new(),
    }
}
