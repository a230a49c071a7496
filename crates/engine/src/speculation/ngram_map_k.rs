//! The last tokens were there before: what followed them then. A map finds the place.

use std::collections::HashMap;

use super::followed::{Followed, key};
use super::{NgramSettings, Proposer, Text};

/// Where tokens were seen last, and how often.
struct Seen {
    /// Place of what followed.
    place: usize,
    times: usize,
}

pub(super) struct NgramMap {
    settings: NgramSettings,
    texts: Followed<HashMap<u64, Seen>>,
}

impl NgramMap {
    pub(super) fn new(settings: NgramSettings) -> Self {
        let settings = NgramSettings { size: settings.size.max(1), ..settings };
        Self { settings, texts: Followed::default() }
    }

    fn guess(&mut self, text: &Text<'_>) -> Vec<u32> {
        let NgramSettings { size, most, hits } = self.settings;
        let map = self.texts.follow(text, |map, before, _| {
            if let Some(from) = before.len().checked_sub(size) {
                let seen = map.entry(key(&before[from..])).or_insert(Seen { place: 0, times: 0 });
                *seen = Seen { place: before.len(), times: seen.times + 1 };
            }
        });
        let Some(from) = text.tokens.len().checked_sub(size) else { return Vec::new() };
        match map.get(&key(&text.tokens[from..])) {
            Some(seen) if seen.times >= hits => {
                text.tokens.iter().skip(seen.place).copied().take(most.min(text.most)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Proposer for NgramMap {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        texts.iter().map(|text| self.guess(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_those_of_the_search() {
        let settings = NgramSettings { size: 3, most: 5, hits: 1 };
        let mut simple = super::super::ngram_simple::NgramSimple(settings);
        let mut map = NgramMap::new(settings);
        let tokens: Vec<u32> = (0..300u32).map(|place| place * place % 11 % 4).collect();
        let mut found = 0;
        for length in 1..tokens.len() {
            let text = [Text { sequence: 1, tokens: &tokens[..length], most: 4 }];
            let guess = map.propose(&text);
            assert_eq!(guess, simple.propose(&text), "{length}");
            found += usize::from(!guess[0].is_empty());
        }
        assert!(found > 100, "{found}");
    }
}
