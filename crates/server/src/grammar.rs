//! What an answer has to follow: `grammar`, `json_schema`, `response_format`, and the triggers of lazy grammars.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use puna_grammar::{Grammar, GrammarError, Token, Tokens, Trigger};
use puna_tokenizer::{Kind, Tokenizer};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};

/// Compiled grammars that are remembered: clients send the same one again and again.
const REMEMBERED: usize = 32;

/// The tokens of a model as grammars see them.
pub fn grammar_tokens(tokenizer: &Tokenizer) -> Arc<Tokens> {
    let vocabulary = tokenizer.vocabulary();
    let token = |id: u32| {
        let kind = vocabulary.kind(id);
        Token {
            bytes: match kind {
                Some(Kind::Unused | Kind::Unknown) => Vec::new(),
                _ => tokenizer.piece(id, true),
            },
            control: kind == Some(Kind::Control),
            end: vocabulary.is_end_of_generation(id),
        }
    };
    Tokens::new((0..vocabulary.len() as u32).map(token).collect())
}

/// The model's tokens and the grammars compiled last.
#[derive(Default)]
pub struct Grammars {
    tokens: OnceLock<Arc<Tokens>>,
    /// By what was asked for, the latest last.
    compiled: Mutex<Vec<(Source, Grammar)>>,
}

/// What a grammar is made of.
#[derive(Clone, PartialEq, Debug)]
enum Source {
    Text(String),
    Schema(Value),
    /// A grammar made for calls.
    Calls(String),
}

impl Grammars {
    /// The grammar of a Lark text for calls.
    pub fn calls(&self, tokenizer: &Tokenizer, text: String) -> Result<Grammar, GrammarError> {
        self.get(tokenizer, Source::Calls(text))
    }

    /// The model's tokens, made when they are first needed.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> &Arc<Tokens> {
        self.tokens.get_or_init(|| grammar_tokens(tokenizer))
    }

    fn get(&self, tokenizer: &Tokenizer, source: Source) -> Result<Grammar, GrammarError> {
        let locked = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut compiled = locked();
            if let Some(index) = compiled.iter().position(|(known, _)| *known == source) {
                let entry = compiled.remove(index);
                let grammar = entry.1.clone();
                compiled.push(entry);
                return Ok(grammar);
            }
        }
        let tokens = self.tokens(tokenizer);
        // Not while the lock is held: others need not wait for a large schema.
        let grammar = match &source {
            Source::Text(text) => Grammar::new(text, tokens)?,
            Source::Schema(schema) => Grammar::json_schema(schema, tokens)?,
            Source::Calls(text) => Grammar::lark(text, tokens)?,
        };
        let mut compiled = locked();
        if compiled.len() >= REMEMBERED {
            compiled.remove(0);
        }
        compiled.push((source, grammar.clone()));
        Ok(grammar)
    }
}

/// What the answer to a request has to follow, and how the settings say it.
pub fn grammar(app: &App, fields: &Fields) -> ApiResult<(Option<Grammar>, Map<String, Value>)> {
    let mut shown = Map::new();
    let Some((name, source)) = source(fields)? else {
        return Ok((app.served.defaults.grammar.clone(), shown));
    };
    if fields.get(&["tools"]).is_some_and(|(_, tools)| tools.as_array().is_none_or(|tools| !tools.is_empty()))
        && name == "grammar"
    {
        return Err(ApiError::invalid("field 'grammar': not together with 'tools'"));
    }
    match &source {
        Source::Text(text) => shown.insert("grammar".into(), json!(text)),
        Source::Schema(schema) => shown.insert("json_schema".into(), schema.clone()),
        Source::Calls(_) => None,
    };
    let refused = |name: &str, error: GrammarError| ApiError::invalid(format!("field '{name}': {error}"));
    let grammar = app.grammars.get(&app.served.tokenizer, source).map_err(|error| refused(&name, error))?;
    if !fields.boolean(&["grammar_lazy"])?.unwrap_or(false) {
        return Ok((Some(grammar), shown));
    }
    let triggers = triggers(fields)?;
    shown.insert("grammar_lazy".into(), json!(true));
    let given = fields.get(&["grammar_triggers"]).map(|(_, value)| value.clone());
    shown.insert("grammar_triggers".into(), given.unwrap_or_default());
    let grammar = grammar.lazy(&triggers).map_err(|error| refused("grammar_triggers", error))?;
    Ok((Some(grammar), shown))
}

