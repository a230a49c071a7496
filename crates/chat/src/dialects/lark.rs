//! Forms as a grammar in llguidance's variant of Lark.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use super::form::Form;

/// White space between parts: not any amount, which models tend to use up.
const BLANK: &str = r"BLANK: /[ \n\r\t]{1,20}/";
/// Any text.
const ANY: &str = r"ANY: /(?s:.)+/";
const QUOTED: &str = r"QUOTED: /'([^'\\\n\x00-\x1f]|\\[\\'nrt])*'/";
const NUMBER: &str = "NUMBER: /[0-9]{1,4}/";
const IDENTIFIER: &str = "IDENTIFIER: /[A-Za-z0-9_-]{1,40}/";

/// Writes a grammar.
pub(super) struct Writer<'a> {
    /// Names and ids of control tokens.
    control: &'a [(String, u32)],
    definitions: Vec<String>,
    /// Rules of what stands in several places, by its address.
    shared: HashMap<*const Form, String>,
    count: usize,
}

/// The grammar of texts of this form.
pub(super) fn grammar(form: &Form, control: &[(String, u32)]) -> String {
    let mut writer = Writer { control, definitions: Vec::new(), shared: HashMap::new(), count: 0 };
    let start = writer.expression(form);
    let mut all = format!("start: {start}\n");
    for definition in &writer.definitions {
        let _ = writeln!(all, "{definition}");
    }
    all
}

/// A text as a literal.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

impl Writer<'_> {
    fn define(&mut self, definition: &str) {
        if !self.definitions.iter().any(|known| known == definition) {
            self.definitions.push(definition.to_owned());
        }
    }

    /// The first control token in a text: where, its name and id; the longest of those that begin there.
    fn first_control(&self, text: &str) -> Option<(usize, &str, u32)> {
        let found = self
            .control
            .iter()
            .filter_map(|(name, id)| Some((text.find(name.as_str())?, name.as_str(), *id)));
        found.min_by_key(|(place, name, _)| (*place, usize::MAX - name.len()))
    }

    /// A text with the control tokens in it.
    fn text(&self, mut text: &str) -> String {
        let mut parts = Vec::new();
        while let Some((place, name, id)) = self.first_control(text) {
            if place > 0 {
                parts.push(literal(&text[..place]));
            }
            parts.push(format!("<[{id}]>"));
            text = &text[place + name.len()..];
        }
        if !text.is_empty() {
            parts.push(literal(text));
        }
        parts.join(" ")
    }

    fn expression(&mut self, form: &Form) -> String {
        match form {
            Form::Text(text) => self.text(text),
            Form::Json(schema) => format!("%json {schema}"),
            Form::Plain(schema, mark) => self.plain(schema, mark),
            Form::Quoted => {
                self.define(QUOTED);
                "QUOTED".to_owned()
            }
            Form::Identifier => {
                self.define(IDENTIFIER);
                "IDENTIFIER".to_owned()
            }
            Form::Number => {
                self.define(NUMBER);
                "NUMBER".to_owned()
            }
            Form::Blank => {
                self.define(BLANK);
                "BLANK?".to_owned()
            }
            Form::All(forms) => {
                let mut parts: Vec<String> = Vec::with_capacity(forms.len());
                let mut pending = String::new();
                let flush = |writer: &Self, pending: &mut String, parts: &mut Vec<String>| {
                    if !pending.is_empty() {
                        parts.push(writer.text(pending));
                        pending.clear();
                    }
                };
                for form in forms {
                    if let Form::Text(text) = form {
                        // Neighbours are one literal.
                        pending.push_str(text);
                        continue;
                    }
                    flush(self, &mut pending, &mut parts);
                    parts.push(self.expression(form));
                }
                flush(self, &mut pending, &mut parts);
                parts.retain(|part| !part.is_empty());
                parts.join(" ")
            }
            Form::Any(forms) => {
                let forms: Vec<String> = forms.iter().map(|form| self.expression(form)).collect();
                match forms.as_slice() {
                    [only] => only.clone(),
                    forms if forms.iter().any(String::is_empty) => {
                        let full: Vec<&str> =
                            forms.iter().filter(|form| !form.is_empty()).map(String::as_str).collect();
                        if full.is_empty() { String::new() } else { format!("({})?", full.join(" | ")) }
                    }
                    forms => format!("({})", forms.join(" | ")),
                }
            }
            Form::Optional(form) => match self.expression(form) {
                form if form.is_empty() => form,
                form => format!("({form})?"),
            },
            Form::Shared(form) => {
                let address = Arc::as_ptr(form);
                if let Some(known) = self.shared.get(&address) {
                    return known.clone();
                }
                let written = self.expression(form);
                let name = match written.is_empty() {
                    true => written,
                    false => self.rule(&written),
                };
                self.shared.insert(address, name.clone());
                name
            }
            Form::Several(form, between) => {
                let (form, between) = (self.expression(form), self.expression(between));
                let name = self.rule(&form);
                format!("{name} ({between} {name})*")
            }
        }
    }

    fn rule(&mut self, expression: &str) -> String {
        let name = format!("part-{}", self.count);
        self.count += 1;
        self.definitions.push(format!("{name}: {expression}"));
        name
    }

    /// A text up to a mark that it does not hold.
    fn plain(&mut self, schema: &Value, mark: &str) -> String {
        let number = self.count;
        self.count += 1;
        let mut conditions = Vec::new();
        let length = |name: &str| schema.get(name).and_then(Value::as_u64);
        if let (None, None) = (length("minLength"), length("maxLength")) {
            conditions.push(r"/(?s:.)*/".to_owned());
        } else {
            let (least, most) = (length("minLength").unwrap_or(0), length("maxLength"));
            let most = most.map_or(String::new(), |most| most.to_string());
            conditions.push(format!("/(?s:.){{{least},{most}}}/"));
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            // As JSON schema has it: found anywhere unless anchored.
            let begin = if pattern.starts_with('^') { "" } else { "(?s:.)*" };
            let end = if pattern.ends_with('$') && !pattern.ends_with(r"\$") { "" } else { "(?s:.)*" };
            let inner = pattern.strip_prefix('^').unwrap_or(pattern);
            let inner = if end.is_empty() { inner.strip_suffix('$').unwrap_or(inner) } else { inner };
            if !inner.contains('^') && !inner.contains('$') {
                conditions.push(format!("/{begin}({}){end}/", inner.replace('/', r"\/")));
            }
        }
        let (literal_part, rest) = match self.first_control(mark) {
            Some((place, ..)) => mark.split_at(place),
            None => (mark, ""),
        };
        if literal_part.is_empty() {
            // No text holds a control token.
            self.definitions.push(format!("TEXT-{number}: {}", conditions.join(" & ")));
            return format!("(TEXT-{number})? {}", self.text(rest));
        }
        let end = literal(literal_part);
        self.define(ANY);
        self.definitions.push(format!("HOLDS-{number}: ANY? {end} ANY?"));
        conditions.push(format!("~HOLDS-{number}"));
        self.definitions.push(format!("PLAIN-{number}: {}", conditions.join(" & ")));
        self.definitions.push(format!("TEXT-{number}: PLAIN-{number} {end}"));
        let rest = self.text(rest);
        format!("TEXT-{number} {rest}").trim_end().to_owned()
    }
}
