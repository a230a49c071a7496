//! What a value is worth when all of it is written out.
//!
//! A list that holds another one twice, again and again, takes little to make and no time at all to write down: sixty steps
//! make more than any memory holds. The template engine charges for each step, but not for what is within. So whatever
//! makes values of values pays here for all that they hold: literals with variables in them become arguments of a
//! function before a source is compiled, and filters and functions that nest are replaced. Nothing is then larger than what
//! a render may cost. A namespace, which could come to hold itself, may not be a part of anything.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions};

/// Name of the function that charges for a value.
const WEIGHED: &str = "weighed_value";
/// Name of the function that refuses namespaces.
const PLAIN: &str = "value_of_attribute";
/// What is put before a literal, before several values without brackets, and before the value of an attribute.
const OPEN_WEIGHED: &str = "weighed_value(";
const OPEN_TUPLE: &str = "weighed_value((";
const OPEN_PLAIN: &str = "value_of_attribute(";
/// Key by which namespaces are known.
const MARK: &str = "\0namespace";
/// Words after which a bracket begins a value.
const OPERATORS: &[&str] = &["in", "not", "and", "or", "if", "elif", "else", "is"];
/// Words that are values by themselves.
const CONSTANTS: &[&str] = &["true", "false", "none", "True", "False", "None"];

/// Makes the functions known, and the filters that nest pay.
pub(crate) fn register(environment: &mut Environment<'static>) {
    environment.add_function(WEIGHED, weighed);
    environment.add_function(PLAIN, plain);
    environment.add_function("namespace", namespace);
    environment.add_function("dict", dict);
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slice);
    environment.add_filter("groupby", groupby);
    environment.add_filter("zip", zip);
}

fn plain(value: Value) -> Result<Value, Error> {
    if is_namespace(&value) { Err(nested()) } else { Ok(value) }
}

fn dict(state: &State, value: Option<Value>, more: Kwargs) -> Result<Value, Error> {
    weighed(state, functions::dict(value, more)?)
}

fn batch(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    if fill.is_some() {
        state.consume_fuel(count as u64)?;
    }
    weighed(state, filters::batch(state, value, count, fill)?)
}

fn slice(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    state.consume_fuel(count as u64)?;
    weighed(state, filters::slice(state, value, count, fill)?)
}

fn groupby(state: &State, value: Value, attribute: Option<String>, more: Kwargs) -> Result<Value, Error> {
    weighed(state, filters::groupby(value, attribute.as_deref(), more)?)
}

fn zip(state: &State, value: Value, others: Rest<Value>) -> Result<Value, Error> {
    weighed(state, filters::zip(state, value, others)?)
}

fn nested() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a namespace cannot be a part of another value")
}

/// A namespace that is known as one.
fn namespace(defaults: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let mut pairs = vec![(Value::from(MARK), Value::from(true))];
    if let Some(defaults) = defaults.map(ValueOrKwargs::into_value) {
        if defaults.kind() != ValueKind::Map {
            return functions::namespace(Some(defaults.into()));
        }
        for key in defaults.try_iter()? {
            let value = defaults.get_item(&key)?;
            if is_namespace(&value) {
                return Err(nested());
            }
            pairs.push((key, value));
        }
    }
    functions::namespace(Some(Value::from_pairs(pairs).into()))
}

fn is_namespace(value: &Value) -> bool {
    value.kind() == ValueKind::Map && value.get_attr(MARK).is_ok_and(|mark| mark.is_true())
}

/// The same value, paid for.
fn weighed(state: &State, value: Value) -> Result<Value, Error> {
    let mut parts = vec![value.clone()];
    while let Some(part) = parts.pop() {
        state.consume_fuel(1)?;
        match part.kind() {
            ValueKind::Map if is_namespace(&part) => return Err(nested()),
            ValueKind::Map => {
                for key in part.try_iter()? {
                    state.consume_fuel(1)?;
                    parts.push(part.get_item(&key)?);
                    parts.push(key);
                }
            }
            ValueKind::Seq | ValueKind::Iterable if part.len().is_some() => {
                for item in part.try_iter()? {
                    state.consume_fuel(1)?;
                    parts.push(item);
                }
            }
            _ => {}
        }
    }
    Ok(value)
}

