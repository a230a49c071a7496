//! PLaMo 2's unigram tokenizer: the cut of the greatest total score, found from the right; characters without a token
//! become bytes.

use crate::model::{Model, Source};
use crate::prefix_table::PrefixTable;
use crate::vocabulary::{Kind, Vocabulary};
use crate::{Error, Role, Token};

/// Scores are summed as integers, in steps of this part.
const STEPS_PER_UNIT: f32 = 10_000.0;
/// Score of a character that must be written in bytes.
const UNKNOWN_SCORE: i64 = -10_000_000;

#[derive(Debug)]
struct Plamo2 {
    table: PrefixTable,
}

pub(crate) fn build(source: Source<'_>) -> Result<Box<dyn Model>, Error> {
    let entries = source.vocabulary.iter().filter(|(_, _, kind)| *kind == Kind::Normal);
    let entries = entries.map(|(token, text, _)| (text.as_bytes().to_vec(), token));
    Ok(Box::new(Plamo2 { table: PrefixTable::new(entries, source.warnings) }))
}

impl Model for Plamo2 {
    fn encode(&self, vocabulary: &Vocabulary, text: &str, _after_special: bool, tokens: &mut Vec<Token>) {
        // For each position: score of the rest, length of its first piece, and the token if there is one.
        let mut best: Vec<(i64, usize, Option<Token>)> = vec![(0, 0, None); text.len() + 1];
        for (start, character) in text.char_indices().rev() {
            let rest_score = |length: usize| best.get(start + length).map_or(0, |rest| rest.0);
            let length = character.len_utf8();
            let mut here = (UNKNOWN_SCORE.saturating_add(rest_score(length)), length, None);
            let rest = text.as_bytes().get(start..).unwrap_or_default();
            self.table.for_each_prefix(rest, |length, token| {
                let score = (vocabulary.score(token).unwrap_or(0.0) * STEPS_PER_UNIT).round() as i64;
                let score = score.saturating_add(rest_score(length));
                // Of equal scores, the longest piece.
                if score >= here.0 {
                    here = (score, length, Some(token));
                }
            });
            if let Some(place) = best.get_mut(start) {
                *place = here;
            }
        }
        let mut start = 0;
        while let Some((_, length, token)) = best.get(start).copied().filter(|(_, length, _)| *length > 0) {
            match token {
                Some(token) => tokens.push(token),
                None => {
                    let bytes = text.as_bytes().get(start..start + length).unwrap_or_default();
                    let byte = |byte| vocabulary.byte_token(byte).or_else(|| vocabulary.role(Role::Unknown));
                    tokens.extend(bytes.iter().copied().filter_map(byte));
                }
            }
            start += length;
        }
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }
}
