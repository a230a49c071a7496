//! DRY ("don't repeat yourself"): makes tokens less probable that would prolong a sequence which has occurred
//! before, the more so the longer it is.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{Needs, Sampler, SamplerSpec};
use crate::Candidates;
use crate::math::{ln, pow};

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "dry",
    aliases: &[],
    letter: 'd',
    build: |parameters| {
        let off = parameters.dry_multiplier == 0.0
            || parameters.dry_base < 1.0
            || parameters.dry_penalty_last_n == 0;
        if off {
            return None;
        }
        Some(Box::new(Dry {
            multiplier: parameters.dry_multiplier,
            base: parameters.dry_base,
            allowed: usize::try_from(parameters.dry_allowed_length).unwrap_or(0),
            // Below 0 there is no limit.
            last_n: usize::try_from(parameters.dry_penalty_last_n).unwrap_or(usize::MAX),
            breakers: parameters.dry_breakers.clone(),
            window: VecDeque::new(),
        }))
    },
};

/// Texts that end a repetition if nobody names others.
pub const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// Longest tail of a breaker in tokens.
const MOST_TAIL: usize = 20;
/// Bytes of a breaker's text that count.
const MOST_TEXT: usize = 40;

/// Token sequences that end a repetition: each begins with a token whose text holds the breaker's text or its
/// beginning, followed by the tokens of the rest.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DryBreakers {
    tails: HashMap<u32, Vec<Vec<u32>>>,
}

impl DryBreakers {
    /// Breakers by their tokens: the first one and the others.
    pub fn from_tokens(sequences: impl IntoIterator<Item = Vec<u32>>) -> Self {
        let mut all = Self::default();
        for sequence in sequences {
            if let Some((head, tail)) = sequence.split_first() {
                all.insert(*head, tail);
            }
        }
        all
    }

    /// Breakers by their texts. `pieces` are the texts of all tokens in order, `encode` gives the tokens of a
    /// text without special ones.
    pub fn from_texts<'a>(
        texts: &[impl AsRef<[u8]>],
        pieces: impl IntoIterator<Item = &'a [u8]>,
        mut encode: impl FnMut(&[u8]) -> Vec<u32>,
    ) -> Self {
        let mut all = Self::default();
        // Encoding what is left over is slow and there are few different rests.
        let mut rests: HashMap<&[u8], Vec<u32>> = HashMap::new();
        for (token, piece) in (0u32..).zip(pieces) {
            for text in texts.iter().map(AsRef::as_ref).filter(|text| !text.is_empty()) {
                let text = &text[..text.len().min(MOST_TEXT)];
                if piece.windows(text.len()).any(|window| window == text) {
                    all.insert(token, &[]);
                    continue;
                }
                // The piece ends with the beginning of the text.
                for length in 1..text.len().min(piece.len() + 1) {
                    let (begin, rest) = text.split_at(length);
                    if piece.ends_with(begin) {
                        let tail = rests.entry(rest).or_insert_with(|| encode(rest));
                        tail.truncate(MOST_TAIL);
                        all.insert(token, tail);
                    }
                }
            }
        }
        all
    }

    fn insert(&mut self, head: u32, tail: &[u32]) {
        let tails = self.tails.entry(head).or_default();
        if !tails.iter().any(|known| known == tail) {
            tails.push(tail.to_vec());
        }
    }

    /// Whether the token alone is a breaker.
    fn is_single(&self, token: u32) -> bool {
        self.tails.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// How many tokens of the reversed history follow the last breaker.
    fn limit(&self, reversed: &[u32]) -> usize {
        for (position, token) in reversed.iter().enumerate() {
            let Some(tails) = self.tails.get(token) else { continue };
            // What follows the head lies before it in the reversed history.
            let follows = |tail: &&Vec<u32>| {
                tail.len() <= position
                    && tail.iter().eq(reversed[position - tail.len()..position].iter().rev())
            };
            if let Some(longest) = tails.iter().filter(follows).map(Vec::len).max() {
                return position - longest;
            }
        }
        reversed.len()
    }
}

struct Dry {
    multiplier: f32,
    base: f32,
    /// Repetitions of fewer tokens cost nothing.
    allowed: usize,
    last_n: usize,
    breakers: Arc<DryBreakers>,
    /// The last tokens, oldest first; grows with what was really accepted.
    window: VecDeque<u32>,
}

/// For each position of `text` how long its beginning recurs there, in linear time (the Z algorithm).
fn recurrences(text: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; text.len()];
    // The known recurrence that reaches furthest.
    let (mut start, mut end) = (0, 0);
    for position in 1..text.len() {
        let mut length = if position < end { lengths[position - start].min(end - position) } else { 0 };
        while position + length < text.len() && text[length] == text[position + length] {
            length += 1;
        }
        lengths[position] = length;
        if position + length > end {
            (start, end) = (position, position + length);
        }
    }
    lengths
}

