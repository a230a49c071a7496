//! LFM 2: calls as Python writes them, `<|tool_call_start|>[name(key="text", other=1)]<|tool_call_end|>`, or as JSON.

use serde_json::Value;

use super::form::{Blank, Form, Parameter, each_parameter, text};
use super::named::LONGEST_NAME;
use super::{Body, Call, Dialect, Reading, Tool, json_calls};

const END: &str = "<|tool_call_end|>";

pub(super) const DIALECT: Dialect = Dialect {
    name: "lfm",
    detect: |template| template.contains("<|tool_list_start|>") || template.contains("List of tools: ["),
    begin: &["<|tool_call_start|>"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                Form::All(vec![text(format!("{}=", parameter.key)), value(&parameter.schema)])
            };
            let inner = each_parameter(tool, Some(Form::All(vec![text(","), Blank])), parameter);
            Form::All(vec![text(format!("{}(", tool.name)), inner, text(")")])
        };
        let calls = calls.several(Form::All(vec![text(","), Blank]), each);
        Form::All(vec![text("<|tool_call_start|>["), calls, text(format!("]{END}"))])
    },
    between: None,
    read,
};

fn read(body: &mut Body<'_>) -> Reading {
    let mut first = body.text.bytes().take(LONGEST_NAME);
    if first.find(|byte| !b"[ \t\r\n".contains(byte)) == Some(b'{') {
        return json_calls::read(body, &[END]);
    }
    let (whole, length) = match body.find(0, END) {
        Some(place) => (&body.text[..place], place + END.len()),
        None if body.done => (body.text, body.text.len()),
        None => return Reading::Partial,
    };
    match python_calls(whole.trim()) {
        Some(calls) if !calls.is_empty() => {
            body.memory.calls = calls;
            Reading::Complete(length)
        }
        _ => Reading::Nothing,
    }
}

/// `[f(a='x', b=[1, True]), g()]`, the brackets not needed.
fn python_calls(text: &str) -> Option<Vec<Call>> {
    let text = text.strip_prefix('[').unwrap_or(text);
    let mut rest = text.strip_suffix(']').unwrap_or(text).trim();
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('(')?;
        let name = name.trim();
        let plain = |character: char| character.is_alphanumeric() || "_.-".contains(character);
        if name.is_empty() || !name.chars().all(plain) {
            return None;
        }
        rest = after.trim_start();
        let mut arguments = String::from("{");
        while !rest.starts_with(')') {
            let (key, value) = rest.split_once('=')?;
            let (value, after) = literal(value.trim_start())?;
            if arguments.len() > 1 {
                arguments.push_str(", ");
            }
            arguments.push_str(&format!("\"{}\": {value}", super::partial_json::escaped(key.trim())));
            rest = after.trim_start();
            rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
            if rest.is_empty() {
                return None;
            }
        }
        arguments.push('}');
        calls.push(Call { name: name.to_owned(), arguments });
        rest = rest[1..].trim_start();
        rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
    }
    Some(calls)
}

/// A Python literal as JSON, and what follows it. Brackets are copied, so nothing recurses.
fn literal(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut depth = 0_usize;
    let mut rest = text;
    loop {
        let next = rest.chars().next()?;
        match next {
            '\'' | '"' => {
                let (string, after) = quoted(rest, next)?;
                out.push_str(&string);
                rest = after;
            }
            '[' | '{' | '(' => {
                depth += 1;
                out.push(if next == '(' { '[' } else { next });
                rest = &rest[1..];
            }
            ']' | '}' | ')' if depth > 0 => {
                depth -= 1;
                out.push(if next == ')' { ']' } else { next });
                rest = &rest[1..];
            }
            ',' | ':' if depth > 0 => {
                out.push(next);
                rest = &rest[1..];
            }
            _ if next.is_whitespace() => {
                rest = rest.trim_start();
                continue;
            }
            _ => {
                let length = rest.find(|end: char| ",:)]}".contains(end) || end.is_whitespace())?;
                let word = &rest[..length];
                out.push_str(match word {
                    "True" | "true" => "true",
                    "False" | "false" => "false",
                    "None" | "null" => "null",
                    number => serde_json::from_str::<serde_json::Number>(number).ok().map(|_| number)?,
                });
                rest = &rest[length..];
            }
        }
        if depth == 0 {
            return serde_json::from_str::<serde_json::Value>(&out).ok().map(|_| (out, rest));
        }
    }
}

/// A quoted text as JSON, and what follows it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut plain = String::new();
    let mut characters = text[1..].char_indices();
    while let Some((place, next)) = characters.next() {
        match next {
            '\\' => plain.push(match characters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let (digits, _) = characters.as_str().split_at_checked(4)?;
                    characters.nth(3)?;
                    char::from_u32(u32::from_str_radix(digits, 16).ok()?)
                        .unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                other => other,
            }),
            _ if next == quote => {
                return Some((format!("\"{}\"", super::partial_json::escaped(&plain)), &text[place + 2..]));
            }
            _ => plain.push(next),
        }
    }
    None
}

/// A value of this schema as Python writes it. Strings may have single quotes, which says nothing of their length or
/// pattern.
fn value(schema: &Value) -> Form {
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => Form::Any(vec![text("True"), text("False")]),
        Some("null") => text("None"),
        Some("string") => match super::form::choices(schema) {
            Some(texts) => {
                let quoted = |word: String| [text(format!("'{word}'")), text(format!("\"{word}\""))];
                Form::Any(texts.into_iter().flat_map(quoted).collect())
            }
            None => Form::Any(vec![Form::Json(schema.clone()), Form::Quoted]),
        },
        _ => Form::Json(schema.clone()),
    }
}
