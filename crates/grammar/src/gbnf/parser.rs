//! Text of a grammar to rules. One pass, with a stack of its own for groups instead of recursion.

use std::collections::HashMap;

use super::ranges::Ranges;
use crate::{GrammarError, Tokens};

/// Bytes of a grammar's text.
const MOST_TEXT: usize = 4 << 20;
/// Groups within each other.
const MOST_NESTING: usize = 512;

/// Index of a node; a node's parts have lower ones.
pub(crate) type NodeId = usize;

/// A part of a rule.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Node {
    /// One character of a set.
    Character(Ranges),
    /// Characters one after the other.
    Literal(Vec<char>),
    /// One token; or any but this one.
    Token { id: u32, negated: bool },
    /// What a rule says.
    Rule(usize),
    /// One part after the other.
    Sequence(Vec<NodeId>),
    /// One of the parts.
    Choice(Vec<NodeId>),
    /// The part several times; without `most` any number from `least` on.
    Repeat { node: NodeId, least: u32, most: Option<u32> },
}

/// A grammar that was read.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) nodes: Vec<Node>,
    /// Names and bodies of the rules.
    pub(crate) rules: Vec<(String, NodeId)>,
    /// Index of the rule `root`.
    pub(crate) root: usize,
}

/// Reads a grammar.
pub(crate) fn parse(text: &str, tokens: &Tokens) -> Result<Parsed, GrammarError> {
    if text.len() > MOST_TEXT {
        return Err(GrammarError::TooLarge { what: "bytes of text", found: text.len(), most: MOST_TEXT });
    }
    let mut parser =
        Parser { text, at: 0, tokens, nodes: Vec::new(), rules: Vec::new(), names: HashMap::new() };
    parser.space(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    let mut parsed = Parsed { nodes: parser.nodes, ..Parsed::default() };
    for rule in parser.rules {
        let undefined =
            || error_at(text, rule.used, format!("the rule \"{}\" is used but not defined", rule.name));
        let body = rule.body.ok_or_else(undefined)?;
        parsed.rules.push((rule.name, body));
    }
    parsed.root = parser.names.get("root").copied().ok_or(GrammarError::NoRoot)?;
    Ok(parsed)
}

/// The error at a byte of the text.
fn error_at(text: &str, at: usize, problem: impl Into<String>) -> GrammarError {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
    let line = before.matches('\n').count() + 1;
    GrammarError::Syntax { line, column, problem: problem.into() }
}

struct RuleEntry {
    name: String,
    body: Option<NodeId>,
    /// Where it was named first.
    used: usize,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    tokens: &'a Tokens,
    nodes: Vec<Node>,
    rules: Vec<RuleEntry>,
    names: HashMap<String, usize>,
}

/// Alternatives that are being read: of a rule, or of a group.
#[derive(Default)]
struct Frame {
    alternatives: Vec<NodeId>,
    sequence: Vec<NodeId>,
    /// Where the group was opened.
    opened: usize,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at..).and_then(|rest| rest.chars().next())
    }

    fn next(&mut self) -> Option<char> {
        let found = self.peek()?;
        self.at += found.len_utf8();
        Some(found)
    }

    fn take(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.at += wanted.len_utf8();
        }
        there
    }

    fn error<T>(&self, problem: impl Into<String>) -> Result<T, GrammarError> {
        Err(error_at(self.text, self.at, problem))
    }

    /// What is there, for messages.
    fn found(&self) -> String {
        match self.peek() {
            None => "the end of the grammar".into(),
            Some('\n' | '\r') => "the end of the line".into(),
            Some(c) => format!("{c:?}"),
        }
    }

    /// Skips blanks and comments, and line breaks if they mean nothing here.
    fn space(&mut self, newlines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if newlines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                        self.next();
                    }
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let start = self.at;
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        match self.text.get(start..self.at) {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => self.error(format!("expected the name of a rule, found {}", self.found())),
        }
    }

    fn rule_index(&mut self, name: String, used: usize) -> usize {
        if let Some(index) = self.names.get(&name) {
            return *index;
        }
        let index = self.rules.len();
        self.rules.push(RuleEntry { name: name.clone(), body: None, used });
        self.names.insert(name, index);
        index
    }

    fn push(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// `name ::= alternatives`. A later definition of the same name takes the place of an earlier one.
    fn rule(&mut self) -> Result<(), GrammarError> {
        let start = self.at;
        let name = self.name()?;
        let index = self.rule_index(name, start);
        self.space(false);
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with("::=")) {
            return self.error(format!("expected ::= after the name of the rule, found {}", self.found()));
        }
        self.at += 3;
        self.space(true);
        let body = self.alternatives()?;
        if let Some(rule) = self.rules.get_mut(index) {
            rule.body = Some(body);
        }
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return self.error(format!(
                "expected a part of the rule or the end of the line, found {}",
                self.found()
            ));
        }
        self.space(true);
        Ok(())
    }

    /// Everything up to the end of the rule.
    fn alternatives(&mut self) -> Result<NodeId, GrammarError> {
        let mut frames = vec![Frame { opened: self.at, ..Frame::default() }];
        loop {
            let nested = frames.len() > 1;
            let Some(frame) = frames.last_mut() else { return self.error("unbalanced groups") };
            match self.peek() {
                Some('|') => {
                    self.at += 1;
                    self.space(true);
                    self.finish_sequence(frame);
                }
                Some('(') => {
                    let opened = self.at;
                    self.at += 1;
                    self.space(true);
                    if frames.len() > MOST_NESTING {
                        self.at = opened;
                        return self.error(format!("more than {MOST_NESTING} groups within each other"));
                    }
                    frames.push(Frame { opened, ..Frame::default() });
                }
                Some(')') if nested => {
                    self.at += 1;
                    let group = self.finish_group(frame);
                    frames.pop();
                    let nested = frames.len() > 1;
                    self.space(nested);
                    if let Some(outer) = frames.last_mut() {
                        outer.sequence.push(group);
                    }
                }
                Some('*' | '+' | '?' | '{') => {
                    let start = self.at;
                    let (least, most) = self.repetition(nested)?;
                    let Some(node) = frame.sequence.pop() else {
                        self.at = start;
                        return self.error("there is nothing before this that could be repeated");
                    };
                    let repeat = self.push(Node::Repeat { node, least, most });
                    frame.sequence.push(repeat);
                }
                Some(c) if matches!(c, '"' | '[' | '.' | '<' | '!') || is_word(c) => {
                    let node = self.item(c)?;
                    self.space(nested);
                    frame.sequence.push(node);
                }
                _ if nested => {
                    let message = format!("expected ) or a part of the group, found {}", self.found());
                    let opened = error_at(self.text, frame.opened, "");
                    let GrammarError::Syntax { line, column, .. } = opened else {
                        return self.error(message);
                    };
                    return self
                        .error(format!("{message}; the group begins at line {line}, column {column}"));
                }
                _ => return Ok(self.finish_group(frame)),
            }
        }
    }

    fn finish_sequence(&mut self, frame: &mut Frame) {
        let parts = std::mem::take(&mut frame.sequence);
        let node = match parts.as_slice() {
            [only] => *only,
            _ => self.push(Node::Sequence(parts)),
        };
        frame.alternatives.push(node);
    }

    fn finish_group(&mut self, frame: &mut Frame) -> NodeId {
        self.finish_sequence(frame);
        let alternatives = std::mem::take(&mut frame.alternatives);
        match alternatives.as_slice() {
            [only] => *only,
            _ => self.push(Node::Choice(alternatives)),
        }
    }

    /// A part without groups and repetitions, which begins with `c`.
    fn item(&mut self, c: char) -> Result<NodeId, GrammarError> {
        let node = match c {
            '"' => self.literal()?,
            '[' => self.class()?,
            '.' => {
                self.at += 1;
                Node::Character(Ranges::all())
            }
            '<' | '!' => self.token()?,
            _ => {
                let used = self.at;
                let name = self.name()?;
                Node::Rule(self.rule_index(name, used))
            }
        };
        Ok(self.push(node))
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        self.at += 1;
        let mut characters = Vec::new();
        loop {
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    return Ok(Node::Literal(characters));
                }
                Some(_) => characters.push(self.character()?),
                None => {
                    self.at = start;
                    return self.error("this text has no closing quote");
                }
            }
        }
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        self.at += 1;
        let negated = self.take('^');
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(']') => {
                    self.at += 1;
                    let ranges = Ranges::new(ranges);
                    return Ok(Node::Character(if negated { ranges.negated() } else { ranges }));
                }
                Some(_) => {
                    let first = self.character()?;
                    let mut last = first;
                    let rest = self.text.get(self.at..).unwrap_or("");
                    if rest.starts_with('-') && !rest.starts_with("-]") {
                        self.at += 1;
                        let upper = self.at;
                        if self.peek().is_none() {
                            continue;
                        }
                        last = self.character()?;
                        if last < first {
                            self.at = upper;
                            return self.error(format!("the range {first:?} to {last:?} is empty"));
                        }
                    }
                    ranges.push((first, last));
                }
                None => {
                    self.at = start;
                    return self.error("this set of characters has no closing bracket");
                }
            }
        }
    }

    /// A character of a text or of a set, perhaps escaped.
    fn character(&mut self) -> Result<char, GrammarError> {
        let start = self.at;
        let Some(c) = self.next() else { return self.error("the grammar ends here unexpectedly") };
        if c != '\\' {
            return Ok(c);
        }
        let digits = match self.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('n') => return Ok('\n'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            _ => {
                self.at = start;
                return self.error("unknown escape, known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
            }
        };
        let hex =
            self.text.get(self.at..self.at + digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(hex) = hex else { return self.error(format!("expected {digits} hexadecimal digits")) };
        let code = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
        let Some(code) = code else {
            self.at = start;
            return self.error(format!("U+{hex} is no character"));
        };
        self.at += digits;
        Ok(code)
    }

    /// `<[123]>`, `<text>`, `!<…>`.
    fn token(&mut self) -> Result<Node, GrammarError> {
        let negated = self.take('!');
        let start = self.at;
        if !self.take('<') {
            return self.error(format!("expected < of a token after !, found {}", self.found()));
        }
        if self.take('[') {
            let id = self.number()?;
            if !self.take(']') || !self.take('>') {
                return self.error(format!("expected ]> after the token's number, found {}", self.found()));
            }
            let known = self.tokens.get(id).is_some();
            if !known {
                self.at = start;
                return self
                    .error(format!("there is no token {id}, the vocabulary has {}", self.tokens.len()));
            }
            return Ok(Node::Token { id, negated });
        }
        let rest = self.text.get(start..).unwrap_or("");
        let end = rest.find('>').filter(|end| !rest.get(..*end).unwrap_or("").contains('\n'));
        let Some(text) = end.and_then(|end| rest.get(..=end)) else {
            self.at = start;
            return self.error("this token has no closing >");
        };
        match self.tokens.find(text.as_bytes()) {
            Some(id) => {
                self.at = start + text.len();
                Ok(Node::Token { id, negated })
            }
            None => {
                self.at = start;
                self.error(format!("{text} is not a single token of this model"))
            }
        }
    }

    fn number(&mut self) -> Result<u32, GrammarError> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits = self.text.get(start..self.at).unwrap_or("");
        if digits.is_empty() {
            return self.error(format!("expected a number, found {}", self.found()));
        }
        match digits.parse() {
            Ok(number) => Ok(number),
            Err(_) => {
                self.at = start;
                self.error(format!("the number {digits} is too large"))
            }
        }
    }

    /// `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}` and the blanks after it.
    fn repetition(&mut self, nested: bool) -> Result<(u32, Option<u32>), GrammarError> {
        let start = self.at;
        let bounds = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => {
                self.space(nested);
                let least = self.number()?;
                self.space(nested);
                let mut most = Some(least);
                if self.take(',') {
                    self.space(nested);
                    most = None;
                    if self.peek().is_some_and(|c| c.is_ascii_digit()) {
                        most = Some(self.number()?);
                        self.space(nested);
                    }
                }
                if !self.take('}') {
                    return self.error(format!(
                        "expected }} or , after the number of repetitions, found {}",
                        self.found()
                    ));
                }
                if most.is_some_and(|most| most < least) {
                    self.at = start;
                    return self.error("the upper bound of the repetition is below the lower one");
                }
                (least, most)
            }
        };
        self.space(nested);
        Ok(bounds)
    }
}