impl Sampler for Dry {
    fn apply(&mut self, candidates: &mut Candidates) {
        if self.window.len() <= self.allowed {
            return;
        }
        let reversed: Vec<u32> = self.window.iter().rev().copied().collect();
        let limit = self.breakers.limit(&reversed);
        if limit < self.allowed {
            return;
        }
        // The token that followed an earlier occurrence of the end of the history would prolong it.
        let mut longest: HashMap<u32, usize> = HashMap::new();
        for (position, length) in recurrences(&reversed).into_iter().enumerate().skip(1) {
            let length = length.min(limit);
            if length >= self.allowed {
                let entry = longest.entry(reversed[position - 1]).or_default();
                *entry = (*entry).max(length);
            }
        }
        longest.retain(|token, _| !self.breakers.is_single(*token));
        // The largest exponent whose power is still a finite single.
        let base = f64::from(self.base);
        let most = if base > 1.000_001 { (f64::from(88.722_84f32) / ln(base)) as usize } else { usize::MAX };
        let penalties: Vec<(u32, f32)> = longest
            .into_iter()
            .map(|(token, length)| {
                let exponent = (length - self.allowed).min(most);
                (token, self.multiplier * pow(base, exponent as f64) as f32)
            })
            .collect();
        candidates.change(&penalties, |logit, penalty| logit - penalty);
    }

    fn accept(&mut self, token: u32) {
        self.window.push_back(token);
        if self.window.len() > self.last_n {
            self.window.pop_front();
        }
    }

    fn needs(&self) -> Needs {
        if self.multiplier >= 0.0 { Needs::Lowers(self.window.len()) } else { Needs::All }
    }

    fn reset(&mut self) {
        self.window.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;

    /// Probabilities of equal candidates after the history.
    fn penalised(parameters: &Parameters, history: &[u32], count: usize) -> Vec<f32> {
        let mut candidates = Candidates::new(&vec![0.0; count]).unwrap();
        if let Some(mut sampler) = (SPEC.build)(parameters) {
            history.iter().for_each(|token| sampler.accept(*token));
            sampler.apply(&mut candidates);
        }
        candidates.normalise();
        candidates.items().iter().map(|item| item.probability).collect()
    }

    fn with(multiplier: f32, allowed: i32, last_n: i32, breakers: &[&[u32]]) -> Parameters {
        Parameters {
            dry_multiplier: multiplier,
            dry_base: 1.1,
            dry_allowed_length: allowed,
            dry_penalty_last_n: last_n,
            dry_breakers: Arc::new(DryBreakers::from_tokens(breakers.iter().map(|tokens| tokens.to_vec()))),
            ..Parameters::default()
        }
    }

    /// Values that the peer's test suite expects.
    #[test]
    fn values_of_the_peer() {
        let rows: [(Parameters, &[u32], &[f32]); 5] = [
            (with(1.0, 2, 4, &[]), &[0, 1], &[0.25; 4]),
            (with(1.0, 2, 5, &[]), &[0, 1, 2, 0, 1], &[0.296923, 0.296923, 0.109232, 0.296923]),
            (with(1.0, 2, 6, &[&[3]]), &[0, 1, 3, 4, 0, 1], &[0.2; 5]),
            (with(2.0, 2, 5, &[]), &[0, 1, 2, 0, 1], &[0.241818, 0.241818, 0.032727, 0.241818, 0.241818]),
            (with(1.0, 4, 7, &[]), &[0, 1, 2, 3, 4, 0, 1], &[0.2; 5]),
        ];
        for (parameters, history, expected) in rows {
            let found = penalised(&parameters, history, expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5, "{history:?}: {found} {expected}");
            }
        }
    }

    #[test]
    fn longer_repetitions_cost_more() {
        // After 0 1 2 3 . 0 1 2 the token 3 would repeat three tokens: 1 * 1.1^(3 - 2).
        let mut candidates = Candidates::new(&[0.0; 6]).unwrap();
        let mut sampler = (SPEC.build)(&with(1.0, 2, -1, &[])).unwrap();
        [0, 1, 2, 3, 5, 0, 1, 2].iter().for_each(|token| sampler.accept(*token));
        sampler.apply(&mut candidates);
        assert!((candidates.items()[3].logit + 1.1).abs() < 1e-6);
        // A very long one stays finite.
        let mut sampler = (SPEC.build)(&Parameters { dry_base: 3.0, ..with(1.0, 2, -1, &[]) }).unwrap();
        (0..5000).for_each(|_| sampler.accept(1));
        let mut candidates = Candidates::new(&[0.0; 3]).unwrap();
        sampler.apply(&mut candidates);
        assert!(candidates.items()[1].logit.is_finite() && candidates.items()[1].logit < -1e37);
    }

    #[test]
    fn breakers_of_several_tokens() {
        // The text "::" as the tokens 3 3 or in the middle of other tokens.
        let pieces: [&[u8]; 5] = [b"a", b"b", b"::x", b":", b"y:"];
        let found = DryBreakers::from_texts(&["::"], pieces, |rest| vec![3; rest.len()]);
        assert!(found.is_single(2));
        assert_eq!(found.tails[&3], [vec![3]]);
        assert_eq!(found.tails[&4], [vec![3]]);
        assert_eq!(found.limit(&[0, 1, 3, 3, 0]), 2); // reversed: a :: b a
        assert_eq!(found.limit(&[0, 1, 3, 4, 0]), 2);
        assert_eq!(found.limit(&[0, 1, 3, 0, 0]), 5); // one colon is none
        assert_eq!(found.limit(&[0, 2]), 1);
    }

    #[test]
    fn recurrences_by_hand() {
        assert_eq!(recurrences(&[1, 1, 1, 1]), [0, 3, 2, 1]);
        assert_eq!(recurrences(&[1, 2, 1, 2, 1, 3, 1]), [0, 0, 3, 0, 1, 0, 1]);
        assert!(recurrences(&[]).is_empty());
    }
}
