//! Sources rewritten so that values of values, texts and keys made of them are paid for ([`crate::weight`]).
//!
//! Tags are read as a list of tokens, with the brackets that are open; what is to be put where is collected and put in at the
//! end. Lines stay where they are.

use crate::Error;

/// Name of the function, and of the filter, that charges for a value.
pub(crate) const WEIGHED: &str = "weighed_value";
/// Name of the function that refuses namespaces.
pub(crate) const PLAIN: &str = "value_of_attribute";
/// Name of the function for `~`.
pub(crate) const JOINED: &str = "joined_texts";
/// Names that neither templates nor their variables may have.
pub(crate) const RESERVED: [&str; 3] = [WEIGHED, PLAIN, JOINED];
/// What is put before a literal or a key, before several values without brackets, before the value of an attribute, before
/// joined values, and before the name of a filter.
const OPEN_WEIGHED: &str = "weighed_value(";
const OPEN_TUPLE: &str = "weighed_value((";
const OPEN_PLAIN: &str = "value_of_attribute(";
const OPEN_JOINED: &str = "joined_texts(";
const FILTER: &str = " weighed_value |";
/// Words after which a bracket begins a value.
const OPERATORS: &[&str] = &["in", "not", "and", "or", "if", "elif", "else", "is", "recursive"];
/// Words that are values by themselves.
const CONSTANTS: &[&str] = &["true", "false", "none", "True", "False", "None"];
/// Filters that make a text of any value.
const TEXTS: &[&str] = &[
    "string",
    "upper",
    "lower",
    "title",
    "capitalize",
    "trim",
    "indent",
    "urlencode",
    "escape",
    "e",
    "safe",
    "lines",
    "split",
    "join",
    "unique",
    "map",
];
/// Signs before a value: the engine folds each anew.
const MOST_SIGNS: usize = 100;

/// The source with what charges for values.
pub(crate) fn rewrite(source: &str) -> Result<String, Error> {
    // A variable of that name would take the place of the function.
    for (line, text) in source.lines().enumerate() {
        if let Some(name) = RESERVED.iter().find(|name| text.contains(**name)) {
            return Err(Error::Syntax { line: line + 1, message: format!("the name {name} is reserved") });
        }
    }
    let mut edits = Vec::new();
    let mut at = 0;
    while let Some(place) = source[at..].find('{') {
        let start = at + place;
        let rest = &source[start..];
        at = if rest.starts_with("{#") {
            rest.find("#}").map_or(source.len(), |end| start + end + 2)
        } else if rest.starts_with("{%") || rest.starts_with("{{") {
            Tag::new(source, start).scan(&mut edits)?
        } else {
            start + 1
        };
    }
    // What was found later is outside of what was found before.
    let order = |(index, edit): &(usize, Edit)| {
        let index = *index as isize;
        match edit.kind {
            Kind::Close => (edit.place, 0, index),
            Kind::Replace => (edit.place, 1, index),
            Kind::Open => (edit.place, 2, -index),
        }
    };
    let mut edits: Vec<(usize, Edit)> = edits.into_iter().enumerate().collect();
    edits.sort_by_key(order);
    let mut out = String::with_capacity(source.len() + edits.len() * OPEN_TUPLE.len());
    let mut done = 0;
    for (_, Edit { place, kind, text }) in edits {
        out.push_str(&source[done..place]);
        out.push_str(text);
        done = place + usize::from(kind == Kind::Replace);
    }
    out.push_str(&source[done..]);
    Ok(out)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open,
    Close,
    /// In place of one byte.
    Replace,
}

struct Edit {
    place: usize,
    kind: Kind,
    text: &'static str,
}

/// Puts something around a part of the source.
fn around(edits: &mut Vec<Edit>, start: usize, end: usize, open: &'static str) {
    let close = if open == OPEN_TUPLE { "))" } else { ")" };
    edits.push(Edit { place: start, kind: Kind::Open, text: open });
    edits.push(Edit { place: end, kind: Kind::Close, text: close });
}

/// Values joined by `~`, as far as they were read.
#[derive(Default)]
struct Chain {
    start: Option<usize>,
    joints: Vec<usize>,
}

