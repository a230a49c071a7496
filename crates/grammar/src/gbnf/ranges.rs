//! Sets of characters, and the byte sequences that encode them.

use regex_syntax::utf8::Utf8Sequences;

/// A set of characters: ranges in order that neither touch nor overlap.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Ranges(Vec<(char, char)>);

/// The character after this one, leaving out the surrogates.
fn after(c: char) -> Option<char> {
    match c {
        '\u{d7ff}' => Some('\u{e000}'),
        _ => char::from_u32(c as u32 + 1),
    }
}

/// The character before this one.
fn before(c: char) -> Option<char> {
    match c {
        '\u{e000}' => Some('\u{d7ff}'),
        _ => (c as u32).checked_sub(1).and_then(char::from_u32),
    }
}

impl Ranges {
    /// The union of these ranges, both ends included.
    pub(crate) fn new(mut ranges: Vec<(char, char)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(char, char)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= *end || after(*end) == Some(first) => *end = (*end).max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// Every character.
    pub(crate) fn all() -> Self {
        Self(vec![('\0', char::MAX)])
    }

    /// Every character that is not in the set.
    pub(crate) fn negated(&self) -> Self {
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some('\0');
        for (first, last) in &self.0 {
            if let (Some(start), Some(end)) = (next, before(*first))
                && start <= end
            {
                rest.push((start, end));
            }
            next = after(*last);
        }
        rest.extend(next.map(|start| (start, char::MAX)));
        Self(rest)
    }

    /// The byte sequences that encode the set: each a list of byte ranges.
    pub(crate) fn sequences(&self) -> Vec<Vec<(u8, u8)>> {
        let sequences = self.0.iter().flat_map(|(first, last)| Utf8Sequences::new(*first, *last));
        sequences
            .map(|sequence| sequence.as_slice().iter().map(|range| (range.start, range.end)).collect())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_and_their_complements() {
        let set = Ranges::new(vec![('d', 'f'), ('a', 'b'), ('c', 'c'), ('z', 'z'), ('e', 'e')]);
        assert_eq!(set.0, [('a', 'f'), ('z', 'z')]);
        let rest = set.negated();
        assert_eq!(rest.0, [('\0', '`'), ('g', 'y'), ('{', char::MAX)]);
        assert_eq!(rest.negated(), set);
        assert_eq!(Ranges::new(Vec::new()).negated(), Ranges::all());
        assert_eq!(Ranges::all().negated(), Ranges::default());
        let around = Ranges::new(vec![('\u{e000}', '\u{e000}')]).negated();
        assert_eq!(around.0, [('\0', '\u{d7ff}'), ('\u{e001}', char::MAX)]);
    }

    #[test]
    fn characters_are_encoded() {
        assert_eq!(Ranges::new(vec![('a', 'c')]).sequences(), [vec![(b'a', b'c')]]);
        assert_eq!(Ranges::new(vec![('é', 'é')]).sequences(), [vec![(0xc3, 0xc3), (0xa9, 0xa9)]]);
        // Every character, checked by encoding some.
        let all = Ranges::all().sequences();
        for c in
            ['\0', 'x', '\u{80}', '\u{7ff}', '\u{800}', '\u{d7ff}', '\u{e000}', '\u{ffff}', '🦙', char::MAX]
        {
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).as_bytes();
            let matches = |sequence: &&Vec<(u8, u8)>| {
                sequence.len() == bytes.len()
                    && sequence.iter().zip(bytes).all(|((low, high), byte)| (low..=high).contains(&byte))
            };
            assert_eq!(all.iter().filter(matches).count(), 1, "{c:?}");
        }
    }
}
