//! Grammars that begin when a trigger occurs in the text.

use regex_automata::meta::Regex;

use crate::{GrammarError, Tokens};

/// Bytes of text in which patterns are looked for. Longer answers without a trigger stay free.
const MOST_TEXT: usize = 1 << 20;
/// Triggers of one grammar.
const MOST_TRIGGERS: usize = 256;
/// Bytes of a compiled pattern.
const MOST_PATTERN: usize = 10 << 20;

/// What makes a lazy grammar begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// This token. The grammar begins with it.
    Token(u32),
    /// This text. The grammar begins with it.
    Word(String),
    /// A match of this pattern anywhere. The grammar begins with its first group that matched something, or
    /// with the match.
    Pattern(String),
    /// The same for the whole text so far.
    WholePattern(String),
}

/// When triggers count, and what happens if a text does not go on as it began.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Patience {
    /// A part at the beginning of the text in which they do not count.
    pub passage: Option<Passage>,
    /// A text that triggers the grammar within a token that then does not follow it stays free.
    pub lenient: bool,
}

/// A part between two texts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passage {
    /// It begins with this, if the text does, blanks aside.
    pub begin: String,
    /// Up to this.
    pub end: String,
    /// It has begun already.
    pub open: bool,
}

/// Checked triggers.
#[derive(Debug)]
pub(crate) struct Triggers {
    pub(crate) patience: Patience,
    tokens: Vec<u32>,
    words: Vec<Vec<u8>>,
    patterns: Vec<Regex>,
}

impl Triggers {
    pub(crate) fn new(
        triggers: &[Trigger],
        patience: Patience,
        tokens: &Tokens,
    ) -> Result<Self, GrammarError> {
        let mut all = Self { patience, tokens: Vec::new(), words: Vec::new(), patterns: Vec::new() };
        if triggers.len() > MOST_TRIGGERS {
            return Err(GrammarError::TooLarge {
                what: "triggers",
                found: triggers.len(),
                most: MOST_TRIGGERS,
            });
        }
        for (index, trigger) in triggers.iter().enumerate() {
            let refused = |problem: String| GrammarError::Trigger { index, problem };
            match trigger {
                Trigger::Token(token) if (*token as usize) < tokens.len() => all.tokens.push(*token),
                Trigger::Token(token) => {
                    let count = tokens.len();
                    return Err(refused(format!("there is no token {token}, the vocabulary has {count}")));
                }
                Trigger::Word(word) if word.is_empty() => return Err(refused("the word is empty".into())),
                Trigger::Word(word) => all.words.push(word.clone().into_bytes()),
                Trigger::Pattern(pattern) => all.patterns.push(compile(pattern).map_err(refused)?),
                Trigger::WholePattern(pattern) => {
                    all.patterns.push(compile(&format!("^(?:{pattern})$")).map_err(refused)?);
                }
            }
        }
        Ok(all)
    }

    /// From where on triggers count; nothing while that is not known. It was not after the first `before` bytes.
    fn free(&self, text: &[u8], before: usize) -> Option<usize> {
        let Some(Passage { begin, end, open }) = &self.patience.passage else { return Some(0) };
        let (begin, end) = (begin.trim_ascii_start().as_bytes(), end.as_bytes());
        let blanks = text.len() - text.trim_ascii_start().len();
        let rest = text.get(blanks..).unwrap_or_default();
        if !open && !rest.starts_with(begin) {
            return if begin.starts_with(rest) { None } else { Some(0) };
        }
        let from = before.saturating_sub(end.len());
        let place = text.get(from..)?.windows(end.len().max(1)).position(|part| part == end)?;
        Some(from + place + end.len())
    }

    /// Where the grammar begins in the text, whose last `new` bytes have just come.
    fn find(&self, text: &[u8], new: usize) -> Option<usize> {
        let word = self.words.iter().filter_map(|word| {
            // Earlier ones would have been found before.
            let from = text.len().saturating_sub(new + word.len() - 1);
            let rest = text.get(from..)?;
            rest.windows(word.len()).position(|window| window == word).map(|at| from + at)
        });
        let pattern = self.patterns.iter().filter_map(|pattern| {
            let mut captures = pattern.create_captures();
            pattern.captures(text, &mut captures);
            let all = captures.get_match()?;
            let group = captures.iter().skip(1).flatten().find(|group| !group.is_empty());
            Some(group.map_or(all.start(), |group| group.start))
        });
        word.chain(pattern).min()
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    let configuration = Regex::config().nfa_size_limit(Some(MOST_PATTERN)).utf8_empty(false);
    // Patterns are searched in bytes, which may be cut within a character.
    let syntax = regex_automata::util::syntax::Config::new().utf8(false).nest_limit(100);
    let built = Regex::builder().configure(configuration).syntax(syntax).build(pattern);
    built.map_err(|error| error.to_string().lines().last().unwrap_or("bad pattern").to_owned())
}

/// The text until the grammar begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    text: Vec<u8>,
    /// The tokens and where they end in the text.
    tokens: Vec<(u32, usize)>,
    /// From where on triggers count, once that is known.
    free: Option<usize>,
}

/// What the grammar gets when it begins.
pub(crate) struct Begin {
    /// The end of the token in which it begins, if it begins within one.
    pub(crate) rest: Vec<u8>,
    /// The tokens after that.
    pub(crate) tokens: Vec<u32>,
}

impl Waiting {
    /// Adds a token; tells what the grammar begins with if a trigger has occurred.
    pub(crate) fn accept(&mut self, triggers: &Triggers, token: u32, bytes: &[u8]) -> Option<Begin> {
        let before = self.text.len();
        self.text.extend_from_slice(bytes);
        self.tokens.push((token, self.text.len()));
        if self.text.len() > MOST_TEXT {
            return None;
        }
        if self.free.is_none() {
            self.free = triggers.free(&self.text, before);
        }
        let free = self.free?;
        if triggers.tokens.contains(&token) && free <= before {
            return Some(Begin { rest: Vec::new(), tokens: vec![token] });
        }
        let start = free + triggers.find(self.text.get(free..)?, bytes.len())?;
        let first = self.tokens.partition_point(|(_, end)| *end <= start);
        let before =
            first.checked_sub(1).and_then(|before| self.tokens.get(before)).map_or(0, |(_, end)| *end);
        let mut tokens = self.tokens.get(first..).unwrap_or_default();
        let mut rest = Vec::new();
        if before < start
            && let Some(((_, end), others)) = tokens.split_first()
        {
            rest = self.text.get(start..*end).unwrap_or_default().to_vec();
            tokens = others;
        }
        Some(Begin { rest, tokens: tokens.iter().map(|(token, _)| *token).collect() })
    }

    /// What has triggered until now does so no more.
    pub(crate) fn pass(&mut self) {
        self.free = Some(self.text.len());
    }

    /// Takes the last tokens back.
    pub(crate) fn rollback(&mut self, count: usize) {
        self.tokens.truncate(self.tokens.len().saturating_sub(count));
        let end = self.tokens.last().map_or(0, |(_, end)| *end);
        self.text.truncate(end);
        self.free = self.free.filter(|free| *free <= end);
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }
}
