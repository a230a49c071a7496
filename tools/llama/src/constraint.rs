//! The grammar that the flags ask for.

use crate::failure::Failure;
use crate::files;
use crate::invocation::Invocation;
use puna_flags::GrammarSource;
use puna_grammar::{Grammar, GrammarError, Tokens, prepare_schema};
use serde_json::Value;
use std::sync::Arc;

/// A grammar that was read, and checked as far as that goes without a model.
pub enum Source {
    /// GBNF or Lark.
    Text(String),
    /// A JSON schema.
    Schema(Value),
}

/// How an error of the grammar ends the program: it is a wrong command line if the grammar stands there.
fn refused(invocation: &Invocation, source: &GrammarSource, error: &dyn std::fmt::Display) -> Failure {
    match source {
        GrammarSource::Text(_) => invocation.usage(format!("--grammar: {error}")),
        GrammarSource::Schema(_) => invocation.usage(format!("--json-schema: {error}")),
        GrammarSource::File(path) | GrammarSource::SchemaFile(path) => {
            Failure::Failed(format!("{}: {error}", path.display()))
        }
    }
}

/// Reads the grammar; before a model is loaded, so that mistakes show at once.
pub fn read(invocation: &Invocation, source: &GrammarSource) -> Result<Source, Failure> {
    let schema = |text: &str| {
        let schema: Value =
            serde_json::from_str(text).map_err(|error| refused(invocation, source, &error))?;
        prepare_schema(&schema).map_err(|error| refused(invocation, source, &error))?;
        Ok(Source::Schema(schema))
    };
    match source {
        GrammarSource::Text(text) => Ok(Source::Text(text.clone())),
        GrammarSource::File(path) => Ok(Source::Text(files::read_text(path, files::SMALL)?)),
        GrammarSource::Schema(text) => schema(text),
        GrammarSource::SchemaFile(path) => schema(&files::read_text(path, files::SMALL)?),
    }
}

/// Compiles what was read.
pub fn compile(source: &Source, tokens: &Arc<Tokens>) -> Result<Grammar, GrammarError> {
    match source {
        Source::Text(text) => Grammar::new(text, tokens),
        Source::Schema(schema) => Grammar::json_schema(schema, tokens),
    }
}

/// The grammar of the flags for a model's tokens, which are made only if there is one.
pub fn grammar(
    invocation: &Invocation,
    source: Option<&GrammarSource>,
    tokens: impl FnOnce() -> Arc<Tokens>,
) -> Result<Option<Grammar>, Failure> {
    let Some(source) = source else { return Ok(None) };
    let read = read(invocation, source)?;
    compile(&read, &tokens()).map(Some).map_err(|error| refused(invocation, source, &error))
}