impl Chain {
    /// It ends here.
    fn finish(&mut self, end: usize, edits: &mut Vec<Edit>) {
        let joints = std::mem::take(&mut self.joints);
        let Some(start) = self.start.take().filter(|_| !joints.is_empty()) else { return };
        around(edits, start, end, OPEN_JOINED);
        edits.extend(joints.into_iter().map(|place| Edit { place, kind: Kind::Replace, text: "," }));
    }
}

/// A bracket that is open.
struct Open {
    place: usize,
    kind: char,
    /// It begins a value and not a call, an index or names to be set.
    value: bool,
    /// It is an index.
    index: bool,
    /// Something in it is not known from the source.
    variable: bool,
    comma: bool,
    colon: bool,
    chain: Chain,
}

/// One tag.
struct Tag<'a> {
    source: &'a str,
    at: usize,
    /// Where the last token ends.
    last: usize,
    statement: bool,
    /// The first word of a statement.
    word: &'a str,
    /// The name that the last token is.
    name: &'a str,
    /// Names to be set are over.
    assigned: bool,
    /// An attribute is set.
    attribute: bool,
    /// Where the value begins that is set.
    value: Option<usize>,
    /// The value is several without brackets.
    comma: bool,
    /// What stands before: whether a value begins here.
    operand: bool,
    /// The last token was a bar.
    piped: bool,
    signs: usize,
    chain: Chain,
    open: Vec<Open>,
}

impl<'a> Tag<'a> {
    fn new(source: &'a str, start: usize) -> Self {
        let statement = source[start..].starts_with("{%");
        // A sign there is about blanks.
        let at = start + 2 + usize::from(source[start + 2..].starts_with(['-', '+']));
        Tag {
            source,
            at,
            last: at,
            statement,
            word: "",
            name: "",
            assigned: false,
            attribute: false,
            value: None,
            comma: false,
            operand: true,
            piped: false,
            signs: 0,
            chain: Chain::default(),
            open: Vec::new(),
        }
    }

    /// Collects what is to be put where, and gives the place after the tag.
    fn scan(mut self, edits: &mut Vec<Edit>) -> Result<usize, Error> {
        let end = if self.statement { "%}" } else { "}}" };
        while let Some(character) = self.source[self.at..].chars().next() {
            let rest = &self.source[self.at..];
            if self.open.is_empty() && rest.strip_prefix(['-', '+']).unwrap_or(rest).starts_with(end) {
                self.chain.finish(self.last, edits);
                self.close(edits);
                let end = rest.find(end).map_or(0, |place| place + 2);
                return Ok(self.after(self.at + end));
            }
            match character {
                _ if character.is_whitespace() => {
                    self.at += character.len_utf8();
                    continue;
                }
                '"' | '\'' => self.string(character),
                _ if character.is_alphanumeric() || character == '_' => self.named(rest, edits),
                _ => self.mark(character, edits)?,
            }
            self.last = self.at;
        }
        Ok(self.source.len())
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

    /// A value begins, if it has not.
    fn begin(&mut self) {
        let at = self.at;
        self.chain_mut().start.get_or_insert(at);
        (self.signs, self.piped) = (0, false);
    }

    fn chain_mut(&mut self) -> &mut Chain {
        self.open.last_mut().map_or(&mut self.chain, |open| &mut open.chain)
    }

    /// What is joined ends before this token.
    fn boundary(&mut self, edits: &mut Vec<Edit>) {
        let last = self.last;
        self.chain_mut().finish(last, edits);
    }

    fn string(&mut self, quote: char) {
        self.begin();
        let mut escaped = true;
        let mut characters = self.source[self.at..].char_indices();
        let end = characters.find(|(_, character)| {
            let ends = *character == quote && !escaped;
            // The first one is the quote itself.
            escaped = *character == '\\' && !escaped;
            ends
        });
        self.at = end.map_or(self.source.len(), |(place, _)| self.at + place + 1);
        (self.operand, self.name) = (false, "");
    }

    fn named(&mut self, rest: &'a str, edits: &mut Vec<Edit>) {
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..length];
        if self.statement && self.word.is_empty() {
            (self.word, self.operand) = (name, true);
            self.at += length;
            return;
        }
        let member = self.source[..self.last].ends_with('.') && !self.operand_after_number();
        let operator = OPERATORS.contains(&name) && !member;
        // `is not` and `is in` belong to a test.
        if operator && name != "is" && self.name != "is" {
            self.boundary(edits);
        } else if !operator {
            if self.piped && TEXTS.contains(&name) {
                edits.push(Edit { place: self.at, kind: Kind::Open, text: FILTER });
            }
            self.begin();
        }
        self.at += length;
        self.assigned |= self.word == "for" && name == "in" && self.open.is_empty();
        (self.operand, self.name) = (operator, name);
        let known = operator || CONSTANTS.contains(&name) || name.starts_with(|c: char| c.is_ascii_digit());
        if let (false, Some(open)) = (known, self.open.last_mut()) {
            open.variable = true;
        }
    }

