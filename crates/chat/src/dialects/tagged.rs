//! Calls whose arguments are written one by one between tags, as text.

use serde_json::Value;

use super::named::{LONGEST_NAME, earliest};
use super::partial_json::{escaped, skip_blanks};
use super::{Body, Call, Reading};

/// How such a call is written.
pub(super) struct Tagged {
    /// What the name ends with. A mark that begins with `parameter` or a closing one is left for them.
    pub(super) until: &'static [&'static str],
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

impl Tagged {
    pub(super) fn read(&self, body: &Body<'_>) -> Reading {
        let text = body.text;
        let wait = || if body.done { Reading::Nothing } else { Reading::Partial(Vec::new()) };
        let Some((place, mark)) = earliest(text, self.until) else {
            return if text.len() < LONGEST_NAME { wait() } else { Reading::Nothing };
        };
        let name = text[..place].trim();
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(char::is_whitespace) {
            return Reading::Nothing;
        }
        let kept = mark == self.parameter || self.ends.contains(&mark);
        let mut at = place + if kept { 0 } else { mark.len() };
        let mut arguments = String::from("{");
        let call = |arguments: String| vec![Call { name: name.to_owned(), arguments }];
        loop {
            at = skip_blanks(text, at);
            let rest = &text[at..];
            let closes = |mark: &&&str| !mark.is_empty() && rest.starts_with(**mark);
            if self.ends.iter().find(closes).is_some() {
                arguments.push('}');
                return self.close(body, call(arguments), at);
            }
            if !rest.starts_with(self.parameter) {
                let begun = |mark: &&str| mark.starts_with(rest);
                if !body.done && (begun(&self.parameter) || self.ends.iter().any(begun)) {
                    return Reading::Partial(call(arguments));
                }
                // The closing tag is missing.
                arguments.push('}');
                return Reading::Complete(call(arguments), at);
            }
            let from = at + self.parameter.len();
            let Some(key_length) = text[from..].find(self.key_end) else {
                return self.unfinished(body, call(arguments));
            };
            let key = text[from..from + key_length].trim();
            let from = from + key_length + self.key_end.len();
            let Some(attributes_length) = text[from..].find(self.open_end) else {
                return self.unfinished(body, call(arguments));
            };
            let attributes = &text[from..from + attributes_length];
            let from = from + attributes_length + self.open_end.len();
            if arguments.len() > 1 {
                arguments.push_str(", ");
            }
            let value = &text[from..];
            let length = value.find(self.value_end);
            let textual = is_text(attributes, body, name, key);
            arguments.push_str(&format!("\"{}\": ", escaped(key)));
            let Some(length) = length else {
                let marked = |value: &str| value.starts_with("<![CDATA[") || "<![CDATA[".starts_with(value);
                if textual == Some(true) && (body.done || !marked(value.trim_start_matches('\n'))) {
                    let sure = if body.done { trimmed(value) } else { trimmed(held(value, self.value_end)) };
                    arguments.push('"');
                    arguments.push_str(&escaped(sure));
                    if body.done {
                        arguments.push_str("\"}");
                    }
                } else if body.done {
                    arguments.push_str(&json_value(trimmed(value), textual));
                    arguments.push('}');
                }
                return self.unfinished(body, call(arguments));
            };
            arguments.push_str(&json_value(trimmed(&value[..length]), textual));
            let after = from + length + self.value_end.len();
            match text[after..].find(self.close_end) {
                Some(place) => at = after + place + self.close_end.len(),
                None => return self.unfinished(body, call(arguments)),
            }
        }
    }

    fn unfinished(&self, body: &Body<'_>, calls: Vec<Call>) -> Reading {
        match body.done {
            true => Reading::Complete(calls, body.text.len()),
            false => Reading::Partial(calls),
        }
    }

    fn close(&self, body: &Body<'_>, calls: Vec<Call>, mut end: usize) -> Reading {
        for mark in self.ends {
            let at = skip_blanks(body.text, end);
            let rest = &body.text[at..];
            if rest.starts_with(mark) {
                end = at + mark.len();
            } else if !body.done && mark.starts_with(rest) {
                return Reading::Partial(calls);
            }
        }
        Reading::Complete(calls, end)
    }
}

/// Whether a value is a text: as its tag says, or else as the function's parameters say.
fn is_text(attributes: &str, body: &Body<'_>, function: &str, key: &str) -> Option<bool> {
    if attributes.contains("string=\"true\"") || attributes.contains("type=\"string\"") {
        return Some(true);
    }
    if attributes.contains("string=\"false\"") || attributes.contains("type=\"") {
        return Some(false);
    }
    body.tools.is_text(function, key)
}

/// A value that ends before a mark that may have begun, and before a last line break that may belong to the tag.
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
