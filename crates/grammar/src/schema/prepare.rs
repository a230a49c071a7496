//! Checks a schema and rewrites it: remarks are left out, patterns are in the other syntax, and what is referred
//! to lies in one list of definitions.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::keywords::{FORMATS, FORMATS_REFUSED, Kind, TYPES, kind, restricts};
use super::unique::{self, Unique};
use super::{bounds, pattern, references, refused, within};
use crate::GrammarError;

/// Schemas within each other.
const MOST_NESTING: usize = 100;
/// Places in a schema, those referred to included.
const MOST_PLACES: usize = 50_000;
/// Largest count of a keyword like `maxLength`.
const MOST_COUNT: u64 = 1_000_000;

/// Keywords of bounds.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// A schema that was checked.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) root: Value,
    pub(crate) definitions: Map<String, Value>,
    /// Where each definition was.
    pub(crate) pointers: HashMap<String, String>,
}

/// Checks a schema; the error names the keyword that cannot be enforced.
pub fn prepare(schema: &Value) -> Result<(), GrammarError> {
    rewrite(schema, false).map(|_| ())
}

/// Checks and rewrites a schema. If it is `loose`, what cannot be enforced is left out.
pub(crate) fn rewrite(schema: &Value, loose: bool) -> Result<Prepared, GrammarError> {
    let (names, steps) = (HashMap::new(), bounds::Steps::default());
    let mut preparer = Preparer { root: schema, names, queue: Vec::new(), places: 0, steps, loose };
    let root = preparer.schema(schema, "#", false, 0)?;
    let mut prepared = Prepared { root, ..Prepared::default() };
    // What is referred to may refer to more.
    while let Some(job) = preparer.queue.pop() {
        let value = preparer.schema(job.value, &job.pointer, job.joined, 0)?;
        prepared.definitions.insert(job.name.clone(), value);
        prepared.pointers.insert(job.name, job.pointer);
    }
    no_circles(&prepared)?;
    Ok(prepared)
}

struct Job<'a> {
    name: String,
    value: &'a Value,
    pointer: String,
    joined: bool,
}

struct Preparer<'a> {
    root: &'a Value,
    /// Names of the definitions by the pointer to them and whether they are joined.
    names: HashMap<(String, bool), String>,
    queue: Vec<Job<'a>>,
    places: usize,
    /// Steps of numbers that may hold beside each other.
    steps: bounds::Steps,
    /// What cannot be enforced is left out.
    loose: bool,
}

