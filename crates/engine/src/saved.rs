//! A saved sequence: its tokens, what the model made of it in parts, and how both are written to a file.
//!
//! Layout, all numbers little-endian: magic (8 bytes), version (u32), number of tokens (u32), the model's identity (u64,
//! or 0), bytes after the lengths (u64), the length from which on each can be gone back to (u32), number of other such lengths
//! (u32), checksum of the 40 bytes before, of the tokens and of the lengths (u64), checksum of what comes after them (u64);
//! tokens, lengths (u32 each); number of parts (u32), bytes of each (u64), parts.

use std::io::{self, Read, Write};

use puna_runtime::{Checksum, Reach};

const MAGIC: &[u8; 8] = b"PUNACACH";
const VERSION: u32 = 3;
const HEADER: usize = 56;
/// Bytes of it that the first checksum covers.
const CHECKED: usize = HEADER - 16;

/// What a sequence held.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Saved {
    pub(crate) tokens: Vec<u32>,
    /// How far back it can go when it is restored.
    pub(crate) reach: Reach,
    pub(crate) parts: Vec<Vec<u8>>,
}

/// The first bytes of a file, checked: all but the parts.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) tokens: Vec<u32>,
    pub(crate) reach: Reach,
    /// Identity of the model.
    pub(crate) model: u64,
    /// Checksum of what follows, and its bytes.
    checksum: u64,
    length: u64,
}

pub(crate) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Saved {
    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = self.tokens.len() + self.reach.lengths.len();
        self.parts.iter().map(Vec::len).sum::<usize>() + numbers * size_of::<u32>()
    }

    /// Bytes of its file.
    pub(crate) fn file_bytes(&self) -> u64 {
        (HEADER + self.table().len() + self.bytes()) as u64
    }

    /// Number and lengths of the parts.
    fn table(&self) -> Vec<u8> {
        let count = (self.parts.len() as u32).to_le_bytes();
        count
            .into_iter()
            .chain(self.parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes()))
            .collect()
    }

    /// Writes it as one of a model with this identity.
    pub(crate) fn write(&self, model: u64, to: &mut impl Write) -> io::Result<()> {
        let table = self.table();
        let parts: usize = self.parts.iter().map(Vec::len).sum();
        let count = |numbers: &[u32]| u32::try_from(numbers.len()).map_err(|_| damaged("too many tokens"));
        let numbers: Vec<u8> =
            self.tokens.iter().chain(&self.reach.lengths).flat_map(|number| number.to_le_bytes()).collect();
        let mut head = Vec::with_capacity(HEADER + numbers.len());
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend(count(&self.tokens)?.to_le_bytes());
        head.extend(model.to_le_bytes());
        head.extend((table.len() as u64 + parts as u64).to_le_bytes());
        head.extend(self.reach.from.to_le_bytes());
        head.extend(count(&self.reach.lengths)?.to_le_bytes());
        let (mut first, mut second) = (Checksum::default(), Checksum::default());
        first.add(&head);
        first.add(&numbers);
        second.add(&table);
        self.parts.iter().for_each(|part| second.add(part));
        head.extend(first.value().to_le_bytes());
        head.extend(second.value().to_le_bytes());
        head.extend(numbers);
        to.write_all(&head)?;
        to.write_all(&table)?;
        self.parts.iter().try_for_each(|part| to.write_all(part))
    }

    /// Reads what [`Saved::write`] wrote in so many bytes, if it is whole and sound.
    pub(crate) fn read(from: &mut impl Read, bytes: u64) -> io::Result<Self> {
        if bytes < HEADER as u64 {
            return Err(damaged("it is too short"));
        }
        let head = Head::read(from, bytes)?;
        let parts = head.read_parts(from)?;
        Ok(Self { tokens: head.tokens, reach: head.reach, parts })
    }
}

