//! All tokens that begin a given text.

use crate::Token;

/// Bytes of the longest text that is found. At each place of a text all tokens that begin there are looked at, and a file
/// could hold thousands within each other; the longest tokens of real models have less than half of this.
pub(crate) const LONGEST: usize = 512;

/// No token ends here.
const NONE: Token = Token::MAX;

/// A tree of token texts, byte by byte. Nodes lie level by level, so the children of one are neighbours, in order of
/// their bytes: a node needs nothing but where its children begin, and they end where those of the next node begin.
#[derive(Debug)]
pub(crate) struct PrefixTable {
    /// The byte that leads to each node; the first node is the empty text.
    bytes: Vec<u8>,
    /// Where each node's children begin; one more at the end.
    children: Vec<u32>,
    tokens: Vec<Token>,
}

impl PrefixTable {
    /// Of equal texts the first counts; empty ones are left out, and those longer than [`LONGEST`], with a warning.
    pub(crate) fn new(
        entries: impl Iterator<Item = (Vec<u8>, Token)>,
        warnings: &mut Vec<String>,
    ) -> PrefixTable {
        let mut entries: Vec<(Vec<u8>, Token)> = entries.filter(|(text, _)| !text.is_empty()).collect();
        let count = entries.len();
        entries.retain(|(text, _)| text.len() <= LONGEST);
        if entries.len() < count {
            let left = count - entries.len();
            warnings
                .push(format!("{left} tokens are longer than {LONGEST} bytes and are never found in a text"));
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|b, a| a.0 == b.0);
        let mut table = PrefixTable { bytes: vec![0], children: Vec::new(), tokens: Vec::new() };
        // The entries below each node that waits for its children.
        let mut level: Vec<&[(Vec<u8>, Token)]> = vec![&entries];
        let mut depth = 0;
        while !level.is_empty() {
            let mut next = Vec::new();
            for mut below in level {
                table.children.push(u32::try_from(table.bytes.len()).unwrap_or(u32::MAX));
                let own = below.first().filter(|(text, _)| text.len() == depth);
                table.tokens.push(own.map_or(NONE, |(_, token)| *token));
                below = below.get(usize::from(own.is_some())..).unwrap_or_default();
                for group in below.chunk_by(|a, b| a.0.get(depth) == b.0.get(depth)) {
                    table.bytes.extend(group.first().and_then(|(text, _)| text.get(depth)));
                    next.push(group);
                }
            }
            level = next;
            depth += 1;
        }
        table.children.push(u32::try_from(table.bytes.len()).unwrap_or(u32::MAX));
        table
    }

    /// Calls `visit` with the length and the token of each text that begins `text`, shortest first.
    #[inline]
    pub(crate) fn for_each_prefix(&self, text: &[u8], mut visit: impl FnMut(usize, Token)) {
        let mut node = 0;
        for (length, byte) in (1..).zip(text) {
            let (Some(&start), Some(&end)) = (self.children.get(node), self.children.get(node + 1)) else {
                return;
            };
            let (start, end) = (start as usize, end as usize);
            let Some(children) = self.bytes.get(start..end) else { return };
            let place = match children.len() {
                0..=8 => children.iter().position(|child| child == byte),
                _ => children.binary_search(byte).ok(),
            };
            let Some(place) = place else { return };
            node = start + place;
            if let Some(&token) = self.tokens.get(node)
                && token != NONE
            {
                visit(length, token);
            }
        }
    }

    /// Length and token of the longest text that begins `text`.
    pub(crate) fn longest_prefix(&self, text: &[u8]) -> Option<(usize, Token)> {
        let mut longest = None;
        self.for_each_prefix(text, |length, token| longest = Some((length, token)));
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, PrefixTable};

    #[test]
    fn finds_every_prefix() {
        let texts = ["a", "abc", "ab", "b", "abd", "", "ab", "ÿ", "abcdef"];
        let table =
            PrefixTable::new((0..).zip(texts).map(|(token, text)| (text.into(), token)), &mut Vec::new());
        let mut found = Vec::new();
        table.for_each_prefix(b"abcdex", |length, token| found.push((length, token)));
        assert_eq!(found, [(1, 0), (2, 2), (3, 1)]);
        assert_eq!(table.longest_prefix("ÿb".as_bytes()), Some((2, 7)));
        assert_eq!(table.longest_prefix(b"x"), None);
        assert_eq!(table.longest_prefix(b""), None);
        let none = PrefixTable::new(std::iter::empty(), &mut Vec::new());
        assert_eq!(none.longest_prefix(b"x"), None);
        let all = PrefixTable::new((0..=255).map(|byte| (vec![byte], u32::from(byte))), &mut Vec::new());
        assert_eq!(all.longest_prefix(&[200, 1]), Some((1, 200)));
    }

    #[test]
    fn tokens_within_each_other_are_bounded() {
        let mut warnings = Vec::new();
        let table =
            PrefixTable::new((1..=LONGEST as u32 + 9).map(|n| (vec![b'a'; n as usize], n)), &mut warnings);
        assert_eq!(table.longest_prefix(&[b'a'; 4 * LONGEST]), Some((LONGEST, LONGEST as u32)));
        assert_eq!(warnings, ["9 tokens are longer than 512 bytes and are never found in a text"]);
    }
}
