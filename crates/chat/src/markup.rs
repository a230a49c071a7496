//! Strings marked `safe`, as Python adds them: what is not marked is escaped for HTML, even where escaping is switched off.
//!
//! The template engine cannot be told how to add values, so sums with a marked operand become calls of a function before
//! a source is compiled. Sums within parentheses or beside other operators are left alone: no template is known to have
//! a marked operand there.

use minijinja::value::Rest;
use minijinja::{Environment, Error, ErrorKind, Value};

/// Name of the function that adds.
const ADD: &str = "add_marked_strings";

/// Makes the function known.
pub(crate) fn register(environment: &mut Environment<'static>) {
    environment.add_function(ADD, add);
}

fn add(operands: Rest<Value>) -> Result<Value, Error> {
    let mut sum: Option<(String, bool)> = None;
    for operand in operands.iter() {
        let Some(text) = operand.as_str() else {
            let message = format!("cannot add a value of type {} to a string", operand.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        };
        sum = Some(match sum {
            None => (text.to_owned(), operand.is_safe()),
            Some((before, false)) if !operand.is_safe() => (before + text, false),
            Some((before, safe)) => {
                let before = if safe { before } else { escaped(&before) };
                let text = if operand.is_safe() { text.to_owned() } else { escaped(text) };
                (before + &text, true)
            }
        });
    }
    Ok(match sum {
        Some((text, true)) => Value::from_safe_string(text),
        Some((text, false)) => Value::from(text),
        None => Value::from(""),
    })
}

/// With the characters that mean something in HTML written as Python's `markupsafe` does.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// The source with such sums as calls. Lines stay where they are.
pub(crate) fn rewrite(source: &str) -> String {
    if !source.contains("safe") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source;
    while let Some(start) = rest.find("{{") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let end = tag_end(tag);
        let (inner, after) = tag.split_at(end);
        let open = inner.len() - inner.trim_start_matches(['-', '+']).len();
        let close = inner.trim_end_matches('-').len().max(open);
        match call(&inner[open..close]) {
            Some(call) => {
                out.push_str(&inner[..open]);
                out.push_str(&call);
                out.push_str(&inner[close..]);
            }
            None => out.push_str(inner),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Where the braces that end a tag are; the end of the source if there are none.
fn tag_end(tag: &str) -> usize {
    let mut end = tag.len();
    scan(tag, |place, depth, _| {
        let ends = depth == 0 && tag[place..].starts_with("}}");
        if ends {
            end = place;
        }
        !ends
    });
    end
}

/// The sum of this expression as a call, if it is nothing but a sum and one of its operands is marked.
fn call(expression: &str) -> Option<String> {
    const OPERATORS: &str = "~-*/%=<>!,";
    const WORDS: &[&str] = &["if", "else", "and", "or", "not", "in", "is"];
    let mut cuts = vec![0];
    let mut plain = true;
    let mut word = String::new();
    scan(expression, |place, depth, character| {
        if depth > 0 {
            return true;
        }
        if character.is_alphanumeric() || character == '_' {
            word.push(character);
            return true;
        }
        plain &= !WORDS.contains(&word.as_str()) && !OPERATORS.contains(character);
        word.clear();
        if character == '+' {
            cuts.push(place);
        }
        plain
    });
    if !plain || cuts.len() < 2 || WORDS.contains(&word.as_str()) {
        return None;
    }
    cuts.push(expression.len());
    let operands: Vec<&str> =
        cuts.windows(2).map(|cut| expression[cut[0]..cut[1]].trim_start_matches('+')).collect();
    let marked = |operand: &&str| {
        operand.trim_end().strip_suffix("safe").is_some_and(|before| before.trim_end().ends_with('|'))
    };
    operands.iter().any(marked).then(|| format!(" {ADD}({}) ", operands.join(",")))
}

/// Visits what lies outside of quotes, with the number of brackets around it, until told to end. The depth of a bracket
/// is that outside of it; quotes themselves are visited with what is between them left out.
fn scan(text: &str, mut visit: impl FnMut(usize, usize, char) -> bool) {
    let mut depth = 0_usize;
    let mut quote = None;
    let mut escaped = false;
    for (place, character) in text.char_indices() {
        if let Some(end) = quote {
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                other if other == end => quote = None,
                _ => {}
            }
            continue;
        }
        if matches!(character, ')' | ']' | '}') {
            if !visit(place, depth, character) {
                return;
            }
            depth = depth.saturating_sub(1);
            continue;
        }
        if !visit(place, depth, character) {
            return;
        }
        match character {
            '(' | '[' | '{' => depth += 1,
            '"' | '\'' => quote = Some(character),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn sums_with_a_marked_operand_become_calls() {
        let cases = [
            (
                "{{ 'a'|safe + b[\"x\"] + c | tojson() }}",
                "{{ add_marked_strings( 'a'|safe , b[\"x\"] , c | tojson() ) }}",
            ),
            ("{{- a + 'b' | safe -}}", "{{- add_marked_strings( a , 'b' | safe ) -}}"),
            ("{{ a | safe }}", "{{ a | safe }}"),
            ("{{ a + b }} safe", "{{ a + b }} safe"),
            ("{{ (a | tojson | safe) + b }}", "{{ (a | tojson | safe) + b }}"),
            ("{{ a|safe + b if c else d }}", "{{ a|safe + b if c else d }}"),
            ("{{ 'x }} + |safe' + '|safe' }}", "{{ 'x }} + |safe' + '|safe' }}"),
            ("{{ {'a': {'b': 1}}.a + c|safe", "{{ add_marked_strings( {'a': {'b': 1}}.a , c|safe) "),
            ("safe {{", "safe {{"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewrite(source), expected);
        }
    }
}
