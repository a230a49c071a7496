//! SentencePiece unigram models: normalized text is cut into the tokens of the greatest total score.

use crate::charsmap::CharsMap;
use crate::joints::Joints;
use crate::model::{Model, Source};
use crate::prefix_table::PrefixTable;
use crate::spm::BLOCK;
use crate::vocabulary::{Kind, Vocabulary};
use crate::word_cache::WordCache;
use crate::{Error, Role, Token};

/// How much worse an unknown character is than the worst token.
const UNKNOWN_PENALTY: f64 = 10.0;

/// A key of this project: `tokenizer.json` has a way to write what SentencePiece's flag does not say.
pub(crate) const KEEP_LAST_SPACE: &str = "puna.tokenizer.keep_last_space";

#[derive(Debug)]
struct Unigram {
    table: PrefixTable,
    charsmap: Option<CharsMap>,
    merge_spaces: bool,
    /// Although they are merged, spaces at the end stay, as one.
    keep_last_space: bool,
    unknown_score: f64,
    /// Of each token.
    scores: Vec<f64>,
    joints: Joints,
}

pub(crate) fn build(source: Source<'_>) -> Result<Box<dyn Model>, Error> {
    let Source { metadata, vocabulary, warnings } = source;
    let charsmap = match metadata.optional_u8_array("tokenizer.ggml.precompiled_charsmap")? {
        Some(bytes) if !bytes.is_empty() => Some(CharsMap::new(&bytes)?),
        _ => None,
    };
    let ordinary = |kind| matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused);
    let entries = vocabulary.iter().filter(|(_, _, kind)| ordinary(*kind));
    let table = PrefixTable::new(entries.map(|(token, text, _)| (text.as_bytes().to_vec(), token)), warnings);
    let scores = vocabulary.iter().filter(|(_, _, kind)| *kind == Kind::Normal);
    let scores = scores.filter_map(|(token, _, _)| vocabulary.score(token)).filter(|score| score.is_finite());
    let lowest = scores.map(f64::from).fold(f64::INFINITY, f64::min);
    let lowest = if lowest.is_finite() { lowest } else { 0.0 };
    Ok(Box::new(Unigram {
        table,
        charsmap,
        merge_spaces: metadata.bool_or("tokenizer.ggml.remove_extra_whitespaces", false)?,
        keep_last_space: metadata.bool_or(KEEP_LAST_SPACE, false)?,
        unknown_score: lowest - UNKNOWN_PENALTY,
        scores: vocabulary.iter().map(|(token, _, kind)| score(vocabulary, token, kind)).collect(),
        joints: Joints::new(vocabulary.iter().map(|(_, text, _)| text)),
    }))
}

impl Unigram {
    fn normalize(&self, vocabulary: &Vocabulary, text: &str) -> String {
        let mapped = self.charsmap.as_ref().map(|charsmap| charsmap.apply(text));
        let text = mapped.as_deref().unwrap_or(text);
        let mut out = String::with_capacity(text.len() + 8);
        if self.merge_spaces {
            for word in text.split(' ').filter(|word| !word.is_empty()) {
                if !out.is_empty() || vocabulary.add_space_prefix() {
                    out.push(BLOCK);
                }
                out.push_str(word);
            }
            if self.keep_last_space && text.ends_with(' ') {
                out.push(BLOCK);
            }
        } else if !text.is_empty() {
            if vocabulary.add_space_prefix() {
                out.push(BLOCK);
            }
            out.extend(text.chars().map(|character| if character == ' ' { BLOCK } else { character }));
        }
        out
    }
}

/// The best way to reach a position.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f64,
    start: usize,
    /// `None` is an unknown character.
    token: Option<Token>,
}

fn score(vocabulary: &Vocabulary, token: Token, kind: Kind) -> f64 {
    match kind {
        Kind::UserDefined => 0.0,
        _ => f64::from(vocabulary.score(token).unwrap_or(0.0)),
    }
}

impl Unigram {
    /// Appends the tokens of a word; false if it has unknown characters.
    fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        best: &mut Vec<Best>,
        tokens: &mut Vec<Token>,
    ) -> bool {
        best.clear();
        best.resize(word.len() + 1, Best { score: f64::NEG_INFINITY, start: 0, token: None });
        if let Some(first) = best.first_mut() {
            first.score = 0.0;
        }
        for (start, character) in word.char_indices() {
            let base = best.get(start).map_or(f64::NEG_INFINITY, |here| here.score);
            let mut reach = |length: usize, score: f64, token: Option<Token>| {
                if let Some(place) = best.get_mut(start + length)
                    && base + score > place.score
                {
                    *place = Best { score: base + score, start, token };
                }
            };
            let mut covered = false;
            let rest = word.as_bytes().get(start..).unwrap_or_default();
            self.table.for_each_prefix(rest, |length, token| {
                covered |= length == character.len_utf8();
                reach(length, self.scores.get(token as usize).copied().unwrap_or(0.0), Some(token));
            });
            if !covered {
                reach(character.len_utf8(), self.unknown_score, None);
            }
        }
        let first = tokens.len();
        let mut end = word.len();
        let mut after_unknown = false;
        let mut known = true;
        while let Some(here) = best.get(end).filter(|here| here.start < end) {
            // A run of unknown characters is one unknown token.
            match here.token {
                Some(token) => tokens.push(token),
                None if !after_unknown => tokens.extend(vocabulary.role(Role::Unknown)),
                None => {}
            }
            after_unknown = here.token.is_none();
            known &= !after_unknown;
            end = here.start;
        }
        if let Some(new) = tokens.get_mut(first..) {
            new.reverse();
        }
        known
    }
}

impl Model for Unigram {
    fn encode(&self, vocabulary: &Vocabulary, text: &str, _after_special: bool, tokens: &mut Vec<Token>) {
        let text = self.normalize(vocabulary, text);
        let unknown = vocabulary.role(Role::Unknown);
        let first = tokens.len();
        let mut best = Vec::new();
        let mut words = WordCache::new(text.len());
        self.joints.split(&text, |word| {
            words.encode(word, tokens, |tokens| {
                let start = tokens.len();
                let known = self.encode_word(vocabulary, word, &mut best, tokens);
                // The run may have begun in the word before.
                let before = tokens.get(first..start).and_then(<[Token]>::last).copied();
                if !known && before.is_some() && before == unknown && tokens.get(start).copied() == unknown {
                    tokens.remove(start);
                }
                known
            });
        });
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        text.replace(BLOCK, " ").into_bytes()
    }
}
