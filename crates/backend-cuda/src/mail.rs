//! Small writes that wait for the next recorded graph, whose first kernel brings them to their places: a copy by itself keeps
//! the device waiting for longer.

use crate::driver::DevicePointer;

/// Words that letters and their number take at most; the kernel `deliver` reads as many.
pub const MAIL_WORDS: usize = 512;
/// Words before those of a letter: its address, in two, and their number.
const HEAD: usize = 3;

/// Writes in their order: their number, then each with its head.
pub struct Mail(Vec<u32>);

impl Mail {
    /// Without any.
    pub fn new() -> Self {
        let mut words = Vec::with_capacity(MAIL_WORDS);
        words.push(0);
        Self(words)
    }

    /// Takes a write of whole words if there is room for it.
    pub fn add(&mut self, to: DevicePointer, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks::<4>();
        let fits = self.0.len() + HEAD + words.len() <= MAIL_WORDS;
        if !fits || !rest.is_empty() || !to.is_multiple_of(4) {
            return false;
        }
        self.0[0] += 1;
        self.0.extend([to as u32, (to >> 32) as u32, words.len() as u32]);
        self.0.extend(words.iter().map(|word| u32::from_ne_bytes(*word)));
        true
    }

    /// All words.
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// The writes: where to, and what.
    pub fn letters(&self) -> impl Iterator<Item = (DevicePointer, &[u32])> {
        let mut rest = &self.0[1..];
        std::iter::from_fn(move || {
            let (head, words) = rest.split_first_chunk::<HEAD>()?;
            let (words, others) = words.split_at_checked(head[2] as usize)?;
            rest = others;
            Some((head[0] as u64 | (head[1] as u64) << 32, words))
        })
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.0.truncate(1);
        self.0[0] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_come_out_as_they_went_in() {
        let mut mail = Mail::new();
        assert_eq!(mail.letters().count(), 0);
        assert!(mail.add(0x12_3456_7890, &[1, 0, 0, 0, 2, 0, 0, 0]));
        assert!(mail.add(16, &[3, 0, 0, 0]));
        assert!(!mail.add(16, &[3, 0, 0]) && !mail.add(2, &[0; 4]) && !mail.add(16, &[0; 4 * MAIL_WORDS]));
        let letters: Vec<_> = mail.letters().collect();
        assert_eq!(letters, [(0x12_3456_7890, &[1, 2][..]), (16, &[3][..])]);
        assert_eq!(mail.words()[0], 2);
        mail.clear();
        assert_eq!((mail.words(), mail.letters().count()), (&[0][..], 0));
    }

    #[test]
    fn no_more_than_there_is_room_for() {
        let mut mail = Mail::new();
        let taken = (0..1000).filter(|place| mail.add(4 * place, &[0; 16])).count();
        assert_eq!(taken, (MAIL_WORDS - 1) / (HEAD + 4));
        assert!(mail.words().len() <= MAIL_WORDS);
    }
}
