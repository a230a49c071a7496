//! A quick checksum, to find damage and not malice.

/// Words in a round: one for each of the sums that go side by side.
const LANES: usize = 4;
const ROUND: usize = 8 * LANES;
/// Odd, so that multiplying by them loses nothing.
const MULTIPLIERS: [u64; LANES] =
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x27D4_EB2F_1656_67C5];

/// The checksum of bytes that come in any parts. Each step is one-to-one in the sum before it and in the word that it
/// takes, so any change within a single word (eight bytes) changes the result.
#[derive(Clone, Debug)]
pub struct Checksum {
    lanes: [u64; LANES],
    /// Bytes that do not fill a round yet.
    rest: [u8; ROUND],
    count: u64,
}

impl Default for Checksum {
    fn default() -> Self {
        Self { lanes: MULTIPLIERS, rest: [0; ROUND], count: 0 }
    }
}

impl Checksum {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut checksum = Self::default();
        checksum.add(bytes);
        checksum.value()
    }

    /// Takes more bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        let held = (self.count % ROUND as u64) as usize;
        self.count += bytes.len() as u64;
        if held > 0 {
            let (taken, later) = bytes.split_at(bytes.len().min(ROUND - held));
            self.rest[held..held + taken.len()].copy_from_slice(taken);
            if held + taken.len() < ROUND {
                return;
            }
            let rest = self.rest;
            self.round(&rest);
            bytes = later;
        }
        let (rounds, rest) = bytes.as_chunks::<ROUND>();
        rounds.iter().for_each(|round| self.round(round));
        self.rest[..rest.len()].copy_from_slice(rest);
    }

    fn round(&mut self, bytes: &[u8; ROUND]) {
        let (words, _) = bytes.as_chunks::<8>();
        for ((lane, word), multiplier) in self.lanes.iter_mut().zip(words).zip(MULTIPLIERS) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(multiplier).rotate_left(29);
        }
    }

    /// The checksum of what was taken so far.
    pub fn value(&self) -> u64 {
        let mut all = self.clone();
        let held = (self.count % ROUND as u64) as usize;
        all.rest[held..].fill(0);
        let rest = all.rest;
        all.round(&rest);
        let mix = |sum: u64, word: u64| {
            let sum = (sum ^ word).wrapping_mul(MULTIPLIERS[0]);
            sum ^ sum >> 32
        };
        all.lanes.into_iter().fold(self.count, mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_matter_and_every_byte_does() {
        let bytes: Vec<u8> = (0..200u32).map(|index| (index * index % 251) as u8).collect();
        for length in [0, 1, 7, 8, 31, 32, 33, 64, 200] {
            let whole = Checksum::of(&bytes[..length]);
            for part in [1, 3, 32, 50] {
                let mut checksum = Checksum::default();
                bytes[..length].chunks(part).for_each(|part| checksum.add(part));
                assert_eq!(checksum.value(), whole, "{length} by {part}");
            }
            for place in 0..length {
                for bit in 0..8 {
                    let mut changed = bytes[..length].to_vec();
                    changed[place] ^= 1 << bit;
                    assert_ne!(Checksum::of(&changed), whole, "{length} {place} {bit}");
                }
            }
        }
        let zeros: Vec<u64> = (0..100).map(|length| Checksum::of(&vec![0; length])).collect();
        assert!((1..100).all(|length| !zeros[..length].contains(&zeros[length])), "lengths differ");
    }

    #[test]
    fn it_is_quick() {
        let bytes = vec![7; 64 << 20];
        let start = std::time::Instant::now();
        assert_ne!(Checksum::of(&bytes), 0);
        // About 8 ms; a byte at a time would take more than 60.
        assert!(start.elapsed().as_millis() < 500, "{:?}", start.elapsed());
    }
}
