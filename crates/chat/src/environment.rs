//! The template engine set up as transformers sets up Jinja2: whitespace rules, filters, tests, functions, limits.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::{generator, json, markup, weight};

/// Name under which the one template of an environment is stored.
pub(crate) const TEMPLATE_NAME: &str = "chat";

/// A template's own refusal, carried through the engine's error type.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// An environment without templates.
pub(crate) fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_debug(true);
    environment.set_unknown_method_callback(call_method);
    // `'%d' | format` pads to any width before it pays for it; no chat template needs it.
    environment.remove_filter("format");
    // Pretty-printers take time beyond their steps on nested values, and no chat template needs them.
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("from_json", json::from_json);
    generator::register(&mut environment);
    markup::register(&mut environment);
    weight::register(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    // Python's types differ from the engine's: strings and mappings are sequences too, booleans are numbers.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
        )
    });
    environment
        .add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    Ok(environment)
}

/// Python's methods. `str.format` pads to any width before it pays for it, so wide fields are refused.
fn call_method(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    if method == "format"
        && let Some(text) = value.as_str()
    {
        let fields = text.split('{').skip(1).map(|rest| rest.split('}').next().unwrap_or(""));
        let wide = |field: &str| field.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4);
        // A field inside a field takes its width from an argument.
        if text.contains(":{") || fields.into_iter().any(wide) {
            return Err(Error::new(ErrorKind::InvalidOperation, "format: a field is too wide"));
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}
