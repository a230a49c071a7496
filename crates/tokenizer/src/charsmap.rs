//! SentencePiece's compiled normalization rules: a double-array trie from texts to their replacements.

use crate::Error;

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// The rules.
#[derive(Debug)]
pub(crate) struct CharsMap {
    units: Vec<Unit>,
    /// Replacements, each ended by a zero byte.
    replacements: Vec<u8>,
    /// What is known of each ASCII character without looking further: most are followed by another one and stay.
    ascii: Vec<Start>,
}

/// Rules that begin with a character.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// It is one itself.
    alone: bool,
    /// Bit `b`: one goes on with the ASCII character `b`.
    before: u128,
}

/// One cell of the trie, packed into 32 bits.
#[derive(Debug, Clone, Copy)]
struct Unit(u32);

impl Unit {
    /// Distance to the cells of the children.
    fn offset(self) -> usize {
        ((self.0 >> 10) << ((self.0 & (1 << 9)) >> 6)) as usize
    }

    /// The byte that leads here. Value cells have a bit that no byte has.
    fn label(self) -> u32 {
        self.0 & ((1 << 31) | 0xff)
    }

    fn has_value(self) -> bool {
        (self.0 >> 8) & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & ((1 << 31) - 1)) as usize
    }
}

impl CharsMap {
    /// Reads the table: its size in bytes, the trie's cells, the replacements.
    pub(crate) fn new(bytes: &[u8]) -> Result<CharsMap, Error> {
        let damaged = |message: String| Error::Damaged { key: KEY, message };
        let (size, rest) = bytes
            .split_first_chunk::<4>()
            .ok_or_else(|| damaged(format!("{} bytes, expected at least 4", bytes.len())))?;
        let size = u32::from_le_bytes(*size) as usize;
        let trie =
            rest.get(..size).filter(|trie| trie.len() % 4 == 0 && !trie.is_empty()).ok_or_else(|| {
                damaged(format!("the trie has {size} bytes, expected a multiple of 4 up to {}", rest.len()))
            })?;
        let (cells, _) = trie.as_chunks::<4>();
        let units = cells.iter().map(|cell| Unit(u32::from_le_bytes(*cell))).collect();
        let replacements = rest.get(size..).unwrap_or_default().to_vec();
        let mut map = CharsMap { units, replacements, ascii: Vec::new() };
        map.ascii = (0..128).map(|byte| map.start(byte)).collect();
        Ok(map)
    }

    /// The node after one more byte, and whether a rule ends there.
    fn step(&self, node: usize, byte: u8) -> Option<(usize, bool)> {
        // Zero bytes end texts in the trie, so they match nothing.
        let node = node ^ usize::from(byte);
        let unit = self.units.get(node).filter(|unit| byte != 0 && unit.label() == u32::from(byte))?;
        Some((node ^ unit.offset(), unit.has_value()))
    }

    fn start(&self, byte: u8) -> Start {
        let root = self.units.first().map_or(0, |unit| unit.offset());
        let Some((node, alone)) = self.step(root, byte) else { return Start { alone: false, before: 0 } };
        let next = (0..128u8).filter(|next| self.step(node, *next).is_some());
        Start { alone, before: next.fold(0, |before, next| before | 1 << next) }
    }

    /// Whether no rule begins with this byte, given the one behind it; 0 stands for the end.
    fn stays(&self, byte: u8, next: u8) -> bool {
        let start = self.ascii.get(usize::from(byte));
        start.is_some_and(|start| !start.alone && next < 128 && start.before >> next & 1 == 0)
    }

    /// Length and replacement of the longest rule that begins `text`.
    fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let mut node = self.units.first()?.offset();
        let mut longest = None;
        for (position, byte) in text.iter().enumerate() {
            let Some((next, has_value)) = self.step(node, *byte) else { break };
            node = next;
            if has_value && let Some(value) = self.units.get(node) {
                longest = Some((position + 1, value.value()));
            }
        }
        let (length, start) = longest?;
        let replacement = self.replacements.get(start..)?;
        let end = replacement.iter().position(|byte| *byte == 0).unwrap_or(replacement.len());
        Some((length, replacement.get(..end)?))
    }

    /// The normalized text.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text;
        loop {
            let bytes = rest.as_bytes();
            let next = bytes.iter().skip(1).chain(&[0]);
            let same = bytes.iter().zip(next).take_while(|(byte, next)| self.stays(**byte, **next)).count();
            let (plain, others) = rest.split_at_checked(same).unwrap_or((rest, ""));
            out.extend_from_slice(plain.as_bytes());
            rest = others;
            let Some(character) = rest.chars().next() else { break };
            // A rule that ends inside a character is not for this text.
            let rule = self.longest(rest.as_bytes()).filter(|(length, _)| rest.is_char_boundary(*length));
            let length = match rule {
                Some((length, replacement)) => {
                    out.extend_from_slice(replacement);
                    length
                }
                None => {
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    character.len_utf8()
                }
            };
            rest = rest.get(length..).unwrap_or("");
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::CharsMap;

    /// A trie with the one rule `A` → `bc`, laid out by hand: the root's children start at 1 << 8, `A` lies at
    /// 256 ^ 0x41, its value at the cell that its offset names.
    fn table() -> Vec<u8> {
        let mut units = vec![0u32; 512];
        units[0] = 256 << 10;
        let place = 256 ^ 0x41;
        units[place] = (1 << 10) | (1 << 8) | 0x41;
        units[place ^ 1] = (1 << 31) | 2;
        let mut bytes = u32::try_from(units.len() * 4).unwrap().to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend_from_slice(b"x\0bc\0");
        bytes
    }

    #[test]
    fn rules_replace_text() {
        let charsmap = CharsMap::new(&table()).unwrap();
        assert_eq!(charsmap.apply("zAé\0A"), "zbcé\0bc");
        assert_eq!(charsmap.apply(""), "");
        assert_eq!(charsmap.apply("plain AA\u{301}z"), "plain bcbc\u{301}z");
    }

    #[test]
    fn damaged_tables_are_refused_or_harmless() {
        let bytes = table();
        for length in 0..8 {
            assert!(CharsMap::new(&bytes[..length]).is_err(), "{length}");
        }
        let mut state = 1u32;
        for _ in 0..2_000 {
            let mut damaged = bytes.clone();
            for _ in 0..16 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let place = 4 + state as usize / 7 % (damaged.len() - 4);
                damaged[place] = (state >> 24) as u8;
            }
            CharsMap::new(&damaged).unwrap().apply("zAé\0A The quick brown fox");
        }
    }
}