impl<'a> Preparer<'a> {
    /// Rewrites one schema. `joined`: it holds together with others, so more properties than its own may occur.
    fn schema(
        &mut self,
        value: &'a Value,
        pointer: &str,
        joined: bool,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        self.places += 1;
        if depth > MOST_NESTING || self.places > MOST_PLACES {
            let (what, found, most) = match depth > MOST_NESTING {
                true => ("schemas within each other", depth, MOST_NESTING),
                false => ("parts", self.places, MOST_PLACES),
            };
            return Err(GrammarError::TooLarge { what, found, most });
        }
        let members = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(members) => members,
            _ if self.loose => return Ok(json!(true)),
            _ => return Err(refused(pointer, "a schema is an object, true or false")),
        };
        let different = members.get("uniqueItems") == Some(&Value::Bool(true));
        let unique = different.then(|| unique::find(self.root, members)).flatten();
        let has = |name: &str| members.contains_key(name);
        // Properties beside alternatives: both hold, so neither may forbid what the other allows.
        let shared = has("properties") || has("allOf") || has("$ref");
        let (mut rewritten, mut dropped) = (Map::new(), Vec::new());
        for (name, value) in members {
            let Some(kind) = kind(name) else { continue };
            if name == "uniqueItems" && unique.is_some() {
                continue;
            }
            let place = within(pointer, name);
            let inner = match kind {
                Kind::Alternatives => joined || shared,
                Kind::Divisor => joined || members.keys().any(|name| kind_joins(name)),
                Kind::All => true,
                Kind::Reference => joined || members.keys().filter(|name| restricts(name)).count() > 1,
                _ => false,
            };
            match self.keyword(kind, name, value, &place, inner, depth) {
                // Alternatives that can hold at once are told from each other by nobody.
                Ok(Some(value)) if self.loose && name == "oneOf" && !has("anyOf") => {
                    rewritten.insert("anyOf".into(), value);
                }
                Ok(Some(value)) => drop(rewritten.insert(name.clone(), value)),
                Ok(None) => {}
                Err(GrammarError::Schema { .. }) if self.loose => dropped.push(name.as_str()),
                Err(error) => return Err(error),
            }
        }
        match bounds::check(&mut rewritten, pointer) {
            Err(_) if self.loose => BOUNDS.iter().for_each(|name| drop(rewritten.remove(*name))),
            checked => checked?,
        }
        if let Some(Unique::One(all)) = unique {
            unique::TAKEN.iter().for_each(|name| drop(rewritten.remove(*name)));
            rewritten.insert("anyOf".into(), Value::Array(all));
        }
        if dropped
            .iter()
            .any(|name| ["properties", "patternProperties", "additionalProperties"].contains(name))
        {
            // Others may be what was left out, so none is forbidden.
            rewritten.insert("additionalProperties".into(), json!(true));
        }
        // What names its properties allows no others, unless it says so or is only a part of something.
        let closed = has("properties")
            && !["additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"]
                .iter()
                .any(|name| has(name));
        if closed && !joined && !rewritten.contains_key("additionalProperties") {
            rewritten.insert("additionalProperties".into(), json!(false));
        }
        Ok(Value::Object(rewritten))
    }

    /// The rewritten value of a keyword; nothing if it restricts nothing.
    fn keyword(
        &mut self,
        kind: Kind,
        name: &str,
        value: &'a Value,
        place: &str,
        joined: bool,
        depth: usize,
    ) -> Result<Option<Value>, GrammarError> {
        let wrong = |expected: &str| Err(refused(place, format!("expected {expected}")));
        Ok(Some(match kind {
            Kind::Definitions => return Ok(None),
            Kind::Refused if is_harmless(name, value) => return Ok(None),
            Kind::Refused if name == "uniqueItems" => return Err(refused(place, unique::PROBLEM)),
            Kind::Refused => return Err(refused(place, format!("\"{name}\" is not supported"))),
            Kind::Schema => self.schema(value, place, false, depth + 1)?,
            Kind::Schemas => self.schemas(name, value, place, depth)?,
            Kind::Items if !value.is_array() => self.schema(value, place, false, depth + 1)?,
            Kind::All | Kind::Alternatives | Kind::Items => self.list(kind, value, place, joined, depth)?,
            Kind::Count => json!(count(value, place)?),
            Kind::Bound if value.is_number() || value.is_boolean() => value.clone(),
            Kind::Bound => return wrong("a number"),
            Kind::Divisor => {
                self.steps.check(value, place, joined)?;
                value.clone()
            }
            Kind::Pattern => {
                let Some(text) = value.as_str() else { return wrong("a text") };
                json!(pattern::rewrite(text).map_err(|problem| refused(place, problem))?)
            }
            Kind::Format => match value.as_str() {
                Some(format) if FORMATS.contains(&format) => value.clone(),
                Some(format) if FORMATS_REFUSED.contains(&format) => {
                    return Err(refused(place, format!("the format \"{format}\" is not supported")));
                }
                Some(_) => return Ok(None),
                None => return wrong("a text"),
            },
            Kind::Type => {
                let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
                match value {
                    Value::Array(names) if !names.is_empty() && names.iter().all(known) => value.clone(),
                    name if known(name) => value.clone(),
                    _ => return wrong(&format!("a type or several, which are {}", TYPES.join(", "))),
                }
            }
            Kind::Names => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => value.clone(),
                _ => return wrong("a list of texts"),
            },
            Kind::Values => match value.as_array() {
                Some(values) if !values.is_empty() => {
                    for (index, value) in values.iter().enumerate() {
                        bounds::check_values(value, &format!("{place}/{index}"))?;
                    }
                    value.clone()
                }
                _ => return wrong("a list of values that is not empty"),
            },
            Kind::Value => {
                bounds::check_values(value, place)?;
                value.clone()
            }
            Kind::Reference => {
                let Some(reference) = value.as_str() else { return wrong("a text") };
                json!(format!("#/$defs/{}", self.reference(reference, place, joined)?))
            }
        }))
    }

    /// An object of schemas.
    fn schemas(
        &mut self,
        name: &str,
        value: &'a Value,
        place: &str,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let Some(members) = value.as_object() else { return Err(refused(place, "expected an object")) };
        let mut rewritten = Map::new();
        for (key, value) in members {
            let place = within(place, key);
            let key = match name {
                "patternProperties" => pattern::rewrite(key).map_err(|problem| refused(&place, problem))?,
                _ => key.clone(),
            };
            rewritten.insert(key, self.schema(value, &place, false, depth + 1)?);
        }
        Ok(Value::Object(rewritten))
    }

    /// A list of schemas, which only `items` may leave empty.
    fn list(
        &mut self,
        kind: Kind,
        value: &'a Value,
        place: &str,
        joined: bool,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let items = value.as_array().filter(|items| !items.is_empty() || kind == Kind::Items);
        let Some(items) = items else {
            return Err(refused(place, "expected a list that is not empty"));
        };
        let mut rewritten = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            rewritten.push(self.schema(item, &format!("{place}/{index}"), joined, depth + 1)?);
        }
        Ok(Value::Array(rewritten))
    }

    /// The name of the definition that a reference means.
    fn reference(&mut self, reference: &str, place: &str, joined: bool) -> Result<String, GrammarError> {
        let (value, pointer) =
            references::find(self.root, reference).map_err(|problem| refused(place, problem))?;
        let count = self.names.len();
        let name = self.names.entry((pointer.clone(), joined)).or_insert_with(|| {
            let name = format!("r{count}");
            self.queue.push(Job { name: name.clone(), value, pointer, joined });
            name
        });
        Ok(name.clone())
    }
}

