//! Words that came before in a text need no work: their tokens are copied.

use crate::Token;

/// Bytes of text for each slot: words are about this long.
const BYTES_PER_SLOT: usize = 8;
/// Slots at most; they fit into a processor's second cache with what they point at.
const MOST_SLOTS: usize = 1 << 15;

/// Where in the output the tokens of a word lie. Each word has one slot and the last one with that slot keeps it, so no
/// text can make this slow or large.
pub(crate) struct WordCache<'a> {
    slots: Vec<Slot<'a>>,
}

#[derive(Clone, Copy)]
struct Slot<'a> {
    word: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> WordCache<'a> {
    /// For a text of so many bytes.
    pub(crate) fn new(text: usize) -> WordCache<'a> {
        let slots = (text / BYTES_PER_SLOT).clamp(1, MOST_SLOTS).next_power_of_two();
        WordCache { slots: vec![Slot { word: &[], start: 0, end: 0 }; slots] }
    }

    /// Appends the tokens of a word: a copy, or what `encode` appends. All calls must have the same output, to which
    /// nothing else happens between them than that more is appended. `encode` returns whether its tokens depend on
    /// the word alone.
    pub(crate) fn encode(
        &mut self,
        word: &'a str,
        tokens: &mut Vec<Token>,
        encode: impl FnOnce(&mut Vec<Token>) -> bool,
    ) {
        let word = word.as_bytes();
        let place = hash(word) as usize & (self.slots.len() - 1);
        let start = tokens.len();
        let Some(slot) = self.slots.get_mut(place) else { return };
        if slot.word == word {
            tokens.extend_from_within(slot.start..slot.end);
        } else if encode(tokens) {
            *slot = Slot { word, start, end: tokens.len() };
        }
    }
}

/// A quick hash; what it does badly only costs copies.
fn hash(word: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, part: u64| {
        let product = u128::from(hash ^ part) * u128::from(ODD);
        (product as u64) ^ (product >> 64) as u64
    };
    let length = word.len();
    let hash = length as u64;
    if let (Some(first), Some(last)) = (word.first_chunk::<8>(), word.last_chunk::<8>()) {
        let (chunks, _) = word.as_chunks::<8>();
        let inner = chunks.iter().skip(1).map(|chunk| u64::from_le_bytes(*chunk));
        let hash = inner.fold(mix(hash, u64::from_le_bytes(*first)), mix);
        return mix(hash, u64::from_le_bytes(*last));
    }
    let part = match (word.first_chunk::<4>(), word.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
        }
        _ => word.iter().fold(0, |part, byte| part << 8 | u64::from(*byte)),
    };
    mix(hash, part)
}

#[cfg(test)]
mod tests {
    use super::{WordCache, hash};

    #[test]
    fn the_second_time_is_a_copy() {
        let mut cache = WordCache::new(100);
        let mut tokens = Vec::new();
        let mut calls = 0;
        let text = String::from("one two one three one 漢漢漢漢 two 漢漢漢漢");
        for word in text.split(' ') {
            cache.encode(word, &mut tokens, |tokens| {
                calls += 1;
                tokens.extend(word.bytes().map(u32::from));
                word != "two"
            });
        }
        let expected: Vec<u32> = text.bytes().filter(|byte| *byte != b' ').map(u32::from).collect();
        assert_eq!(tokens, expected);
        // Not cached twice, and no more than one collision among so few.
        assert!((5..=7).contains(&calls), "{calls}");
    }

    #[test]
    fn hashes_see_every_byte() {
        for length in 1..40 {
            let word = vec![b'a'; length];
            for place in 0..length {
                let mut other = word.clone();
                other[place] = b'b';
                assert_ne!(hash(&word), hash(&other), "{length} {place}");
            }
        }
    }
}
