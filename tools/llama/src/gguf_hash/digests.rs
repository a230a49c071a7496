//! XXH64 (Collet) and SHA-1 (FIPS 180-4), in streams; SHA-256 is a library's.

use sha2::Digest;
use std::fmt::Write;

/// A hash that bytes are added to.
pub enum Hasher {
    Xxh64(Xxh64),
    Sha1(Sha1),
    Sha256(sha2::Sha256),
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh64(hash) => hash.update(bytes),
            Self::Sha1(hash) => hash.update(bytes),
            Self::Sha256(hash) => hash.update(bytes),
        }
    }

    /// The hash of everything, in hexadecimal digits.
    pub fn finish(self) -> String {
        match self {
            Self::Xxh64(hash) => format!("{:016x}", hash.finish()),
            Self::Sha1(hash) => hexadecimal(&hash.finish()),
            Self::Sha256(hash) => hexadecimal(&hash.finalize()),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// XXH64 with seed 0.
pub struct Xxh64 {
    lanes: [u64; 4],
    rest: Vec<u8>,
    length: u64,
}

impl Xxh64 {
    pub fn new() -> Self {
        let [first, second, ..] = PRIMES;
        let lanes = [first.wrapping_add(second), second, 0, 0u64.wrapping_sub(first)];
        Self { lanes, rest: Vec::with_capacity(32), length: 0 }
    }

    fn round(lane: u64, input: u64) -> u64 {
        lane.wrapping_add(input.wrapping_mul(PRIMES[1])).rotate_left(31).wrapping_mul(PRIMES[0])
    }

    fn stripe(lanes: &mut [u64; 4], stripe: &[u8; 32]) {
        for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks().0) {
            *lane = Self::round(*lane, u64::from_le_bytes(*word));
        }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        if !self.rest.is_empty() {
            let (now, later) = bytes.split_at((32 - self.rest.len()).min(bytes.len()));
            self.rest.extend_from_slice(now);
            bytes = later;
            if let Ok(stripe) = <&[u8; 32]>::try_from(self.rest.as_slice()) {
                Self::stripe(&mut self.lanes, stripe);
                self.rest.clear();
            }
        }
        let (stripes, rest) = bytes.as_chunks();
        stripes.iter().for_each(|stripe| Self::stripe(&mut self.lanes, stripe));
        self.rest.extend_from_slice(rest);
    }

    pub fn finish(self) -> u64 {
        let [first, second, third, fourth, fifth] = PRIMES;
        let mut hash = fifth;
        if self.length >= 32 {
            let turned = self.lanes.iter().zip([1, 7, 12, 18]).map(|(lane, bits)| lane.rotate_left(bits));
            hash = turned.fold(0, u64::wrapping_add);
            for lane in self.lanes {
                hash = (hash ^ Self::round(0, lane)).wrapping_mul(first).wrapping_add(fourth);
            }
        }
        hash = hash.wrapping_add(self.length);
        let (words, rest) = self.rest.as_chunks::<8>();
        for word in words {
            hash ^= Self::round(0, u64::from_le_bytes(*word));
            hash = hash.rotate_left(27).wrapping_mul(first).wrapping_add(fourth);
        }
        let (halves, rest) = rest.as_chunks::<4>();
        for half in halves {
            hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(first);
            hash = hash.rotate_left(23).wrapping_mul(second).wrapping_add(third);
        }
        for byte in rest {
            hash ^= u64::from(*byte).wrapping_mul(fifth);
            hash = hash.rotate_left(11).wrapping_mul(first);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(second);
        hash = (hash ^ (hash >> 29)).wrapping_mul(third);
        hash ^ (hash >> 32)
    }
}

/// SHA-1; good for names of files, not against forgers.
pub struct Sha1 {
    state: [u32; 5],
    rest: Vec<u8>,
    length: u64,
}

impl Sha1 {
    pub fn new() -> Self {
        let state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
        Self { state, rest: Vec::with_capacity(64), length: 0 }
    }

    fn block(state: &mut [u32; 5], block: &[u8; 64]) {
        let mut words = [0u32; 80];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        for index in 16..80 {
            let mixed = words[index - 3] ^ words[index - 8] ^ words[index - 14] ^ words[index - 16];
            words[index] = mixed.rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = *state;
        for (index, word) in words.into_iter().enumerate() {
            let (mixed, constant) = match index / 20 {
                0 => ((b & c) | (!b & d), 0x5A82_7999),
                1 => (b ^ c ^ d, 0x6ED9_EBA1),
                2 => ((b & c) | (b & d) | (c & d), 0x8F1B_BCDC),
                _ => (b ^ c ^ d, 0xCA62_C1D6u32),
            };
            let next = a
                .rotate_left(5)
                .wrapping_add(mixed)
                .wrapping_add(e)
                .wrapping_add(constant)
                .wrapping_add(word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (state, value) in state.iter_mut().zip([a, b, c, d, e]) {
            *state = state.wrapping_add(value);
        }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        if !self.rest.is_empty() {
            let (now, later) = bytes.split_at((64 - self.rest.len()).min(bytes.len()));
            self.rest.extend_from_slice(now);
            bytes = later;
            if let Ok(block) = <&[u8; 64]>::try_from(self.rest.as_slice()) {
                Self::block(&mut self.state, block);
                self.rest.clear();
            }
        }
        let (blocks, rest) = bytes.as_chunks();
        blocks.iter().for_each(|block| Self::block(&mut self.state, block));
        self.rest.extend_from_slice(rest);
    }

    pub fn finish(mut self) -> [u8; 20] {
        let bits = self.length * 8;
        let zeros = (119 - self.rest.len() % 64) % 64;
        let mut end = vec![0x80];
        end.resize(1 + zeros, 0);
        end.extend(bits.to_be_bytes());
        self.update(&end);
        let mut digest = [0; 20];
        for (bytes, word) in digest.as_chunks_mut().0.iter_mut().zip(self.state) {
            *bytes = word.to_be_bytes();
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_parts(mut hasher: Hasher, bytes: &[u8], part: usize) -> String {
        bytes.chunks(part).for_each(|part| hasher.update(part));
        hasher.finish()
    }

    #[test]
    fn published_values_whatever_the_parts() {
        let long: Vec<u8> = (0..1000u32).map(|n| (n * 7 % 251) as u8).collect();
        for part in [1, 3, 32, 63, 64, 65, 1000] {
            let xxh64 = |bytes: &[u8]| in_parts(Hasher::Xxh64(Xxh64::new()), bytes, part);
            assert_eq!(xxh64(b""), "ef46db3751d8e999");
            assert_eq!(xxh64(b"a"), "d24ec4f1a98c6e5b");
            assert_eq!(xxh64(b"abc"), "44bc2cf5ad770999");
            assert_eq!(xxh64(&long), in_parts(Hasher::Xxh64(Xxh64::new()), &long, 999));
            let sha1 = |bytes: &[u8]| in_parts(Hasher::Sha1(Sha1::new()), bytes, part);
            assert_eq!(sha1(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
            assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
            let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
            assert_eq!(sha1(two_blocks), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
            let sha256 = |bytes: &[u8]| in_parts(Hasher::Sha256(sha2::Sha256::new()), bytes, part);
            assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        }
    }
}
