//! Checksums of many bytes: of weights, by which compiled models are told apart, and of files.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use puna_backend::WeightSource;
use puna_graph::WeightId;

/// A checksum of 128 bits that grows with the bytes it is given. About as fast as memory is read.
///
/// Eight lanes of 64 bits, each of which mixes in every eighth word by operations that lose nothing: bytes that differ in
/// one word of a lane never have the same sum. It withstands accidents, not attackers.
#[derive(Clone)]
pub(crate) struct Sum {
    lanes: [u64; LANES],
    length: u64,
}

const LANES: usize = 8;
const CHUNK: usize = 8 * LANES;
/// An odd number whose bits look like chance (2^64 over the golden ratio).
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl Default for Sum {
    fn default() -> Self {
        let lanes = std::array::from_fn(|lane| FACTOR.wrapping_mul(lane as u64 + 1));
        Self { lanes, length: 0 }
    }
}

impl Sum {
    /// Adds bytes whose number is a multiple of 64, but for the last ones.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<CHUNK>();
        for chunk in chunks {
            self.add_chunk(chunk);
        }
        if !rest.is_empty() {
            let mut last = [0; CHUNK];
            last[..rest.len()].copy_from_slice(rest);
            self.add_chunk(&last);
        }
        self.length += bytes.len() as u64;
    }

    fn add_chunk(&mut self, chunk: &[u8; CHUNK]) {
        for (lane, word) in self.lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(29);
        }
    }

    /// The sum as 32 hexadecimal digits.
    pub(crate) fn text(&self) -> String {
        let end = |start: u64| {
            let words = self.lanes.iter().chain([&self.length]);
            words.fold(start, |end, word| {
                let mixed = (end.rotate_left(23) ^ word).wrapping_mul(FACTOR);
                mixed ^ mixed >> 32
            })
        };
        format!("{:016x}{:016x}", end(1), end(2))
    }

    /// The sum of a few bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::default();
        sum.add(bytes);
        sum
    }

    /// The sum of all that there is to read. Little of it is in memory at a time, unlike pages of a map.
    pub(crate) fn of_all(mut source: impl Read) -> std::io::Result<Self> {
        let mut sum = Self::default();
        let mut buffer = vec![0; BUFFER];
        loop {
            let mut length = 0;
            while length < BUFFER {
                match source.read(&mut buffer[length..]) {
                    Ok(0) => break,
                    Ok(read) => length += read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            sum.add(&buffer[..length]);
            if length < BUFFER {
                return Ok(sum);
            }
        }
    }

    /// Bytes that it is of.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }
}

/// Bytes that are read at once; they fit into a processor's cache.
const BUFFER: usize = 256 << 10;

/// Sums of all bytes of these weights, in their order, made by so many threads. `done` hears of each weight once it is read.
pub(crate) fn of_weights(
    weights: &dyn WeightSource,
    used: &[WeightId],
    threads: usize,
    done: impl Fn(WeightId) + Sync,
) -> Vec<(WeightId, String)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut sums = Vec::new();
        while let Some(weight) = used.get(next.fetch_add(1, Ordering::Relaxed)) {
            sums.push((*weight, Sum::of(weights.bytes(*weight)).text()));
            done(*weight);
        }
        sums
    };
    let mut sums: Vec<(WeightId, String)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        all.extend(others.into_iter().filter_map(|other| other.join().ok()).flatten());
        all
    });
    sums.sort();
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_length_count() {
        let bytes: Vec<u8> = (0..1000_u32).map(|place| (place * 7 % 251) as u8).collect();
        let mut seen = std::collections::HashSet::from([Sum::of(&bytes).text()]);
        for place in 0..bytes.len() {
            for bit in [1, 128] {
                let mut changed = bytes.clone();
                changed[place] ^= bit;
                assert!(seen.insert(Sum::of(&changed).text()), "byte {place}, bit {bit}");
            }
        }
        // Zeros at the end, and bytes that change places.
        let longer = [&bytes[..], &[0]].concat();
        assert!(seen.insert(Sum::of(&longer).text()));
        let mut swapped = bytes.clone();
        swapped.swap(8, 64 + 8);
        assert!(seen.insert(Sum::of(&swapped).text()));
        let mut turned = bytes;
        turned.rotate_left(8);
        assert!(seen.insert(Sum::of(&turned).text()));
    }

    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = buffer.len().min(self.0.len()).min(777);
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    #[test]
    fn a_file_has_the_sum_of_its_bytes() {
        for length in [0, 1, 63, 64, 65, BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER + 100] {
            let bytes: Vec<u8> = (0..length).map(|place| (place * 13 % 255) as u8).collect();
            let read = Sum::of_all(Slow(&bytes)).expect("it is read");
            assert_eq!((read.text(), read.length()), (Sum::of(&bytes).text(), length as u64));
        }
    }
}
