//! All tokens that begin a given text.

use crate::Token;

/// Token texts in order. A search narrows the range of texts that share a prefix byte by byte, so it needs no more
/// memory than the texts themselves, whatever they are.
#[derive(Debug)]
pub(crate) struct PrefixTable {
    entries: Vec<(Box<[u8]>, Token)>,
    /// Where the texts with each first byte start; one more at the end.
    starts: Vec<usize>,
}

impl PrefixTable {
    /// Of equal texts the first counts; empty ones are left out.
    pub(crate) fn new(entries: impl Iterator<Item = (Vec<u8>, Token)>) -> PrefixTable {
        let mut entries: Vec<(Box<[u8]>, Token)> = entries
            .filter(|(text, _)| !text.is_empty())
            .map(|(text, token)| (text.into_boxed_slice(), token))
            .collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|b, a| a.0 == b.0);
        let starts = (0..=256u16)
            .map(|byte| {
                entries
                    .partition_point(|(text, _)| text.first().is_some_and(|first| u16::from(*first) < byte))
            })
            .collect();
        PrefixTable { entries, starts }
    }

    /// Calls `visit` with the length and the token of each text that begins `text`, shortest first.
    pub(crate) fn for_each_prefix(&self, text: &[u8], mut visit: impl FnMut(usize, Token)) {
        let Some(&first) = text.first() else { return };
        let first = usize::from(first);
        let start = self.starts.get(first).copied().unwrap_or(0);
        let end = self.starts.get(first + 1).copied().unwrap_or(start);
        let mut range = self.entries.get(start..end).unwrap_or_default();
        for length in 1..=text.len() {
            if let Some((entry, token)) = range.first()
                && entry.len() == length
            {
                visit(length, *token);
            }
            let Some(&next) = text.get(length) else { return };
            let byte = |entry: &(Box<[u8]>, Token)| entry.0.get(length).copied();
            let start = range.partition_point(|entry| byte(entry).is_none_or(|byte| byte < next));
            range = range.get(start..).unwrap_or_default();
            let end = range.partition_point(|entry| byte(entry).is_some_and(|byte| byte == next));
            range = range.get(..end).unwrap_or_default();
            if range.is_empty() {
                return;
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
    use super::PrefixTable;

    #[test]
    fn finds_every_prefix() {
        let texts = ["a", "abc", "ab", "b", "abd", "", "ab", "ÿ", "abcdef"];
        let table = PrefixTable::new((0..).zip(texts).map(|(token, text)| (text.into(), token)));
        let mut found = Vec::new();
        table.for_each_prefix(b"abcdex", |length, token| found.push((length, token)));
        assert_eq!(found, [(1, 0), (2, 2), (3, 1)]);
        assert_eq!(table.longest_prefix("ÿb".as_bytes()), Some((2, 7)));
        assert_eq!(table.longest_prefix(b"x"), None);
        assert_eq!(table.longest_prefix(b""), None);
    }
}
