//! How long a text may reason: after so many tokens the end of its reasoning is forced.

use std::sync::Arc;

use crate::{Passage, Tokens};

/// Bytes in which the beginning of the reasoning is looked for; a text that begins with more blanks does not reason.
const MOST_LEAD: usize = 1 << 10;

/// A limit of the reasoning of texts.
#[derive(Clone, Debug)]
pub struct Budget {
    tokens: Arc<Tokens>,
    passage: Passage,
    limit: usize,
    closing: Arc<[u32]>,
}

impl Budget {
    /// The part `passage` of a text has at most `limit` tokens; then come those of `closing`, which should end it.
    pub fn new(tokens: &Arc<Tokens>, passage: Passage, limit: usize, closing: Vec<u32>) -> Self {
        Self { tokens: tokens.clone(), passage, limit, closing: closing.into() }
    }

    /// A text at its beginning.
    pub fn countdown(&self) -> Countdown {
        let stage = match self.passage.open {
            true => Stage::Counting,
            false => Stage::Lead,
        };
        let mut countdown = Countdown { budget: self.clone(), stage, text: Vec::new(), used: 0 };
        countdown.check();
        countdown
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The reasoning may begin.
    Lead,
    Counting,
    /// So many tokens of the closing have come.
    Forcing(usize),
    Done,
}

/// How far one text is.
#[derive(Clone, Debug)]
pub struct Countdown {
    budget: Budget,
    stage: Stage,
    /// The text so far, later only as much of its end as can hold a mark.
    text: Vec<u8>,
    /// Tokens of the reasoning.
    used: usize,
}

impl Countdown {
    /// The token that has to come next, if the reasoning must end.
    pub fn forced(&self) -> Option<u32> {
        match self.stage {
            Stage::Forcing(done) => self.budget.closing.get(done).copied(),
            _ => None,
        }
    }

    /// Goes on with this token. One that is not the forced one ends the forcing.
    pub fn accept(&mut self, token: u32) {
        let bytes = self.budget.tokens.get(token).map_or(&[][..], |token| &token.bytes);
        match self.stage {
            Stage::Done => return,
            Stage::Forcing(done) => {
                let right = self.budget.closing.get(done) == Some(&token);
                let more = right && done + 1 < self.budget.closing.len();
                self.stage = if more { Stage::Forcing(done + 1) } else { Stage::Done };
                return;
            }
            Stage::Lead => {
                self.text.extend_from_slice(bytes);
                let begin = self.budget.passage.begin.trim_ascii_start().as_bytes();
                let text = self.text.trim_ascii_start();
                if let Some(rest) = text.strip_prefix(begin) {
                    // What the same token has after the mark counts, if it is anything.
                    (self.used, self.text) = (usize::from(!rest.is_empty()), rest.to_vec());
                    self.stage = Stage::Counting;
                } else if !begin.starts_with(text) || self.text.len() > MOST_LEAD {
                    self.stage = Stage::Done;
                }
            }
            Stage::Counting => {
                self.text.extend_from_slice(bytes);
                self.used += 1;
            }
        }
        self.check();
    }

    /// Whether the reasoning has ended, or must.
    fn check(&mut self) {
        if self.stage != Stage::Counting {
            return;
        }
        let end = self.budget.passage.end.as_bytes();
        if !end.is_empty() && self.text.windows(end.len()).any(|part| part == end) {
            self.stage = Stage::Done;
            return;
        }
        // Not within a character, nor within a mark that the text writes by itself.
        let begun = (1..end.len()).any(|length| self.text.ends_with(&end[..length]));
        let patient = self.budget.limit.saturating_add(end.len());
        let over = self.used >= if begun { patient } else { self.budget.limit };
        if over && is_whole(&self.text) {
            self.stage = if self.budget.closing.is_empty() { Stage::Done } else { Stage::Forcing(0) };
        }
        let kept = self.text.len().saturating_sub(end.len().max(4));
        self.text.drain(..kept);
    }
}

/// Whether a text does not end within a character.
fn is_whole(text: &[u8]) -> bool {
    let last = text.iter().rev().take(4).position(|byte| *byte & 0xc0 != 0x80);
    let Some(after) = last else { return true };
    let length = match text.get(text.len() - 1 - after) {
        Some(0xc0..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf7) => 4,
        _ => 1,
    };
    after + 1 >= length
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as tokens; the closing is `!</t>`.
    fn budget(limit: usize, open: bool) -> Budget {
        let passage = Passage { begin: "<t>".into(), end: "</t>".into(), open };
        let closing = "!</t>".bytes().map(u32::from).collect();
        Budget::new(&Tokens::bytes(), passage, limit, closing)
    }

    /// What becomes of a text that a model wants to write.
    fn written(budget: &Budget, wanted: &str) -> String {
        let mut countdown = budget.countdown();
        let mut wanted = wanted.bytes();
        let mut text = Vec::new();
        loop {
            let token = match countdown.forced() {
                Some(token) => token,
                None => match wanted.next() {
                    Some(byte) => u32::from(byte),
                    None => break,
                },
            };
            countdown.accept(token);
            text.push(token as u8);
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn reasoning_ends_after_so_many_tokens() {
        for (limit, open, wanted, expected) in [
            (3, true, "abcdef", "abc!</t>def"),
            (3, false, "<t>abcdef", "<t>abc!</t>def"),
            (0, true, "abc", "!</t>abc"),
            (0, false, " \n<t>abc", " \n<t>!</t>abc"),
            // What ends earlier, or never begins, is left alone.
            (3, true, "a</t>bcdef", "a</t>bcdef"),
            (9, false, "<t>ab</t>cdefghijklmnop", "<t>ab</t>cdefghijklmnop"),
            (3, false, "abc<t>defghi", "abc<t>defghi"),
            (3, false, "<x>abcdef", "<x>abcdef"),
            // A mark that has begun may end, but not begin for ever.
            (2, true, "a</xbc", "a</x!</t>bc"),
            (2, true, "a<<<<<<<<<<", "a<<<<<!</t><<<<<"),
            // Characters stay whole.
            (2, true, "aé\u{1f999}b", "aé!</t>\u{1f999}b"),
            (4, true, "aé\u{1f999}b", "aé\u{1f999}!</t>b"),
        ] {
            assert_eq!(written(&budget(limit, open), wanted), expected, "{limit} {open} {wanted}");
        }
    }

    #[test]
    fn whoever_does_not_obey_is_not_forced_again() {
        let mut countdown = budget(0, true).countdown();
        assert_eq!(countdown.forced(), Some(u32::from(b'!')));
        countdown.accept(u32::from(b'x'));
        assert_eq!(countdown.forced(), None);
        countdown.accept(999);
        assert_eq!(countdown.forced(), None);
        let nothing = Budget { closing: Arc::from([]), ..budget(0, true) };
        assert_eq!(nothing.countdown().forced(), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut countdown = budget(usize::MAX, true).countdown();
        (0..100_000).for_each(|_| countdown.accept(u32::from(b'a')));
        assert!(countdown.text.len() <= 8);
        let mut countdown = budget(1, false).countdown();
        (0..100_000).for_each(|_| countdown.accept(u32::from(b' ')));
        assert!(countdown.text.len() <= MOST_LEAD + 1);
    }
}
