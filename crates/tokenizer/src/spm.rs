//! SentencePiece byte-pair encoding: characters merge by the score of the token they form, unknown characters become
//! bytes.

use std::cmp::{Ordering, Reverse};

use crate::joints::Joints;
use crate::merge::Merger;
use crate::model::{Model, Source};
use crate::vocabulary::Vocabulary;
use crate::word_cache::WordCache;
use crate::{Error, Role, Token};

/// The character that stands for a space.
pub(crate) const BLOCK: char = '▁';

/// A score with a total order.
#[derive(Debug, Clone, Copy)]
struct Score(f32);

impl PartialEq for Score {
    fn eq(&self, other: &Score) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        // Adding zero makes both zeros equal.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

#[derive(Debug)]
struct SentencePiece {
    joints: Joints,
}

pub(crate) fn build(source: Source<'_>) -> Result<Box<dyn Model>, Error> {
    let joints = Joints::new(source.vocabulary.iter().map(|(_, text, _)| text));
    Ok(Box::new(SentencePiece { joints }))
}

/// Symbol of a character that is no token.
const ABSENT: u32 = u32::MAX;

fn encode_word(
    vocabulary: &Vocabulary,
    word: &str,
    merger: &mut Merger<Reverse<Score>>,
    tokens: &mut Vec<Token>,
) {
    merger.clear();
    for (start, character) in word.char_indices() {
        let length = character.len_utf8();
        let token = word.get(start..start + length).and_then(|text| vocabulary.find(text));
        merger.push(length, token.unwrap_or(ABSENT));
    }
    merger.merge(|_, _, range| {
        if range.len() > vocabulary.longest_text() {
            return None;
        }
        let token = vocabulary.find(word.get(range)?)?;
        Some((Reverse(Score(vocabulary.score(token)?)), token))
    });
    for (token, range) in merger.symbols() {
        if token != ABSENT {
            tokens.push(token);
            continue;
        }
        for byte in word.as_bytes().get(range).unwrap_or_default() {
            tokens.extend(vocabulary.byte_token(*byte).or_else(|| vocabulary.role(Role::Unknown)));
        }
    }
}

impl Model for SentencePiece {
    fn encode(&self, vocabulary: &Vocabulary, text: &str, after_special: bool, tokens: &mut Vec<Token>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + 8);
        if after_special && vocabulary.add_space_prefix() {
            escaped.push(BLOCK);
        }
        for (number, word) in text.split(' ').enumerate() {
            if number > 0 {
                escaped.push(BLOCK);
            }
            escaped.push_str(word);
        }
        let mut merger = Merger::new();
        let mut words = WordCache::new(escaped.len());
        self.joints.split(&escaped, |word| {
            words.encode(word, tokens, |tokens| {
                encode_word(vocabulary, word, &mut merger, tokens);
                true
            });
        });
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        text.replace(BLOCK, " ").into_bytes()
    }
}
