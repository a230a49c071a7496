//! Token by token what most often followed the last one to four.

use std::collections::HashMap;

use super::followed::{Followed, key};
use super::{Proposer, Text};

/// How many tokens must agree, how often what follows must have been seen then, and in which share of all cases. Longer
/// ones are tried first.
const RULES: [(usize, u32, f32); 4] = [(4, 1, 0.5), (3, 1, 0.5), (2, 2, 0.5), (1, 2, 0.66)];
/// Different tokens that are counted after the same ones.
const WAYS: usize = 8;

/// Tokens that followed, with their counts.
type Counts = Vec<(u32, u32)>;

#[derive(Default)]
pub(super) struct NgramCache {
    texts: Followed<HashMap<u64, Counts>>,
}

impl NgramCache {
    fn guess(&mut self, text: &Text<'_>) -> Vec<u32> {
        let cache = self.texts.follow(text, |cache, before, token| {
            for (size, _, _) in RULES {
                if let Some(from) = before.len().checked_sub(size) {
                    count(cache.entry(key(&before[from..])).or_default(), token);
                }
            }
        });
        let longest = RULES[0].0;
        let from = text.tokens.len().saturating_sub(longest);
        let mut tokens = text.tokens[from..].to_vec();
        let start = tokens.len();
        while tokens.len() - start < text.most {
            let Some(token) = next(cache, &tokens) else { break };
            tokens.push(token);
        }
        tokens.split_off(start)
    }
}

/// Counts a token; where there are too many different ones, it takes the place of the rarest.
fn count(counts: &mut Counts, token: u32) {
    if let Some((_, times)) = counts.iter_mut().find(|(seen, _)| *seen == token) {
        *times = times.saturating_add(1);
    } else if counts.len() < WAYS {
        counts.push((token, 1));
    } else if let Some(rarest) = counts.iter_mut().min_by_key(|(_, times)| *times) {
        *rarest = (token, 1);
    }
}

fn next(cache: &HashMap<u64, Counts>, tokens: &[u32]) -> Option<u32> {
    RULES.iter().find_map(|(size, least, share)| {
        let counts = cache.get(&key(&tokens[tokens.len().checked_sub(*size)?..]))?;
        let (token, times) = counts.iter().max_by_key(|(_, times)| *times)?;
        let all: u32 = counts.iter().map(|(_, times)| times).sum();
        (times >= least && *times as f32 >= share * all as f32).then_some(*token)
    })
}

impl Proposer for NgramCache {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        texts.iter().map(|text| self.guess(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[u32], most: usize) -> Vec<u32> {
        NgramCache::default().propose(&[Text { sequence: 0, tokens, most }]).remove(0)
    }

    #[test]
    fn longer_agreement_goes_first_and_single_tokens_must_be_sure() {
        // After 1 most often comes 2, but after 7 1 always 3.
        let text = [1, 2, 9, 1, 2, 8, 7, 1, 3, 5, 1, 2, 7, 1];
        assert_eq!(guess(&text, 1), [2], "once is not enough for two tokens");
        let text = [7, 1, 3, 1, 2, 9, 1, 2, 8, 7, 1, 3, 5, 1, 2, 7, 1];
        assert_eq!(guess(&text, 1), [3]);
        assert!(guess(&[1, 2, 1], 3).is_empty(), "one token, seen once");
        assert_eq!(guess(&[1, 2, 1, 2, 1], 4), [2, 1, 2, 1]);
        assert!(guess(&[5], 4).is_empty());
    }
}
