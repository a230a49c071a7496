//! The last tokens were there before: what followed them then. Looks through the text each time.

use super::{NgramSettings, Proposer, Text};

pub(super) struct NgramSimple(pub(super) NgramSettings);

impl NgramSimple {
    fn guess(&self, text: &Text<'_>) -> Vec<u32> {
        let NgramSettings { size, most, hits } = self.0;
        let Some(from) = text.tokens.len().checked_sub(size.max(1)) else { return Vec::new() };
        let last = &text.tokens[from..];
        let before = &text.tokens[..text.tokens.len() - 1];
        let places = before.windows(last.len()).enumerate().rev().filter(|(_, tokens)| *tokens == last);
        let mut places = places.map(|(place, _)| place + last.len()).take(hits.max(1));
        let newest = places.next();
        match newest {
            Some(place) if places.count() + 1 >= hits => {
                text.tokens[place..].iter().copied().take(most.min(text.most)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Proposer for NgramSimple {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        texts.iter().map(|text| self.guess(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(settings: NgramSettings, tokens: &[u32], most: usize) -> Vec<u32> {
        NgramSimple(settings).propose(&[Text { sequence: 0, tokens, most }]).remove(0)
    }

    #[test]
    fn the_newest_continuation_is_repeated() {
        let settings = NgramSettings { size: 2, most: 3, hits: 1 };
        assert_eq!(guess(settings, &[1, 2, 8, 1, 2, 3, 4, 5, 1, 2], 9), [3, 4, 5]);
        assert_eq!(guess(settings, &[1, 2, 8, 1, 2, 3, 4, 5, 1, 2], 1), [3]);
        assert_eq!(guess(settings, &[1, 1, 1], 9), [1], "what overlaps counts");
        assert!(guess(settings, &[1, 2, 3, 2, 1], 9).is_empty());
        for short in [&[1][..], &[1, 2]] {
            assert!(guess(settings, short, 9).is_empty());
        }
        let twice = NgramSettings { hits: 2, ..settings };
        assert!(guess(twice, &[1, 2, 3, 1, 2], 9).is_empty());
        assert_eq!(guess(twice, &[1, 2, 3, 1, 2, 4, 1, 2], 1), [4]);
    }
}
