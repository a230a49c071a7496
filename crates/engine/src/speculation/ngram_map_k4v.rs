//! The last tokens were there before: the most frequent of up to four ways in which they went on.

use std::collections::HashMap;

use super::followed::{Followed, key};
use super::{NgramSettings, Proposer, Text};

/// Ways that are kept for the same tokens.
const WAYS: usize = 4;

/// One way in which tokens went on.
#[derive(Clone, Copy)]
struct Way {
    /// Its first token, by which ways differ.
    token: u32,
    /// Its newest place.
    place: usize,
    times: usize,
}

pub(super) struct NgramMap4 {
    settings: NgramSettings,
    texts: Followed<HashMap<u64, Vec<Way>>>,
}

impl NgramMap4 {
    pub(super) fn new(settings: NgramSettings) -> Self {
        let settings = NgramSettings { size: settings.size.max(1), ..settings };
        Self { settings, texts: Followed::default() }
    }

    fn guess(&mut self, text: &Text<'_>) -> Vec<u32> {
        let NgramSettings { size, most, hits } = self.settings;
        let map = self.texts.follow(text, |map, before, token| {
            if let Some(from) = before.len().checked_sub(size) {
                note(map.entry(key(&before[from..])).or_default(), token, before.len());
            }
        });
        let Some(from) = text.tokens.len().checked_sub(size) else { return Vec::new() };
        let ways = map.get(&key(&text.tokens[from..])).map(Vec::as_slice).unwrap_or_default();
        match ways.iter().max_by_key(|way| (way.times, way.place)) {
            Some(way) if way.times >= hits => {
                text.tokens.iter().skip(way.place).copied().take(most.min(text.most)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Counts a way; a fifth one takes the place of the rarest, of equal ones the oldest.
fn note(ways: &mut Vec<Way>, token: u32, place: usize) {
    if let Some(way) = ways.iter_mut().find(|way| way.token == token) {
        *way = Way { token, place, times: way.times + 1 };
        return;
    }
    if ways.len() >= WAYS {
        let rarest = ways.iter().enumerate().min_by_key(|(_, way)| (way.times, way.place));
        if let Some(index) = rarest.map(|(index, _)| index) {
            ways.swap_remove(index);
        }
    }
    ways.push(Way { token, place, times: 1 });
}

impl Proposer for NgramMap4 {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        texts.iter().map(|text| self.guess(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_way_wins() {
        let mut map = NgramMap4::new(NgramSettings { size: 1, most: 2, hits: 1 });
        let mut guess = |tokens: &[u32]| map.propose(&[Text { sequence: 0, tokens, most: 8 }]).remove(0);
        assert_eq!(guess(&[1, 5, 1, 5, 1, 6, 1]), [5, 1]);
        assert_eq!(guess(&[1, 5, 1, 5, 1, 6, 1, 6, 1]), [6, 1], "the newer of equal ones");
        assert!(guess(&[1, 2, 3]).is_empty());
        let mut ways = Vec::new();
        for (place, token) in [7, 8, 8, 9, 10, 11].into_iter().enumerate() {
            note(&mut ways, token, place);
        }
        let mut kept: Vec<u32> = ways.iter().map(|way| way.token).collect();
        kept.sort_unstable();
        assert_eq!(kept, [8, 9, 10, 11]);
    }
}