/// The source with literals that hold variables as arguments of the function. Lines stay where they are.
pub(crate) fn rewrite(source: &str) -> String {
    let mut edits: Vec<(usize, &str)> = Vec::new();
    let mut at = 0;
    while let Some(place) = source[at..].find('{') {
        let start = at + place;
        let rest = &source[start..];
        at = if rest.starts_with("{#") {
            rest.find("#}").map_or(source.len(), |end| start + end + 2)
        } else if rest.starts_with("{%") || rest.starts_with("{{") {
            Tag::new(source, start).scan(&mut edits)
        } else {
            start + 1
        };
    }
    edits.sort_by_key(|(place, _)| *place);
    let mut out = String::with_capacity(source.len() + edits.len() * (WEIGHED.len() + 2));
    let mut done = 0;
    for (place, text) in edits {
        out.push_str(&source[done..place]);
        out.push_str(text);
        done = place;
    }
    out.push_str(&source[done..]);
    out
}

/// A bracket that is open.
struct Open {
    place: usize,
    kind: u8,
    /// It begins a value and not a call, an index or names to be set.
    value: bool,
    /// Something in it is not known from the source.
    variable: bool,
    comma: bool,
}

/// One tag.
struct Tag<'a> {
    source: &'a str,
    at: usize,
    statement: bool,
    /// The first word of a statement.
    word: &'a str,
    /// Names to be set are over.
    assigned: bool,
    /// An attribute is set.
    attribute: bool,
    /// Where the value begins that is set.
    value: Option<usize>,
    /// The value is several without brackets.
    comma: bool,
    /// What stands before: whether a bracket begins a value here.
    operand: bool,
    open: Vec<Open>,
}

impl<'a> Tag<'a> {
    fn new(source: &'a str, start: usize) -> Self {
        let statement = source[start..].starts_with("{%");
        Tag {
            source,
            at: start + 2,
            statement,
            word: "",
            assigned: false,
            attribute: false,
            value: None,
            comma: false,
            operand: true,
            open: Vec::new(),
        }
    }

