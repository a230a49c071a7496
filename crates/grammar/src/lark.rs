//! Grammars in llguidance's variant of Lark: what is looked at before the library gets them.

use serde_json::{Deserializer, Value};

use crate::GrammarError;
use crate::schema::is_safe;

/// First word of a grammar's text that is Lark instead of GBNF.
const HEADER: &str = "%llguidance";
/// What comes before a schema.
const SCHEMA: &str = "%json";

/// Whether a grammar's text is Lark.
pub(crate) fn is_lark(text: &str) -> bool {
    text.trim_start().starts_with(HEADER)
}

/// Checks the header, of which the library's messages say little, and the schemas, some of which would end the program.
pub(crate) fn check(text: &str) -> Result<(), GrammarError> {
    let refused = |problem: String| Err(GrammarError::Compile { kind: "Lark grammar", problem });
    if let Some(rest) = text.trim_start().strip_prefix(HEADER) {
        match value(rest) {
            Some(Ok(Value::Object(_))) => {}
            Some(Err(error)) if rest.trim_start().starts_with('{') => {
                return refused(format!(
                    "the options between the braces after {HEADER} are no JSON: {error}"
                ));
            }
            _ => {
                return refused(format!(
                    "after {HEADER} its options have to follow, a JSON object: {HEADER} {{}} for none"
                ));
            }
        }
    }
    for (place, _) in text.match_indices(SCHEMA) {
        let rest = text.get(place + SCHEMA.len()..).unwrap_or_default();
        if value(rest).and_then(Result::ok).is_some_and(|schema| !is_safe(&schema)) {
            let line = text.get(..place).unwrap_or_default().matches('\n').count() + 1;
            return refused(format!("the schema in line {line} has a number that is beyond 64 bits"));
        }
    }
    Ok(())
}

/// The JSON value that a text begins with.
fn value(text: &str) -> Option<serde_json::Result<Value>> {
    Deserializer::from_str(text).into_iter::<Value>().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_schemas() {
        for right in [
            "%llguidance {}\nstart: \"a\"",
            " %llguidance{\"no_forcing\": true}\nstart: \"a\"",
            "start: %json {\"const\": 5}",
            "%llguidance {}\nstart: /%json/",
        ] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for (wrong, part) in [
            ("%llguidance\nstart: \"a\"", "%llguidance {} for none"),
            ("%llguidance", "%llguidance {} for none"),
            ("%llguidancefoo", "%llguidance {} for none"),
            ("%llguidance 5\nstart: \"a\"", "%llguidance {} for none"),
            ("%llguidance {\nstart: \"a\"", "are no JSON: key must be a string at line 2"),
            ("%llguidance {", "are no JSON: EOF"),
            ("%llguidance {}\nstart: %json {\"const\": -9223372036854775808}", "line 2 has a number"),
            ("start: \"a\" %json{\"anyOf\":[{\"minimum\":-1e30}]}", "line 1 has a number"),
        ] {
            let error = check(wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{wrong}: {error}");
        }
    }
}