/// The schema of `response_format` or `json_schema`, if the request has one.
pub fn schema(fields: &Fields) -> ApiResult<Option<Value>> {
    Ok(source(fields)?.and_then(|(_, source)| match source {
        Source::Schema(schema) => Some(schema),
        Source::Text(_) | Source::Calls(_) => None,
    }))
}

/// The field that says it, and what it says. Of several none could be dropped without the client's knowing.
fn source(fields: &Fields) -> ApiResult<Option<(String, Source)>> {
    let grammar = fields.text(&["grammar"])?.filter(|text| !text.trim().is_empty());
    let grammar = grammar.map(|text| ("grammar".to_owned(), Source::Text(text.to_owned())));
    let schema = fields.get(&["json_schema"]);
    let schema = schema.map(|(name, schema)| (name.to_owned(), Source::Schema(schema.clone())));
    let given = [("grammar", grammar), ("json_schema", schema), ("response_format", format(fields)?)];
    let mut given = given.into_iter().filter_map(|(name, source)| Some((name, source?)));
    match (given.next(), given.next()) {
        (Some((first, _)), Some((second, _))) => Err(ApiError::invalid(format!(
            "fields '{first}' and '{second}' both say what the answer has to follow: give one of them"
        ))),
        (first, _) => Ok(first.map(|(_, source)| source)),
    }
}

/// What `response_format` says.
fn format(fields: &Fields) -> ApiResult<Option<(String, Source)>> {
    let Some(format) = fields.object(&["response_format"])? else { return Ok(None) };
    let schema = |place: &str, schema: Option<&Value>| match schema {
        None | Some(Value::Null) => Err(missing(place)),
        Some(schema) => Ok(Some((place.to_owned(), Source::Schema(schema.clone())))),
    };
    match format.get("type") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(kind)) => match kind.as_str() {
            "text" => Ok(None),
            "json_object" => match format.get("schema") {
                None | Some(Value::Null) => {
                    Ok(Some(("response_format".into(), Source::Schema(json!({ "type": "object" })))))
                }
                given => schema("response_format.schema", given),
            },
            "json_schema" => match (format.get("json_schema"), format.get("schema")) {
                (Some(Value::Object(inner)), _) => {
                    schema("response_format.json_schema.schema", inner.get("schema"))
                }
                (None | Some(Value::Null), None | Some(Value::Null)) => {
                    Err(missing("response_format.json_schema"))
                }
                (None | Some(Value::Null), given) => schema("response_format.schema", given),
                (Some(other), _) => {
                    Err(wrong("response_format.json_schema", other, "an object with a schema"))
                }
            },
            other => Err(ApiError::invalid(format!(
                "field 'response_format': type \"{other}\", expected text, json_object or json_schema"
            ))),
        },
        Some(other) => Err(wrong("response_format", other, "a string as its type")),
    }
}

/// The triggers of a lazy grammar: numbers or names of their types, as the peer has them.
fn triggers(fields: &Fields) -> ApiResult<Vec<Trigger>> {
    let list = fields.list(&["grammar_triggers"])?.filter(|list| !list.is_empty());
    let list =
        list.ok_or_else(|| ApiError::invalid("field 'grammar_triggers' is missing: the grammar is lazy"))?;
    let one = |(index, entry): (usize, &Value)| {
        let place = format!("grammar_triggers[{index}]");
        let value = entry.get("value").and_then(Value::as_str).map(str::to_owned);
        let text = || value.clone().ok_or_else(|| missing(&format!("{place}.value")));
        let kind = match entry.get("type") {
            Some(Value::String(name)) => name.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return Err(missing(&format!("{place}.type"))),
        };
        match kind.as_str() {
            "0" | "token" => {
                let token =
                    entry.get("token").and_then(Value::as_u64).and_then(|token| u32::try_from(token).ok());
                token.map(Trigger::Token).ok_or_else(|| missing(&format!("{place}.token")))
            }
            "1" | "word" => Ok(Trigger::Word(text()?)),
            "2" | "pattern" => Ok(Trigger::Pattern(text()?)),
            "3" | "pattern_full" => Ok(Trigger::WholePattern(text()?)),
            other => Err(ApiError::invalid(format!("field '{place}.type': unknown type \"{other}\""))),
        }
    };
    list.iter().enumerate().map(one).collect()
}