    /// Collects what is to be put where, and gives the place after the tag.
    fn scan(mut self, edits: &mut Vec<(usize, &'static str)>) -> usize {
        let mut last = self.at;
        let end = if self.statement { "%}" } else { "}}" };
        while let Some(character) = self.source[self.at..].chars().next() {
            let rest = &self.source[self.at..];
            if self.open.is_empty() && rest.trim_start_matches(['-', '+']).starts_with(end) {
                self.close(last, edits);
                let end = self.source[self.at..].find(end).map_or(0, |place| place + 2);
                return self.after(self.at + end);
            }
            match character {
                _ if character.is_whitespace() => {
                    self.at += character.len_utf8();
                    continue;
                }
                '"' | '\'' => self.string(character),
                _ if character.is_alphanumeric() || character == '_' => self.name(rest),
                _ => self.mark(character, edits),
            }
            last = self.at;
        }
        self.source.len()
    }

    /// What a block of raw text holds is no source.
    fn after(&self, end: usize) -> usize {
        if self.word != "raw" {
            return end;
        }
        let rest = &self.source[end..];
        let tags = rest.match_indices("{%").find(|(place, _)| {
            rest[place + 2..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw")
        });
        tags.map_or(self.source.len(), |(place, _)| end + place)
    }

    fn string(&mut self, quote: char) {
        let mut escaped = true;
        let mut characters = self.source[self.at..].char_indices();
        let end = characters.find(|(_, character)| {
            let ends = *character == quote && !escaped;
            // The first one is the quote itself.
            escaped = *character == '\\' && !escaped;
            ends
        });
        self.at = end.map_or(self.source.len(), |(place, _)| self.at + place + 1);
        self.operand = false;
    }

    fn name(&mut self, rest: &'a str) {
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..length];
        self.at += length;
        let first = self.statement && self.word.is_empty();
        if first {
            self.word = name;
            self.operand = true;
            return;
        }
        self.assigned |= self.word == "for" && name == "in" && self.open.is_empty();
        self.operand = OPERATORS.contains(&name);
        let known =
            self.operand || CONSTANTS.contains(&name) || name.starts_with(|c: char| c.is_ascii_digit());
        if let (false, Some(open)) = (known, self.open.last_mut()) {
            open.variable = true;
        }
    }

    fn mark(&mut self, character: char, edits: &mut Vec<(usize, &'static str)>) {
        match character {
            '(' | '[' | '{' => {
                let names = match self.word {
                    "for" | "set" => !self.assigned,
                    "call" | "macro" => self.open.is_empty(),
                    _ => false,
                };
                self.attribute |= self.word == "set" && !self.assigned && character == '[';
                let value = !names && (self.operand || character == '{');
                let kind = character as u8;
                self.open.push(Open { place: self.at, kind, value, variable: false, comma: false });
            }
            ')' | ']' | '}' => {
                if let Some(open) = self.open.pop() {
                    let list = open.kind != b'(' || open.comma;
                    if open.value && open.variable && list {
                        edits.push((open.place, OPEN_WEIGHED));
                        edits.push((self.at + 1, ")"));
                    }
                    if let (true, Some(outer)) = (open.variable, self.open.last_mut()) {
                        outer.variable = true;
                    }
                }
            }
            ',' => match self.open.last_mut() {
                Some(open) => open.comma = true,
                None => self.comma |= self.assigned,
            },
            '.' => self.attribute |= self.word == "set" && !self.assigned,
            '=' if self.word == "set" && !self.assigned && self.open.is_empty() => {
                self.assigned = true;
                self.value = Some(self.at + 1);
            }
            _ => {}
        }
        self.operand = !matches!(character, ')' | ']' | '}');
        self.at += character.len_utf8();
    }

    /// What is set by this statement, which ends at `end`.
    fn close(&mut self, end: usize, edits: &mut Vec<(usize, &'static str)>) {
        let Some(start) = self.value.filter(|start| *start < end) else { return };
        if self.comma {
            edits.push((start, OPEN_TUPLE));
            edits.push((end, "))"));
        } else if self.attribute {
            edits.push((start, OPEN_PLAIN));
            edits.push((end, ")"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_with_variables_become_arguments() {
        for (source, expected) in [
            ("{{ [a, 1] }}", "{{ weighed_value([a, 1]) }}"),
            (
                "{{ [1, 'a', true] }} {{ x[a] }} {{ f(a, b) }}",
                "{{ [1, 'a', true] }} {{ x[a] }} {{ f(a, b) }}",
            ),
            ("{{- {'a': [b]} -}}", "{{- weighed_value({'a': weighed_value([b])}) -}}"),
            ("{% set x = (a, b) %}", "{% set x = weighed_value((a, b)) %}"),
            ("{% set x = a, b -%}", "{% set x =weighed_value(( a, b)) -%}"),
            ("{% set (a, b) = x %}{% set a, b = x %}", "{% set (a, b) = x %}{% set a, b = x %}"),
            ("{% set n.x = n.x + [a] %}", "{% set n.x =value_of_attribute( n.x + weighed_value([a])) %}"),
            ("{% set n['x'] = a %}", "{% set n['x'] =value_of_attribute( a) %}"),
            ("{% for (k, v) in [(a, b)] %}", "{% for (k, v) in weighed_value([weighed_value((a, b))]) %}"),
            ("{% call(a, b) f([c]) %}", "{% call(a, b) f(weighed_value([c])) %}"),
            ("{% macro m(a, b=[c]) %}", "{% macro m(a, b=weighed_value([c])) %}"),
            ("{% if x in [a, '}}'] %}", "{% if x in weighed_value([a, '}}']) %}"),
            ("{# [a] #}{% raw %}{{ [a] }}{% endraw %}[a]{", "{# [a] #}{% raw %}{{ [a] }}{% endraw %}[a]{"),
            ("{{ (a + b) * 2 }}{{ [ }}", "{{ (a + b) * 2 }}{{ [ }}"),
            ("{{ '\\'[' ~ \"[\" ~ [é] }}", "{{ '\\'[' ~ \"[\" ~ weighed_value([é]) }}"),
        ] {
            assert_eq!(rewrite(source), expected);
        }
        assert!(OPEN_WEIGHED.starts_with(WEIGHED) && OPEN_TUPLE.starts_with(WEIGHED));
        assert!(OPEN_PLAIN.starts_with(PLAIN));
    }
}
