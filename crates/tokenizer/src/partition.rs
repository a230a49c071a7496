//! Finds special tokens in text with one linear scan, before the rest is tokenized.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::vocabulary::{Kind, Vocabulary};
use crate::{Error, Token};

/// A part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment<'a> {
    Text(&'a str),
    Token(Token),
}

/// Scanners for both ways of reading text.
#[derive(Debug)]
pub(crate) struct Partition {
    /// User-defined tokens only.
    plain: Scanner,
    /// Control and unknown tokens too.
    special: Scanner,
}

#[derive(Debug)]
struct Scanner {
    automaton: Option<AhoCorasick>,
    tokens: Vec<Token>,
}

impl Scanner {
    fn new(vocabulary: &Vocabulary, kinds: &[Kind]) -> Result<Scanner, Error> {
        let chosen = vocabulary.iter().filter(|(token, text, kind)| {
            // Of equal texts the first counts.
            kinds.contains(kind) && vocabulary.find(text) == Some(*token)
        });
        let (tokens, texts): (Vec<Token>, Vec<&str>) = chosen.map(|(token, text, _)| (token, text)).unzip();
        if tokens.is_empty() {
            return Ok(Scanner { automaton: None, tokens });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|error| Error::Automaton { message: error.to_string() })?;
        Ok(Scanner { automaton: Some(automaton), tokens })
    }
}

impl Partition {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<Partition, Error> {
        Ok(Partition {
            plain: Scanner::new(vocabulary, &[Kind::UserDefined])?,
            special: Scanner::new(vocabulary, &[Kind::UserDefined, Kind::Control, Kind::Unknown])?,
        })
    }

    /// Cuts text into special tokens and the text between them, in order, without empty parts.
    pub(crate) fn split<'a>(
        &self,
        vocabulary: &Vocabulary,
        text: &'a str,
        parse_special: bool,
    ) -> Vec<Fragment<'a>> {
        let scanner = if parse_special { &self.special } else { &self.plain };
        let mut fragments = Vec::new();
        let mut rest = 0;
        let mut strip_next = false;
        let push_text = |fragments: &mut Vec<_>, text: &'a str, left: bool, right: bool| {
            let text = if left { text.trim_start() } else { text };
            let text = if right { text.trim_end() } else { text };
            if !text.is_empty() {
                fragments.push(Fragment::Text(text));
            }
        };
        for found in scanner.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            let Some(&token) = scanner.tokens.get(found.pattern().as_usize()) else { continue };
            let strip = vocabulary.strip(token);
            push_text(&mut fragments, text.get(rest..found.start()).unwrap_or(""), strip_next, strip.left);
            fragments.push(Fragment::Token(token));
            rest = found.end();
            strip_next = strip.right;
        }
        push_text(&mut fragments, text.get(rest..).unwrap_or(""), strip_next, false);
        fragments
    }
}
