//! WordPiece, the tokenizer of BERT: text is normalized and cut into words, each of which is covered by the longest
//! tokens from the left or is unknown as a whole.

use regex_automata::meta::Regex;
use unicode_normalization::UnicodeNormalization;

use crate::model::{Model, Source};
use crate::prefix_table::PrefixTable;
use crate::spm::BLOCK;
use crate::vocabulary::Vocabulary;
use crate::word_cache::WordCache;
use crate::{Error, Role, Token};

/// Words of more characters are unknown, as in the original.
const LONGEST_WORD: usize = 100;

/// Characters that are dropped: controls, formats, private and unassigned ones and U+FFFD.
const DROPPED: &str = r"[\p{C}\x{fffd}&&[^\t\n\r]]+";
/// Nonspacing marks, which is what accents become in decomposed text.
const ACCENTS: &str = r"\p{Mn}+";
/// A word: one punctuation mark, one CJK ideograph, or everything between those and whitespace.
const WORDS: &str = concat!(
    r"[!-/:-@\[-`\{-\x7e\p{P}]",
    r"|[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}\x{2b740}-\x{2b81f}",
    r"\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}]",
    r"|[^\s!-/:-@\[-`\{-\x7e\p{P}",
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}\x{2b740}-\x{2b81f}",
    r"\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}]+",
);

#[derive(Debug)]
struct WordPiece {
    table: PrefixTable,
    lowercase: bool,
    strip_accents: bool,
    dropped: Regex,
    accents: Regex,
    words: Regex,
}

pub(crate) fn build(source: Source<'_>) -> Result<Box<dyn Model>, Error> {
    let Source { metadata, vocabulary, warnings } = source;
    let lowercase = metadata.bool_or("tokenizer.ggml.normalizer.lowercase", true)?;
    let strip_accents = metadata.bool_or("tokenizer.ggml.normalizer.strip_accents", lowercase)?;
    let compile =
        |pattern| Regex::new(pattern).map_err(|error| Error::Automaton { message: error.to_string() });
    let entries = vocabulary.iter().map(|(token, text, _)| (text.as_bytes().to_vec(), token));
    Ok(Box::new(WordPiece {
        table: PrefixTable::new(entries, warnings),
        lowercase,
        strip_accents,
        dropped: compile(DROPPED)?,
        accents: compile(ACCENTS)?,
        words: compile(WORDS)?,
    }))
}

fn remove(pattern: &Regex, text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = 0;
    for found in pattern.find_iter(text) {
        kept.push_str(text.get(rest..found.start()).unwrap_or(""));
        rest = found.end();
    }
    kept.push_str(text.get(rest..).unwrap_or(""));
    kept
}

impl WordPiece {
    fn normalize(&self, text: &str) -> String {
        let mut text = remove(&self.dropped, text);
        if self.strip_accents {
            text = remove(&self.accents, &text.nfd().collect::<String>());
        }
        if self.lowercase {
            text = text.chars().flat_map(char::to_lowercase).collect();
        }
        text
    }

    /// Appends the tokens of a part of a text between spaces.
    fn encode_part(&self, part: &str, scratch: &mut String, unknown: Option<Token>, tokens: &mut Vec<Token>) {
        let mut word = |word: &str, lowercase: bool| {
            scratch.clear();
            scratch.push(BLOCK);
            scratch.push_str(word);
            if lowercase {
                scratch.make_ascii_lowercase();
            }
            let start = tokens.len();
            if self.encode_word(scratch, tokens).is_none() {
                tokens.truncate(start);
                tokens.extend(unknown);
            }
        };
        if part.bytes().all(|byte| byte.is_ascii_graphic()) {
            // Of ASCII there is nothing to normalize but its case.
            let mut start = 0;
            let marks = part.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_punctuation());
            for (place, _) in marks.chain([(part.len(), 0)]) {
                let ranges = [start..place, place..place + 1];
                let parts =
                    ranges.into_iter().filter_map(|range| part.get(range).filter(|part| !part.is_empty()));
                parts.for_each(|part| word(part, self.lowercase));
                start = place + 1;
            }
        } else {
            let part = self.normalize(part);
            self.words.find_iter(&part).for_each(|found| word(part.get(found.range()).unwrap_or(""), false));
        }
    }

    /// Appends the tokens of one word with a mark before it, or returns `None` and leaves some of them.
    fn encode_word(&self, word: &str, tokens: &mut Vec<Token>) -> Option<()> {
        if word.len() > LONGEST_WORD && word.chars().count() > LONGEST_WORD + 1 {
            return None;
        }
        let mut rest = word.as_bytes();
        while !rest.is_empty() {
            let (length, token) = self.table.longest_prefix(rest)?;
            // The mark alone is no piece of the word.
            if length == BLOCK.len_utf8() && rest.len() == word.len() {
                return None;
            }
            tokens.push(token);
            rest = rest.get(length..)?;
        }
        Some(())
    }
}

impl Model for WordPiece {
    fn encode(&self, vocabulary: &Vocabulary, text: &str, _after_special: bool, tokens: &mut Vec<Token>) {
        let unknown = vocabulary.role(Role::Unknown);
        let mut scratch = String::new();
        let mut parts = WordCache::new(text.len());
        // These four end words, and no normalization reaches over them.
        for part in text.split([' ', '\t', '\n', '\r']).filter(|part| !part.is_empty()) {
            parts.encode(part, tokens, |tokens| {
                self.encode_part(part, &mut scratch, unknown, tokens);
                true
            });
        }
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        text.replace(BLOCK, " ").into_bytes()
    }
}
