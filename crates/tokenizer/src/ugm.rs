//! SentencePiece unigram models: normalized text is cut into the tokens of the greatest total score.

use crate::charsmap::CharsMap;
use crate::model::{Model, Source};
use crate::prefix_table::PrefixTable;
use crate::spm::BLOCK;
use crate::vocabulary::{Kind, Vocabulary};
use crate::{Error, Role, Token};

/// How much worse an unknown character is than the worst token.
const UNKNOWN_PENALTY: f64 = 10.0;

#[derive(Debug)]
struct Unigram {
    table: PrefixTable,
    charsmap: Option<CharsMap>,
    merge_spaces: bool,
    unknown_score: f64,
}

pub(crate) fn build(source: Source<'_>) -> Result<Box<dyn Model>, Error> {
    let Source { metadata, vocabulary, .. } = source;
    let charsmap = match metadata.optional_u8_array("tokenizer.ggml.precompiled_charsmap")? {
        Some(bytes) if !bytes.is_empty() => Some(CharsMap::new(&bytes)?),
        _ => None,
    };
    let ordinary = |kind| matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused);
    let entries = vocabulary.iter().filter(|(_, _, kind)| ordinary(*kind));
    let table = PrefixTable::new(entries.map(|(token, text, _)| (text.as_bytes().to_vec(), token)));
    let scores = vocabulary.iter().filter(|(_, _, kind)| *kind == Kind::Normal);
    let scores = scores.filter_map(|(token, _, _)| vocabulary.score(token)).filter(|score| score.is_finite());
    let lowest = scores.map(f64::from).fold(f64::INFINITY, f64::min);
    let lowest = if lowest.is_finite() { lowest } else { 0.0 };
    Ok(Box::new(Unigram {
        table,
        charsmap,
        merge_spaces: metadata.bool_or("tokenizer.ggml.remove_extra_whitespaces", false)?,
        unknown_score: lowest - UNKNOWN_PENALTY,
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

impl Model for Unigram {
    fn encode(&self, vocabulary: &Vocabulary, text: &str, _after_special: bool, tokens: &mut Vec<Token>) {
        let text = self.normalize(vocabulary, text);
        let mut best = vec![Best { score: f64::NEG_INFINITY, start: 0, token: None }; text.len() + 1];
        if let Some(first) = best.first_mut() {
            first.score = 0.0;
        }
        for (start, character) in text.char_indices() {
            let base = best.get(start).map_or(f64::NEG_INFINITY, |here| here.score);
            let mut reach = |length: usize, score: f64, token: Option<Token>| {
                if let Some(place) = best.get_mut(start + length)
                    && base + score > place.score
                {
                    *place = Best { score: base + score, start, token };
                }
            };
            let mut covered = false;
            let rest = text.as_bytes().get(start..).unwrap_or_default();
            self.table.for_each_prefix(rest, |length, token| {
                covered |= length == character.len_utf8();
                let score = match vocabulary.kind(token) {
                    Some(Kind::UserDefined) => 0.0,
                    _ => f64::from(vocabulary.score(token).unwrap_or(0.0)),
                };
                reach(length, score, Some(token));
            });
            if !covered {
                reach(character.len_utf8(), self.unknown_score, None);
            }
        }
        let first = tokens.len();
        let mut end = text.len();
        let mut after_unknown = false;
        while let Some(here) = best.get(end).filter(|here| here.start < end) {
            // A run of unknown characters is one unknown token.
            match here.token {
                Some(token) => tokens.push(token),
                None if !after_unknown => tokens.extend(vocabulary.role(Role::Unknown)),
                None => {}
            }
            after_unknown = here.token.is_none();
            end = here.start;
        }
        if let Some(new) = tokens.get_mut(first..) {
            new.reverse();
        }
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        text.replace(BLOCK, " ").into_bytes()
    }
}
