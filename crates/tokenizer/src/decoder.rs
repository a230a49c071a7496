//! Text from a stream of tokens, whose boundaries may lie inside characters.

use std::collections::HashSet;
use std::sync::Arc;

use crate::{Token, Tokenizer};

/// Turns tokens into text as they come. Each piece of text is complete UTF-8; bytes that cannot become a character
/// are replaced by U+FFFD, one for each maximal ill-formed part as Unicode recommends.
///
/// The text continues something (a prompt), so unlike [`Tokenizer::decode`] a leading space stays.
#[derive(Debug, Clone)]
pub struct Decoder {
    tokenizer: Tokenizer,
    special: bool,
    shown: Arc<HashSet<Token>>,
    pending: Vec<u8>,
}

impl Decoder {
    /// A decoder without any token yet. `special` says whether control tokens are shown.
    pub fn new(tokenizer: &Tokenizer, special: bool) -> Decoder {
        Decoder { tokenizer: tokenizer.clone(), special, shown: Arc::default(), pending: Vec::new() }
    }

    /// The same, but these control tokens are shown too: a reader of the text needs them.
    #[must_use]
    pub fn showing(mut self, tokens: Arc<HashSet<Token>>) -> Decoder {
        self.shown = tokens;
        self
    }

    /// Adds a token and returns the text that is complete now, perhaps none.
    pub fn push(&mut self, token: Token) -> String {
        let piece = self.tokenizer.piece(token, self.special || self.shown.contains(&token));
        self.push_bytes(&piece)
    }

    /// Adds bytes and returns the text that is complete now, perhaps none.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let (text, used) = complete_text(&self.pending);
        self.pending.drain(..used);
        text
    }

    /// Whether bytes of an incomplete character are waiting.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// The text of all bytes but an incomplete character at the end, and how many bytes that is.
fn complete_text(bytes: &[u8]) -> (String, usize) {
    let mut text = String::with_capacity(bytes.len());
    let mut used = 0;
    loop {
        let rest = bytes.get(used..).unwrap_or_default();
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return (text, bytes.len());
            }
            Err(error) => {
                let valid = rest.get(..error.valid_up_to()).unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(valid));
                used += error.valid_up_to();
                match error.error_len() {
                    None => return (text, used),
                    Some(length) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        used += length;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::complete_text;

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        let cases: [(&[u8], &str, usize); 7] = [
            (b"abc", "abc", 3),
            (&[0xed, 0xa0, 0x80], "\u{fffd}\u{fffd}\u{fffd}", 3),
            (&[0xf0, 0x80, 0x80, 0x41], "\u{fffd}\u{fffd}\u{fffd}A", 4),
            (&[0xe2, 0x80, 0x41], "\u{fffd}A", 3),
            (&[0x80], "\u{fffd}", 1),
            (&[0x41, 0xe2, 0x80], "A", 1),
            (&[], "", 0),
        ];
        for (bytes, expected, used) in cases {
            assert_eq!(complete_text(bytes), (expected.to_owned(), used));
        }
    }

    #[test]
    fn any_cut_gives_the_same_text() {
        let text = "é漢🦙👩‍👩‍👧\u{fffd}x";
        for cut in 0..text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            let (mut out, used) = complete_text(a);
            let rest: Vec<u8> = a[used..].iter().chain(b).copied().collect();
            out.push_str(&complete_text(&rest).0);
            assert_eq!(out, text);
        }
    }
}
