//! Something known about each sequence's text, kept up to date as it grows.

use super::Text;

/// An index for the text of each sequence.
#[derive(Default)]
pub(super) struct Followed<I> {
    texts: Vec<(Vec<u32>, I)>,
}

impl<I: Default> Followed<I> {
    /// The index of a text after `add` was told of each new token: it gets what comes before the token, and the token.
    /// A text that no longer begins as it did is another one and gets a new index.
    pub(super) fn follow(&mut self, text: &Text<'_>, mut add: impl FnMut(&mut I, &[u32], u32)) -> &mut I {
        if self.texts.len() <= text.sequence {
            self.texts.resize_with(text.sequence + 1, Default::default);
        }
        let (seen, index) = &mut self.texts[text.sequence];
        if !text.tokens.starts_with(seen) {
            seen.clear();
            *index = I::default();
        }
        for place in seen.len()..text.tokens.len() {
            add(index, &text.tokens[..place], text.tokens[place]);
        }
        seen.extend_from_slice(&text.tokens[seen.len()..]);
        index
    }
}

/// A key for tokens. Different ones seldom have the same, which costs a wrong guess.
pub(super) fn key(tokens: &[u32]) -> u64 {
    let mix = |hash: u64, token: &u32| {
        let hash = (hash ^ u64::from(*token)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^ hash >> 29
    };
    tokens.iter().fold(tokens.len() as u64, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_told_once_and_another_text_starts_over() {
        let mut followed: Followed<Vec<(usize, u32)>> = Followed::default();
        let mut see = |sequence, tokens: &[u32]| {
            let text = Text { sequence, tokens, most: 1 };
            followed.follow(&text, |index, before, token| index.push((before.len(), token))).clone()
        };
        assert_eq!(see(2, &[5, 6]), [(0, 5), (1, 6)]);
        assert_eq!(see(0, &[9]), [(0, 9)]);
        assert_eq!(see(2, &[5, 6, 7]), [(0, 5), (1, 6), (2, 7)]);
        assert_eq!(see(2, &[5, 6]), [(0, 5), (1, 6)], "shorter is another one");
        assert_eq!(see(2, &[5, 8, 7]), [(0, 5), (1, 8), (2, 7)]);
    }
}
