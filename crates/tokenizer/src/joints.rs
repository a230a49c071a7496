//! Where a text can be cut without any token reaching over the cut.
//!
//! If no token holds two characters beside each other, merges and the best cut are found on both sides alone. Cuts are
//! looked for between ASCII characters and before `▁`, which is where words begin.

use crate::spm::BLOCK;
use std::collections::HashSet;

const BLOCK_BYTES: &[u8] = "▁".as_bytes();

/// Pairs of neighbours that occur within tokens.
#[derive(Debug)]
pub(crate) struct Joints {
    /// Bit `b` of element `a`: some token holds the ASCII characters `a`, `b`.
    ascii: [u128; 128],
    /// Bit `a`: some token holds `a`, `▁`.
    ascii_before_block: u128,
    before_block: HashSet<char>,
}

impl Joints {
    /// Of all texts that merges can make or that are tokens.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Joints {
        let mut joints = Joints { ascii: [0; 128], ascii_before_block: 0, before_block: HashSet::new() };
        for text in texts {
            let mut before = None;
            for character in text.chars() {
                if let Some(before) = before.replace(character) {
                    joints.add(before, character);
                }
            }
        }
        joints
    }

    fn add(&mut self, before: char, after: char) {
        match (u8::try_from(before).ok().filter(u8::is_ascii), after) {
            (Some(before), BLOCK) => self.ascii_before_block |= 1 << before,
            (None, BLOCK) => drop(self.before_block.insert(before)),
            (Some(before), after) if after.is_ascii() => {
                if let Some(row) = self.ascii.get_mut(usize::from(before)) {
                    *row |= 1 << after as u32;
                }
            }
            _ => {}
        }
    }

    /// The parts of a text, in order, without empty ones.
    pub(crate) fn split<'a>(&self, text: &'a str, mut visit: impl FnMut(&'a str)) {
        let mut start = 0;
        let mut before = 0xff;
        for (place, &byte) in text.as_bytes().iter().enumerate() {
            let joined = match byte {
                0..128 => self.ascii.get(usize::from(before)).is_none_or(|row| row >> byte & 1 == 1),
                0xe2 => self.joined_to_block(text, place, before),
                _ => true,
            };
            before = byte;
            if !joined && let Some(part) = text.get(start..place).filter(|part| !part.is_empty()) {
                visit(part);
                start = place;
            }
        }
        if let Some(rest) = text.get(start..).filter(|rest| !rest.is_empty()) {
            visit(rest);
        }
    }

    fn joined_to_block(&self, text: &str, place: usize, before: u8) -> bool {
        if !text.as_bytes().get(place..).is_some_and(|rest| rest.starts_with(BLOCK_BYTES)) {
            return true;
        }
        match before {
            0..128 => self.ascii_before_block >> before & 1 == 1,
            _ => {
                let before = text.get(..place).and_then(|text| text.chars().next_back());
                before.is_none_or(|before| self.before_block.contains(&before))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Joints;

    #[test]
    fn cuts_are_where_no_token_reaches_over() {
        let joints = Joints::new(["▁the", "▁▁", "é▁", "==", "a▁x", "the"].into_iter());
        let parts = |text: &'static str| {
            let mut parts = Vec::new();
            joints.split(text, |part| parts.push(part));
            parts
        };
        assert_eq!(parts("▁the▁▁▁the==he"), ["▁the", "▁▁▁the", "==", "he"]);
        assert_eq!(parts("é▁a▁x漢▁"), ["é▁a▁x漢", "▁"]);
        assert_eq!(parts("a漢a\n▁"), ["a漢a", "\n", "▁"]);
        assert_eq!(parts(""), [""; 0]);
    }
}
