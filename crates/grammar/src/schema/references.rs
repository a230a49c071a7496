//! References within a schema: `#`, `#/a/b/0`, `#name`, and the schema's own address before these.

use serde_json::Value;

/// The place that a reference names, and its pointer.
pub(crate) fn find<'a>(root: &'a Value, reference: &str) -> Result<(&'a Value, String), String> {
    let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    let own = ["$id", "id"].iter().filter_map(|name| root.get(name)?.as_str()).any(|id| {
        let id = id.trim_end_matches('#');
        id == address || (!address.is_empty() && id.ends_with(&format!("/{address}")))
    });
    if !address.is_empty() && !own {
        return Err(match root_with_id(root, address) {
            Some(found) if fragment.is_empty() => return Ok(found),
            _ => format!("{reference:?} lies outside of the schema; only references within it are followed"),
        });
    }
    if fragment.is_empty() {
        return Ok((root, "#".into()));
    }
    if !fragment.starts_with('/') {
        return anchor(root, fragment).ok_or_else(|| format!("there is no anchor {fragment:?}"));
    }
    let mut at = root;
    let mut pointer = "#".to_owned();
    for part in fragment.split('/').skip(1) {
        let name = decode(part);
        let next = match at {
            Value::Array(items) => name.parse::<usize>().ok().and_then(|index| items.get(index)),
            other => other.get(&name),
        };
        at =
            next.ok_or_else(|| format!("{reference:?} does not exist: there is no {name:?} in {pointer}"))?;
        pointer = super::within(&pointer, &name);
    }
    Ok((at, pointer))
}

/// `%2F` is `/`, `~1` is `/` and `~0` is `~`.
fn decode(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let hex = others.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = others.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

fn anchor<'a>(root: &'a Value, name: &str) -> Option<(&'a Value, String)> {
    search(root, &|value| {
        let is = |key: &str, wanted: &str| value.get(key).and_then(Value::as_str) == Some(wanted);
        is("$anchor", name) || is("$id", &format!("#{name}")) || is("id", &format!("#{name}"))
    })
}

fn root_with_id<'a>(root: &'a Value, address: &str) -> Option<(&'a Value, String)> {
    search(root, &|value| value.get("$id").and_then(Value::as_str) == Some(address))
}

/// The first place for which `wanted` is true, outermost first.
fn search<'a>(root: &'a Value, wanted: &dyn Fn(&Value) -> bool) -> Option<(&'a Value, String)> {
    let mut work = std::collections::VecDeque::from([(root, "#".to_owned())]);
    while let Some((value, pointer)) = work.pop_front() {
        match value {
            Value::Object(_) if wanted(value) => return Some((value, pointer)),
            Value::Object(members) => {
                work.extend(members.iter().map(|(name, value)| (value, super::within(&pointer, name))));
            }
            Value::Array(items) => {
                let named = items.iter().enumerate();
                work.extend(named.map(|(index, value)| (value, format!("{pointer}/{index}"))));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn places_are_found() {
        let root = json!({
            "$id": "https://example.com/schemas/tree",
            "properties": { "a/b": { "anyOf": [1, { "$anchor": "here" }] }, "c~d e": 2 },
            "$defs": { "other": { "$id": "other", "x": 3 } },
        });
        let pointer = |reference: &str| find(&root, reference).map(|(_, pointer)| pointer);
        assert_eq!(pointer("#"), Ok("#".into()));
        assert_eq!(pointer("#/properties/a~1b/anyOf/0"), Ok("#/properties/a~1b/anyOf/0".into()));
        assert_eq!(pointer("#/properties/c~0d%20e"), Ok("#/properties/c~0d e".into()));
        assert_eq!(pointer("#here"), Ok("#/properties/a~1b/anyOf/1".into()));
        assert_eq!(pointer("https://example.com/schemas/tree#/$defs"), Ok("#/$defs".into()));
        assert_eq!(pointer("tree#/$defs"), Ok("#/$defs".into()));
        assert_eq!(pointer("other"), Ok("#/$defs/other".into()));
        for wrong in
            ["#/nothing", "#/properties/a~1b/anyOf/7", "#nowhere", "https://example.com/else", "#/x/%"]
        {
            assert!(pointer(wrong).is_err(), "{wrong}");
        }
        assert!(pointer("https://example.com/else").unwrap_err().contains("outside"));
    }
}