fn read_u64(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl Head {
    /// Reads the beginning of a file of so many bytes. Memory for tokens is made only if the file has as many.
    pub(crate) fn read(from: &mut impl Read, size: u64) -> io::Result<Self> {
        let mut head = [0; HEADER];
        from.read_exact(&mut head)?;
        let u32_at = |place: usize| {
            u32::from_le_bytes([head[place], head[place + 1], head[place + 2], head[place + 3]])
        };
        let u64_at = |place: usize| u64::from(u32_at(place)) | u64::from(u32_at(place + 4)) << 32;
        if &head[..8] != MAGIC || u32_at(8) != VERSION {
            return Err(damaged("it is no saved sequence of this version"));
        }
        let (model, length) = (u64_at(16), u64_at(24));
        let [tokens, lengths] = [u32_at(12), u32_at(36)].map(u64::from);
        if (HEADER as u64 + 4 * (tokens + lengths)).checked_add(length) != Some(size) {
            return Err(damaged("its length is not what it says"));
        }
        let mut bytes = vec![0; 4 * (tokens + lengths) as usize];
        from.read_exact(&mut bytes)?;
        let mut checksum = Checksum::default();
        checksum.add(&head[..CHECKED]);
        checksum.add(&bytes);
        if checksum.value() != u64_at(CHECKED) {
            return Err(damaged("its checksum is wrong"));
        }
        let (words, _) = bytes.as_chunks::<4>();
        let mut tokens_then_lengths: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let lengths = tokens_then_lengths.split_off(tokens as usize);
        let reach = Reach { from: u32_at(32), lengths };
        Ok(Self { tokens: tokens_then_lengths, reach, model, checksum: u64_at(CHECKED + 8), length })
    }

    /// Bytes of the whole file.
    pub(crate) fn size(&self) -> u64 {
        HEADER as u64 + 4 * (self.tokens.len() + self.reach.lengths.len()) as u64 + self.length
    }

    /// Reads the parts, which come next.
    pub(crate) fn read_parts(&self, from: &mut impl Read) -> io::Result<Vec<Vec<u8>>> {
        let wrong = || damaged("its parts are not as long as they say");
        let mut checksum = Checksum::default();
        let mut count = [0; 4];
        from.read_exact(&mut count)?;
        checksum.add(&count);
        let count = u64::from(u32::from_le_bytes(count));
        let mut left = self.length.checked_sub(4 + 8 * count).ok_or_else(wrong)?;
        let mut lengths = Vec::new();
        for _ in 0..count {
            let length = read_u64(from)?;
            checksum.add(&length.to_le_bytes());
            left = left.checked_sub(length).ok_or_else(wrong)?;
            lengths.push(usize::try_from(length).map_err(|_| wrong())?);
        }
        if left > 0 {
            return Err(wrong());
        }
        let mut parts = Vec::with_capacity(lengths.len());
        for length in lengths {
            // As many as the file was found to have.
            let mut part = vec![0; length];
            from.read_exact(&mut part)?;
            checksum.add(&part);
            parts.push(part);
        }
        match checksum.value() == self.checksum {
            true => Ok(parts),
            false => Err(damaged("its checksum is wrong")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let states = Reach { from: u32::MAX, lengths: vec![3, 16, 20] };
        for (parts, reach) in [
            (vec![], Reach::default()),
            (vec![vec![1, 2, 3]], states.clone()),
            (vec![vec![5; 40], vec![], vec![6; 7]], states),
        ] {
            let saved = Saved { tokens: (0..20).collect(), reach, parts };
            let mut good = Vec::new();
            saved.write(0, &mut good).unwrap();
            let read = |bytes: &[u8]| Saved::read(&mut &*bytes, bytes.len() as u64);
            assert_eq!(good.len() as u64, saved.file_bytes());
            assert_eq!(read(&good).unwrap(), saved);
            // More bytes than there are, or fewer, were promised.
            assert!(Saved::read(&mut &good[..], good.len() as u64 + 1).is_err());
            assert!(Saved::read(&mut &good[..], good.len() as u64 - 1).is_err());
            let mut head = &good[..];
            assert_eq!(Head::read(&mut head, good.len() as u64).unwrap().size(), good.len() as u64);
            for length in 0..good.len() {
                assert!(read(&good[..length]).is_err(), "{length}");
            }
            assert!(read(&[&good[..], &[0]].concat()).is_err());
            for place in 0..good.len() * 8 {
                let mut bytes = good.clone();
                bytes[place / 8] ^= 1 << (place % 8);
                // The model's identity is covered, too.
                assert!(read(&bytes).is_err(), "{place}");
            }
        }
    }
}
