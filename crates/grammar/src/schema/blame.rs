//! Finds the keyword because of which a schema does not compile: the smallest part that does not, and in it
//! the keyword without which it does.

use serde_json::Value;

use super::keywords::{Kind, kind};
use super::prepare::Prepared;
use super::{compile_prepared, refused, within};
use crate::{GrammarError, Tokens};

/// Parts that are tried.
const MOST_TRIES: usize = 400;

/// The error for a schema that did not compile because of `problem`.
pub(crate) fn find(prepared: &Prepared, problem: String, tokens: &Tokens) -> GrammarError {
    let mut tries = MOST_TRIES;
    let mut compile = |value: &Value| {
        tries = tries.saturating_sub(1);
        match tries {
            0 => Ok(()),
            _ => compile_prepared(value.clone(), &prepared.definitions, tokens).map(|_| ()),
        }
    };
    let mut parts = vec![(&prepared.root, "#".to_owned())];
    let definitions = prepared.definitions.iter();
    parts.extend(definitions.filter_map(|(name, value)| Some((value, prepared.pointers.get(name)?.clone()))));
    // From the outside to the inside, so that the last failing one is the smallest.
    let mut found = ("#".to_owned(), &prepared.root, problem.clone());
    let mut index = 0;
    while let Some((part, pointer)) = parts.get(index).cloned() {
        index += 1;
        let failure = match index {
            1 => Some(problem.clone()),
            _ => compile(part).err(),
        };
        let Some(failure) = failure else { continue };
        if failure == problem || found.2 != problem {
            found = (pointer.clone(), part, failure);
        }
        // Only in what fails there is something that fails.
        let inside = children(part, &pointer);
        parts.splice(index..index, inside);
    }
    let (pointer, part, problem) = found;
    for (name, _) in part.as_object().into_iter().flatten() {
        let mut without = part.clone();
        if let Value::Object(members) = &mut without {
            members.remove(name);
        }
        if name != "type" && compile(&without).is_ok() {
            return refused(&within(&pointer, name), problem);
        }
    }
    refused(&pointer, problem)
}

/// The schemas in a schema.
fn children<'a>(part: &'a Value, pointer: &str) -> Vec<(&'a Value, String)> {
    let mut all = Vec::new();
    for (name, value) in part.as_object().into_iter().flatten() {
        let place = within(pointer, name);
        match kind(name) {
            Some(Kind::Schema) => all.push((value, place)),
            Some(Kind::Schemas) => {
                let members = value.as_object().into_iter().flatten();
                all.extend(members.map(|(name, value)| (value, within(&place, name))));
            }
            Some(Kind::All | Kind::Alternatives | Kind::Items) => match value {
                Value::Array(items) => {
                    let items = items.iter().enumerate();
                    all.extend(items.map(|(index, value)| (value, format!("{place}/{index}"))));
                }
                single => all.push((single, place)),
            },
            _ => {}
        }
    }
    // A part that allows nothing is no fault where nothing needs it.
    all.retain(|(value, _)| value.is_object());
    all
}
