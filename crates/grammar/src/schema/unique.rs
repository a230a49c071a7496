//! `uniqueItems`, as far as it can be enforced: where the items are some of a few values, all arrangements of them are written
//! out. Nothing keeps account of what free items were.

use serde_json::{Map, Value, json};

use super::keywords::restricts;
use super::references;

/// Arrangements that are written out: those of five values, or of 19 of which two may be there. Each takes three places of
/// the 2,000 that the library has for what can come next.
const MOST_ARRANGEMENTS: usize = 360;
/// References that lead to the items.
const MOST_REFERENCES: usize = 16;

/// Why it is refused elsewhere.
pub(super) const PROBLEM: &str = "\"uniqueItems\" can be enforced where \"type\" is \"array\" and \"items\" lists a few values \
                                  (\"enum\", at most 360 arrangements); leave it out, and say it in the description";

/// What takes the place of a schema with `uniqueItems`.
pub(super) enum Unique {
    /// Whatever else it says: there is no list of two items.
    Free,
    /// One of these schemas, besides whatever else it says about other things than items.
    One(Vec<Value>),
}

/// Keywords of lists that [`Unique::One`] has taken in.
pub(super) const TAKEN: &[&str] = &["type", "items", "minItems", "maxItems", "uniqueItems"];

/// What `uniqueItems` demands in this schema; nothing if that cannot be enforced.
pub(super) fn find(root: &Value, members: &Map<String, Value>) -> Option<Unique> {
    let count = |name: &str, otherwise: u64| members.get(name).map_or(Some(otherwise), Value::as_u64);
    let most = count("maxItems", u64::MAX)?;
    let types: Vec<&str> = match members.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if most <= 1 || (members.contains_key("type") && !types.contains(&"array")) {
        return Some(Unique::Free);
    }
    let least = count("minItems", 0)?;
    // Without a type other things than lists are allowed; and what else restricts lists is not taken in.
    let others = members.keys().any(|name| restricts(name) && !TAKEN.contains(&name.as_str()));
    if types.is_empty() || others {
        return None;
    }
    let values = values(root, members.get("items")?)?;
    let most = most.min(values.len() as u64) as usize;
    let mut count = 1usize;
    for taken in 0..most {
        count = count.checked_mul(values.len() - taken).filter(|count| *count <= MOST_ARRANGEMENTS)?;
    }
    let mut all: Vec<Value> =
        types.iter().filter(|name| **name != "array").map(|name| json!({ "type": name })).collect();
    let mut chosen = Vec::new();
    arrange(&values, most, &mut chosen, &mut |chosen| {
        let items: Vec<Value> = chosen.iter().map(|index| json!({ "const": values[*index] })).collect();
        all.push(json!({ "type": "array", "prefixItems": items, "items": false, "minItems": least }));
    });
    Some(Unique::One(all))
}

/// Hands over every way to put `most` of the values one after another.
fn arrange(values: &[Value], most: usize, chosen: &mut Vec<usize>, take: &mut dyn FnMut(&[usize])) {
    if chosen.len() == most {
        return take(chosen);
    }
    for index in 0..values.len() {
        if !chosen.contains(&index) {
            chosen.push(index);
            arrange(values, most, chosen, take);
            chosen.pop();
        }
    }
}

/// All values that a schema allows, each once, if these are listed.
fn values(root: &Value, schema: &Value) -> Option<Vec<Value>> {
    let mut schema = schema;
    for _ in 0..MOST_REFERENCES {
        let members = schema.as_object()?;
        let restricting = || members.keys().filter(|name| restricts(name));
        match members.get("$ref") {
            Some(reference) if restricting().count() == 1 => {
                schema = references::find(root, reference.as_str()?).ok()?.0
            }
            Some(_) => return None,
            None => {
                if restricting().any(|name| !["type", "enum", "const"].contains(&name.as_str())) {
                    return None;
                }
                let listed = match (members.get("enum"), members.get("const")) {
                    (Some(Value::Array(values)), None) => values.clone(),
                    (None, Some(value)) => vec![value.clone()],
                    (None, None) if members.get("type")? == "boolean" => vec![json!(true), json!(false)],
                    (None, None) if members.get("type")? == "null" => vec![Value::Null],
                    _ => return None,
                };
                return distinct(listed, members.get("type"));
            }
        }
    }
    None
}

/// Those of the values that have this type, each once. Lists and objects can be equal in more than one way of writing.
fn distinct(values: Vec<Value>, kind: Option<&Value>) -> Option<Vec<Value>> {
    let mut all: Vec<Value> = Vec::new();
    for value in values {
        let names: &[&str] = match &value {
            Value::Null => &["null"],
            Value::Bool(_) => &["boolean"],
            Value::String(_) => &["string"],
            Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => {
                &["number", "integer"]
            }
            Value::Number(_) => &["number"],
            Value::Array(_) | Value::Object(_) => return None,
        };
        let fits = match kind {
            None => true,
            Some(Value::String(name)) => names.contains(&name.as_str()),
            Some(Value::Array(kinds)) => {
                kinds.iter().any(|name| name.as_str().is_some_and(|name| names.contains(&name)))
            }
            Some(_) => return None,
        };
        let same = |other: &Value| match (other.as_f64(), value.as_f64()) {
            (Some(other), Some(value)) => other == value,
            _ => *other == value,
        };
        if fits && !all.iter().any(same) {
            all.push(value);
        }
    }
    Some(all)
}
