//! Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`, objects without quotes.

use serde_json::Value;

use super::form::{Form, Parameter, each_parameter, optional, text};
use super::{Body, Call, Dialect, Reading, Tool};

const QUOTE: &str = "<|\"|>";
const END: &str = "<tool_call|>";

pub(super) const DIALECT: Dialect = Dialect {
    name: "gemma",
    detect: |template| template.contains("<|tool_call>call:"),
    begin: &["<|tool_call>call:"],
    frame: &["<tool_call|>"],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                Form::All(vec![text(format!("{}:", parameter.key)), value(&parameter.schema, 0)])
            };
            let inner = each_parameter(tool, Some(text(",")), parameter);
            Form::All(vec![
                text(format!("<|tool_call>call:{}{{", tool.name)),
                inner,
                text(format!("}}{END}")),
            ])
        };
        calls.several(Form::All(Vec::new()), each)
    },
    between: None,
    read,
};

/// What was read.
#[derive(Default, Debug)]
pub(super) struct State {
    /// Where the next part begins; 0 as long as the name is not there.
    at: usize,
    /// Brackets that are open.
    open: Vec<char>,
    /// Bytes of the string being read that stand in the arguments.
    string: Option<usize>,
    /// Where the arguments ended.
    end: Option<usize>,
}

fn read(body: &mut Body<'_>) -> Reading {
    let mut state = std::mem::take(&mut body.memory.gemma);
    let reading = state.read(body);
    body.memory.gemma = state;
    reading
}

impl State {
    fn read(&mut self, body: &mut Body<'_>) -> Reading {
        let text = body.text;
        if body.memory.calls.is_empty() {
            // One that comes later must not count either, however the text is cut.
            let brace = text.find('{').filter(|brace| *brace <= super::named::LONGEST_NAME);
            let Some(brace) = brace else {
                return match body.done || text.len() > super::named::LONGEST_NAME {
                    true => Reading::Nothing,
                    false => Reading::Partial,
                };
            };
            let name = text[..brace].trim().to_owned();
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Reading::Nothing;
            }
            body.memory.calls.push(Call { name, arguments: String::new() });
            self.at = brace;
        }
        while self.end.is_none() && self.part(body) {}
        let Some(at) = self.end else {
            return if body.done { Reading::Complete(text.len()) } else { Reading::Partial };
        };
        match body.rest(at).starts_with(END) {
            true => Reading::Complete(at + END.len()),
            false if !body.done && END.starts_with(body.rest(at)) => Reading::Partial,
            false => Reading::Complete(at),
        }
    }

    /// Writes one part of the arguments as JSON; false if more of it must come.
    fn part(&mut self, body: &mut Body<'_>) -> bool {
        if let Some(written) = self.string {
            return self.string(written, body);
        }
        let rest = body.rest(self.at);
        let Some(next) = rest.chars().next() else { return false };
        let mut copied = None;
        match next {
            '{' | '[' => {
                self.open.push(next);
                copied = Some(next);
            }
            '}' | ']' => {
                self.open.pop();
                copied = Some(next);
                if self.open.is_empty() {
                    self.end = Some(self.at + 1);
                }
            }
            ',' | ':' => copied = Some(next),
            _ if rest.starts_with(QUOTE) => {
                self.at += QUOTE.len();
                self.string = Some(0);
                write(body, "\"");
                return true;
            }
            _ if QUOTE.starts_with(rest) && !body.done => return false,
            _ if next.is_whitespace() => {}
            _ => return self.word(body),
        }
        if let Some(character) = copied {
            write(body, character.encode_utf8(&mut [0; 4]));
        }
        self.at += next.len_utf8();
        body.memory.work += 1;
        true
    }

    /// Goes on in a string, of which so many bytes were written.
    fn string(&mut self, written: usize, body: &mut Body<'_>) -> bool {
        let found = body.find(self.at, QUOTE);
        let inner = body.rest(self.at);
        // A closing quote may have begun.
        let begun = || (1..QUOTE.len()).rev().find(|length| inner.ends_with(&QUOTE[..*length])).unwrap_or(0);
        let sure = found.unwrap_or_else(|| inner.len() - begun());
        if let Some(new) = inner.get(written..sure) {
            write(body, &super::partial_json::escaped(new));
            self.string = Some(sure);
        }
        let Some(length) = found else { return false };
        write(body, "\"");
        self.at += length + QUOTE.len();
        self.string = None;
        true
    }

    /// A key, or a value without marks.
    fn word(&mut self, body: &mut Body<'_>) -> bool {
        let Some(length) = body.search(self.at, 1, |rest| rest.find([',', ':', '}', ']'])) else {
            return false;
        };
        let rest = body.rest(self.at);
        let word = rest[..length].trim();
        let key = rest[length..].starts_with(':') && self.open.last() == Some(&'{');
        let plain = !key && serde_json::from_str::<serde_json::Value>(word).is_ok();
        match plain || (!key && word.starts_with('"')) {
            true => write(body, word),
            false => {
                let word = super::partial_json::escaped(word.trim_matches('"'));
                write(body, &format!("\"{word}\""));
            }
        }
        self.at += length;
        true
    }
}

/// Adds to the arguments.
fn write(body: &mut Body<'_>, text: &str) {
    if let Some(call) = body.memory.calls.last_mut() {
        call.arguments.push_str(text);
    }
}

/// Values within each other that a grammar tells apart.
const DEEPEST: usize = 8;

/// A value of this schema, strings between marks of their own.
fn value(schema: &Value, depth: usize) -> Form {
    let string = |schema: &Value| Form::All(vec![text(QUOTE), string(schema)]);
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => string(schema),
        Some("object") if depth < DEEPEST => {
            let tool = Tool { name: String::new(), parameters: schema.clone() };
            let member = |member: &Parameter<'_>| {
                Form::All(vec![text(format!("{}:", member.key)), value(&member.schema, depth + 1)])
            };
            Form::All(vec![text("{"), each_parameter(&tool, Some(text(",")), member), text("}")])
        }
        Some("array") if depth < DEEPEST => {
            let items = schema.get("items").cloned().unwrap_or(Value::Null);
            let one = value(&items, depth + 1);
            let list = optional(Form::Several(Box::new(one), Box::new(text(","))));
            Form::All(vec![text("["), list, text("]")])
        }
        Some("integer" | "number" | "boolean" | "null") => Form::Json(schema.clone()),
        _ => {
            let plain = serde_json::json!({ "type": ["number", "boolean", "null"] });
            Form::Any(vec![string(&Value::Null), Form::Json(plain)])
        }
    }
}

/// A string and the mark behind it.
fn string(schema: &Value) -> Form {
    match super::form::choices(schema) {
        Some(texts) => Form::All(vec![Form::Any(texts.into_iter().map(text).collect()), text(QUOTE)]),
        None => Form::Plain(schema.clone(), QUOTE.to_owned()),
    }
}