    /// Whether the point before belongs to a number.
    fn operand_after_number(&self) -> bool {
        self.name.starts_with(|c: char| c.is_ascii_digit())
    }

    fn mark(&mut self, character: char, edits: &mut Vec<Edit>) -> Result<(), Error> {
        let signed = character == '-' && self.operand;
        match character {
            '(' | '[' | '{' => {
                let names = match self.word {
                    "for" | "set" => !self.assigned,
                    "call" | "macro" => self.open.is_empty(),
                    _ => false,
                };
                self.attribute |= self.word == "set" && !self.assigned && character == '[';
                let value = !names && (self.operand || character == '{');
                let index = !names && !self.operand && character == '[';
                self.begin();
                self.open.push(Open {
                    place: self.at,
                    kind: character,
                    value,
                    index,
                    variable: false,
                    comma: false,
                    colon: false,
                    chain: Chain::default(),
                });
            }
            ')' | ']' | '}' => {
                self.boundary(edits);
                self.shut(edits);
            }
            '~' => {
                let at = self.at;
                let chain = self.chain_mut();
                if chain.start.is_some() {
                    chain.joints.push(at);
                }
            }
            '-' if signed => {
                let signs = self.signs + 1;
                self.begin();
                self.signs = signs;
                if signs > MOST_SIGNS {
                    let line = self.source[..self.at].matches('\n').count() + 1;
                    let message = format!("more than {MOST_SIGNS} signs before a value");
                    return Err(Error::Syntax { line, message });
                }
            }
            ',' | ':' | '=' | '<' | '>' | '!' | '+' | '-' => {
                self.boundary(edits);
                self.separate(character);
            }
            '.' => self.attribute |= self.word == "set" && !self.assigned,
            _ => {}
        }
        self.piped = character == '|';
        self.operand = !matches!(character, ')' | ']' | '}' | '.' | '|');
        self.name = if character == '.' { self.name } else { "" };
        self.at += character.len_utf8();
        Ok(())
    }

    /// A mark between values.
    fn separate(&mut self, character: char) {
        match (character, self.open.last_mut()) {
            (',', Some(open)) => open.comma = true,
            (':', Some(open)) => open.colon = true,
            (',', None) => self.comma |= self.assigned,
            ('=', None) if self.word == "set" && !self.assigned => {
                self.assigned = true;
                self.value = Some(self.at + 1);
            }
            _ => {}
        }
    }

    /// A bracket is closed.
    fn shut(&mut self, edits: &mut Vec<Edit>) {
        let Some(open) = self.open.pop() else { return };
        let list = open.kind != '(' || open.comma;
        if open.value && open.variable && list {
            around(edits, open.place, self.at + 1, OPEN_WEIGHED);
        } else if open.index && open.variable && !open.comma && !open.colon {
            around(edits, open.place + 1, self.at, OPEN_WEIGHED);
        }
        if let (true, Some(outer)) = (open.variable, self.open.last_mut()) {
            outer.variable = true;
        }
    }

