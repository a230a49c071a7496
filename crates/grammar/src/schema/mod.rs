//! JSON schemas: checking and rewriting them for llguidance ([`prepare`]), compiling, and finding the keyword to
//! blame when that fails.

mod blame;
mod bounds;
mod keywords;
mod pattern;
mod prepare;
mod references;
mod unique;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

pub use prepare::prepare;

pub(crate) use bounds::is_safe;

use crate::guided::{self, Guided};
use crate::{GrammarError, Tokens};

/// Blanks that may stand between the parts of a JSON text: none, one, or a line break with an indentation. Not
/// any number, which models tend to use up.
const BLANKS: &str = r" |\n{1,2}[ \t]{0,20}";

/// Compiles a schema.
pub(crate) fn compile(schema: &Value, tokens: &Tokens) -> Result<Guided, GrammarError> {
    let prepared = prepare::rewrite(schema, false)?;
    compile_prepared(prepared.root.clone(), &prepared.definitions, tokens)
        .map_err(|problem| blame::find(&prepared, problem, tokens))
}

/// The schema as `%json` of a Lark grammar has it. Its parts are schemas too, with `$defs` and `x-guidance` of the whole.
/// If it is `loose`, what cannot be enforced is left out, so that more is allowed than the schema does.
pub fn lark(schema: &Value, loose: bool) -> Result<Value, GrammarError> {
    let prepared = prepare::rewrite(schema, loose)?;
    let whole = assemble(prepared.root, &prepared.definitions);
    whole.map(Value::Object).map_err(|problem| refused("#", problem))
}

/// Compiles a part of a rewritten schema.
fn compile_prepared(
    root: Value,
    definitions: &Map<String, Value>,
    tokens: &Tokens,
) -> Result<Guided, String> {
    let members = assemble(root, definitions)?;
    let compiled = guided::compile(TopLevelGrammar::from_json_schema(Value::Object(members)), tokens);
    compiled.map_err(|problem| in_our_words(&problem))
}

/// A message of the library as somebody needs it who knows the schema only.
fn in_our_words(problem: &str) -> String {
    if problem.contains("oneOf constraints are not supported") {
        return "more than one of the alternatives can be true at once, which cannot be ruled out: tell them apart by a \
                property that each requires with another \"const\", or use \"anyOf\""
            .into();
    }
    match problem.strip_prefix("Unsatisfiable schema: ") {
        Some(reason) => format!("nothing can satisfy it: {reason}"),
        None => problem.to_owned(),
    }
}

/// A part of a rewritten schema with all that it needs.
fn assemble(root: Value, definitions: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut members = match root {
        Value::Object(members) => members,
        Value::Bool(true) => Map::new(),
        _ => return Err("nothing is allowed".into()),
    };
    if !definitions.is_empty() {
        members.insert("$defs".into(), Value::Object(definitions.clone()));
    }
    members.insert("x-guidance".into(), json!({ "whitespace_pattern": BLANKS }));
    Ok(members)
}

/// The error for a keyword.
fn refused(pointer: &str, problem: impl Into<String>) -> GrammarError {
    GrammarError::Schema { pointer: pointer.to_owned(), problem: problem.into() }
}

/// A pointer with one more part.
fn within(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}