/// Whether a keyword that is not supported restricts nothing with this value.
fn is_harmless(name: &str, value: &Value) -> bool {
    match (name, value) {
        ("uniqueItems", Value::Bool(on)) => !on,
        ("unevaluatedItems" | "unevaluatedProperties" | "propertyNames", Value::Bool(on)) => *on,
        (name, Value::Object(members)) => members.is_empty() && name.starts_with("depend"),
        _ => false,
    }
}

/// The value of a keyword that counts.
fn count(value: &Value, place: &str) -> Result<u64, GrammarError> {
    let whole = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
    match value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64)) {
        None => Err(refused(place, "expected a whole number from 0 on")),
        Some(count) if count > MOST_COUNT => {
            Err(refused(place, format!("{count} is too large, at most {MOST_COUNT} is possible")))
        }
        Some(count) => Ok(count),
    }
}

/// Whether a keyword has schemas that hold beside what stands with it.
fn kind_joins(name: &str) -> bool {
    matches!(kind(name), Some(Kind::All | Kind::Alternatives | Kind::Reference))
}

/// A definition that is nothing but a reference, and so on back to itself, means nothing.
fn no_circles(prepared: &Prepared) -> Result<(), GrammarError> {
    let next = |name: &str| {
        let members = prepared.definitions.get(name)?.as_object()?;
        let only = members.len() == 1;
        members.get("$ref").filter(|_| only)?.as_str()?.rsplit('/').next()
    };
    for name in prepared.definitions.keys() {
        let mut at = name.as_str();
        for _ in 0..=prepared.definitions.len() {
            match next(at) {
                Some(further) => at = further,
                None => break,
            }
        }
        if next(at).is_some() {
            let pointer = prepared.pointers.get(at).map_or("#", String::as_str);
            return Err(refused(&within(pointer, "$ref"), "the reference leads back to itself"));
        }
    }
    Ok(())
}
