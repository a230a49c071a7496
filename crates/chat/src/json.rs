//! JSON text as Python's `json.dumps` writes it: separators, number format and escapes included.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Nesting deeper than this is an error instead of a stack overflow.
const MAX_DEPTH: usize = 200;
/// Wider indentation than this is an error: it serves only to make text grow without bound.
const MAX_INDENT: usize = 64;

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// The `tojson` filter as transformers defines it:
/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, the last two by name only.
pub(crate) fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let argument = |positional: Option<Value>, name: &str| -> Result<Value, Error> {
        match positional {
            Some(value) => Ok(value),
            None => Ok(named.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let ensure_ascii = argument(ensure_ascii, "ensure_ascii")?.is_true();
    let indent = parse_indent(&argument(indent, "indent")?)?;
    let separators = argument(None, "separators")?;
    let sort_keys = argument(None, "sort_keys")?.is_true();
    named.assert_all_used()?;
    let (item_separator, key_separator) = if separators.is_undefined() || separators.is_none() {
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
    } else {
        let mut pair = separators.try_iter()?;
        match (pair.next(), pair.next()) {
            (Some(item), Some(key)) => (item.to_string(), key.to_string()),
            _ => return Err(invalid("tojson: separators must hold two strings")),
        }
    };
    let style = Style { ensure_ascii, sort_keys, indent, item_separator, key_separator };
    let mut out = String::new();
    write_value(&mut out, value, &style, 0, state)?;
    Ok(Value::from(out))
}

/// The `from_json` filter: a string of JSON becomes a value, other values stay.
pub(crate) fn from_json(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        None => Ok(value.clone()),
        Some(text) => serde_json::from_str::<serde_json::Value>(text)
            .map(|parsed| Value::from(minijinja::value::Serde(parsed)))
            .map_err(|error| invalid(format!("from_json: {error}"))),
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn parse_indent(value: &Value) -> Result<Option<String>, Error> {
    if value.is_undefined() || value.is_none() {
        return Ok(None);
    }
    if let Some(text) = value.as_str() {
        return Ok(Some(text.chars().take(MAX_INDENT).collect()));
    }
    let width = i64::try_from(value.clone())?.max(0);
    match usize::try_from(width) {
        Ok(width) if width <= MAX_INDENT => Ok(Some(" ".repeat(width))),
        _ => Err(invalid(format!("tojson: indent {width} is more than {MAX_INDENT}"))),
    }
}

fn write_value(
    out: &mut String,
    value: &Value,
    style: &Style,
    depth: usize,
    state: &State,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("tojson: more than {MAX_DEPTH} nested values")));
    }
    state.consume_fuel(1)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            state.consume_fuel(text.len() as u64 / 64)?;
            write_string(out, text, style.ensure_ascii);
        }
        ValueKind::Seq => {
            let items = value.try_iter()?.map(Ok);
            write_items(out, ('[', ']'), items, style, depth, |out, item: Value| {
                write_value(out, &item, style, depth + 1, state)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_items(out, ('{', '}'), keys.into_iter().map(Ok), style, depth, |out, key: Value| {
                write_key(out, &key, style)?;
                out.push_str(&style.key_separator);
                write_value(out, &value.get_item(&key)?, style, depth + 1, state)
            })?;
        }
        kind => return Err(invalid(format!("tojson: a value of kind {kind} is not JSON serializable"))),
    }
    Ok(())
}

fn write_items<I>(
    out: &mut String,
    (open, close): (char, char),
    items: I,
    style: &Style,
    depth: usize,
    mut write_item: impl FnMut(&mut String, Value) -> Result<(), Error>,
) -> Result<(), Error>
where
    I: Iterator<Item = Result<Value, Error>>,
{
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    };
    out.push(open);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(&style.item_separator);
        }
        empty = false;
        new_line(out, depth + 1);
        write_item(out, item?)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_key(out: &mut String, key: &Value, style: &Style) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_string(out, key.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::None => out.push_str("\"null\""),
        ValueKind::Bool => out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
        ValueKind::Number => {
            out.push('"');
            write_number(out, key)?;
            out.push('"');
        }
        kind => return Err(invalid(format!("tojson: keys must be strings or numbers, not {kind}"))),
    }
    Ok(())
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&python_float(f64::try_from(value.clone())?));
    }
    Ok(())
}

/// Python's `repr` of a float, with JSON's spelling of the non-finite ones.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{value:?}"),
    }
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => push_unicode_escape(out, character as u16),
            '\u{7f}'.. if ensure_ascii && character != '\u{7f}' => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    push_unicode_escape(out, *unit);
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

fn push_unicode_escape(out: &mut String, unit: u16) {
    out.push_str(&format!("\\u{unit:04x}"));
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456789.125, "123456789.125"),
            (f64::INFINITY, "Infinity"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_float(value), expected);
        }
    }
}
