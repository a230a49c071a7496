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

fn read(body: &Body<'_>) -> Reading {
    let text = body.text;
    let Some(brace) = text.find('{') else {
        return match body.done || text.len() > super::named::LONGEST_NAME {
            true => Reading::Nothing,
            false => Reading::Partial(Vec::new()),
        };
    };
    let name = text[..brace].trim().to_owned();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Reading::Nothing;
    }
    let (arguments, end) = json(&text[brace..], body.done);
    let calls = vec![Call { name, arguments }];
    match end {
        None if body.done => Reading::Complete(calls, text.len()),
        None => Reading::Partial(calls),
        Some(length) => {
            let at = brace + length;
            match text[at..].starts_with(END) {
                true => Reading::Complete(calls, at + END.len()),
                false if !body.done && END.starts_with(&text[at..]) => Reading::Partial(calls),
                false => Reading::Complete(calls, at),
            }
        }
    }
}

/// The object as JSON so far, and its length if it is closed.
fn json(text: &str, done: bool) -> (String, Option<usize>) {
    let mut out = String::new();
    let mut open: Vec<char> = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        match next {
            '{' | '[' => {
                open.push(next);
                out.push(next);
                at += 1;
            }
            '}' | ']' => {
                open.pop();
                out.push(next);
                at += 1;
                if open.is_empty() {
                    return (out, Some(at));
                }
            }
            ',' | ':' => {
                out.push(next);
                at += 1;
            }
            _ if rest.starts_with(QUOTE) => {
                let inner = &rest[QUOTE.len()..];
                match inner.find(QUOTE) {
                    Some(length) => {
                        out.push_str(&format!("\"{}\"", super::partial_json::escaped(&inner[..length])));
                        at += length + 2 * QUOTE.len();
                    }
                    None => {
                        // A closing quote may have begun.
                        let begun = (1..QUOTE.len()).rev().find(|length| inner.ends_with(&QUOTE[..*length]));
                        let sure = &inner[..inner.len() - begun.unwrap_or(0)];
                        out.push_str(&format!("\"{}", super::partial_json::escaped(sure)));
                        return (out, None);
                    }
                }
            }
            _ if QUOTE.starts_with(rest) && !done => return (out, None),
            _ if next.is_whitespace() => at += next.len_utf8(),
            _ => {
                let Some(length) = rest.find([',', ':', '}', ']']) else { return (out, None) };
                let word = rest[..length].trim();
                let key = rest[length..].starts_with(':') && open.last() == Some(&'{');
                let plain = !key && serde_json::from_str::<serde_json::Value>(word).is_ok();
                match plain || (!key && word.starts_with('"')) {
                    true => out.push_str(word),
                    false => {
                        let word = word.trim_matches('"');
                        out.push_str(&format!("\"{}\"", super::partial_json::escaped(word)));
                    }
                }
                at += length;
            }
        }
    }
    (out, None)
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
