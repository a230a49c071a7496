//! The generator behind seeded draws.

/// PCG-XSH-RR 64/32 (O'Neill 2014): a 64-bit linear congruential generator whose output is permuted. Small,
/// fast, and defined by integer arithmetic alone, so a seed gives the same draws on every platform.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Random {
    state: u64,
    increment: u64,
}

const MULTIPLIER: u64 = 6364136223846793005;

impl Random {
    /// A generator of the stream `stream`; generators of different streams are independent of each other even
    /// under the same seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self { state: 0, increment: (stream << 1) | 1 };
        random.next_u32();
        random.state = random.state.wrapping_add(seed);
        random.next_u32();
        random
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let shifted = (((old >> 18) ^ old) >> 27) as u32;
        shifted.rotate_right((old >> 59) as u32)
    }

    /// Uniform in `0.0..1.0`, 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32()) << 32;
        let bits = (high | u64::from(self.next_u32())) >> 11;
        bits as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_sequence() {
        // First round of the reference implementation's demonstration: seed 42, stream 54.
        let mut random = Random::new(42, 54);
        let found: Vec<u32> = (0..6).map(|_| random.next_u32()).collect();
        assert_eq!(found, [0xa15c02b7, 0x7b47f409, 0xba1d3330, 0x83d2f293, 0xbfa4784b, 0xcbed606e]);
    }

    #[test]
    fn floats_are_uniform_and_below_one() {
        let mut random = Random::new(1, 0);
        let draws: Vec<f64> = (0..20_000).map(|_| random.next_f64()).collect();
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let below = draws.iter().filter(|draw| **draw < 0.1).count();
        assert!((1_800..2_200).contains(&below), "{below}");
    }
}