    /// What is set by this statement.
    fn close(&mut self, edits: &mut Vec<Edit>) {
        let Some(start) = self.value.filter(|start| *start < self.last) else { return };
        if self.comma {
            around(edits, start, self.last, OPEN_TUPLE);
        } else if self.attribute {
            around(edits, start, self.last, OPEN_PLAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_arguments() {
        for (source, expected) in [
            ("{{ [a, 1] }}", "{{ weighed_value([a, 1]) }}"),
            (
                "{{ [1, 'a', true] }} {{ x[0] }} {{ f(a, b) }}",
                "{{ [1, 'a', true] }} {{ x[0] }} {{ f(a, b) }}",
            ),
            (
                "{{ x[a] }}{{ x[a:b] }}{{ x[a ~ 'b'].c }}",
                "{{ x[weighed_value(a)] }}{{ x[a:b] }}{{ x[weighed_value(joined_texts(a , 'b'))].c }}",
            ),
            ("{{- {'a': [b]} -}}", "{{- weighed_value({'a': weighed_value([b])}) -}}"),
            ("{% set x = (a, b) %}", "{% set x = weighed_value((a, b)) %}"),
            ("{% set x = a, b -%}", "{% set x =weighed_value(( a, b)) -%}"),
            ("{% set x=[a], b -%}", "{% set x=weighed_value((weighed_value([a]), b)) -%}"),
            ("{% set (a, b) = x %}{% set a, b = x %}", "{% set (a, b) = x %}{% set a, b = x %}"),
            ("{% set n.x = n.x + [a] %}", "{% set n.x =value_of_attribute( n.x + weighed_value([a])) %}"),
            ("{% set n['x']=[a] %}", "{% set n['x']=value_of_attribute(weighed_value([a])) %}"),
            ("{% for (k, v) in [(a, b)] %}", "{% for (k, v) in weighed_value([weighed_value((a, b))]) %}"),
            ("{% for k in a ~ b recursive %}", "{% for k in joined_texts(a , b) recursive %}"),
            ("{% call(a, b) f([c]) %}", "{% call(a, b) f(weighed_value([c])) %}"),
            ("{% macro m(a, b=[c]) %}", "{% macro m(a, b=weighed_value([c])) %}"),
            ("{% if x in [a, '}}'] %}", "{% if x in weighed_value([a, '}}']) %}"),
            ("{# [a] #}{% raw %}{{ [a] }}{% endraw %}[a]{", "{# [a] #}{% raw %}{{ [a] }}{% endraw %}[a]{"),
            ("{{ (a + b) * 2 }}{{ [ }}", "{{ (a + b) * 2 }}{{ [ }}"),
            (
                "{{ a ~ b * 2 ~ -c | trim + d }}",
                "{{ joined_texts(a , b * 2 , -c |  weighed_value |trim) + d }}",
            ),
            ("{{ '\\'[' ~ \"[\"~[é] }}", "{{ joined_texts('\\'[' , \"[\",weighed_value([é])) }}"),
            (
                "{{ a ~ b if c ~ d is not none else e }}",
                "{{ joined_texts(a , b) if joined_texts(c , d is not none) else e }}",
            ),
            (
                "{{ f(x=a ~ b, y='c') }}{{ {a ~ 'b': 1} }}",
                "{{ f(x=joined_texts(a , b), y='c') }}{{ weighed_value({joined_texts(a , 'b'): 1}) }}",
            ),
            ("{{ a.in ~ 1.5 ~ b.0 }}", "{{ joined_texts(a.in , 1.5 , b.0) }}"),
            ("{{ a|join('') }}{% filter upper %}", "{{ a| weighed_value |join('') }}{% filter upper %}"),
            ("{{ a not in b and not c ~ d }}", "{{ a not in b and not joined_texts(c , d) }}"),
            ("{{ ~ a }}{{-}}", "{{ ~ a }}{{-}}"),
            ("{{- a ~ 'b' -}}{%- if a ~ b %}", "{{- joined_texts(a , 'b') -}}{%- if joined_texts(a , b) %}"),
        ] {
            assert_eq!(rewrite(source).as_deref(), Ok(expected), "{source}");
        }
        let signs = format!("\n{{{{ {}1 }}}}", "-".repeat(200));
        assert!(matches!(rewrite(&signs), Err(Error::Syntax { line: 2, .. })));
        let taken = "\n{% set weighed_value = value_of_attribute %}";
        assert!(matches!(rewrite(taken), Err(Error::Syntax { line: 2, .. })));
        for open in [OPEN_WEIGHED, OPEN_TUPLE, FILTER] {
            assert!(open.contains(WEIGHED));
        }
        assert!(OPEN_PLAIN.starts_with(PLAIN) && OPEN_JOINED.starts_with(JOINED));
    }
}
