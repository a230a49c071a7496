//! Mirostat 1 and 2 (Basu et al. 2020): keep the surprise of the chosen tokens near a target. They take the
//! place of the whole chain but for the temperature, so they have no names in it.

use super::Sampler;
use crate::math::{ln, pow};
use crate::{Candidate, Candidates, Parameters};

/// Candidates from which version 1 estimates the distribution's shape.
const ESTIMATE: usize = 100;

/// The mirostat of these settings, if they ask for one.
pub(crate) fn build(parameters: &Parameters, vocabulary: usize) -> Option<Box<dyn Sampler>> {
    let version = u8::try_from(parameters.mirostat).ok().filter(|version| (1..=2).contains(version))?;
    let (target, rate) = (parameters.mirostat_tau, parameters.mirostat_eta);
    Some(Box::new(Mirostat { version, target, rate, limit: 2.0 * target, vocabulary }))
}

struct Mirostat {
    version: u8,
    /// Surprise to come to, in bits.
    target: f32,
    rate: f32,
    /// Most surprise of a candidate, in bits.
    limit: f32,
    vocabulary: usize,
}

/// Surprise in bits.
fn surprise(probability: f32) -> f64 {
    -ln(f64::from(probability)) / std::f64::consts::LN_2
}

impl Mirostat {
    /// Number of candidates whose surprise is within the limit if probabilities follow Zipf's law, with the
    /// exponent that the best candidates show.
    fn zipf(&self, best: &[Candidate]) -> usize {
        let (mut products, mut squares) = (0.0, 0.0);
        for (index, pair) in best.windows(2).enumerate() {
            let [better, worse] = pair else { continue };
            if worse.probability <= 0.0 {
                break;
            }
            let rank = ln((index + 2) as f64 / (index + 1) as f64);
            products += rank * ln(f64::from(better.probability) / f64::from(worse.probability));
            squares += rank * rank;
        }
        let exponent = products / squares;
        let excess = exponent - 1.0;
        let power = pow(2.0, f64::from(self.limit));
        let count = pow(excess * power / (1.0 - pow(self.vocabulary as f64, -excess)), 1.0 / exponent);
        // Not a number where there is nothing to estimate from, or where the law is met exactly.
        if count.is_nan() { 1 } else { count as usize }
    }
}

impl Sampler for Mirostat {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.normalise();
        if self.version == 1 {
            candidates.sort_best(ESTIMATE);
            let count = candidates.len().min(ESTIMATE);
            let count = self.zipf(&candidates.items()[..count]);
            candidates.keep_best(count);
        } else {
            let limit = f64::from(self.limit);
            let within = candidates.items().iter().filter(|item| surprise(item.probability) <= limit).count();
            candidates.keep_best(within);
        }
    }

    fn chosen(&mut self, candidate: &Candidate) {
        let error = surprise(candidate.probability) as f32 - self.target;
        self.limit -= self.rate * error;
    }

    fn reset(&mut self) {
        self.limit = 2.0 * self.target;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirostat(version: u8, target: f32, vocabulary: usize) -> Mirostat {
        Mirostat { version, target, rate: 0.1, limit: 2.0 * target, vocabulary }
    }

    fn weights(weights: &[f32]) -> Candidates {
        Candidates::new(&weights.iter().map(|weight| weight.ln()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn version_2_by_hand() {
        // Surprises 1, 2, 3 and 3 bits; the limit 2.1 keeps the first two.
        let mut sampler = mirostat(2, 1.05, 4);
        let mut candidates = weights(&[0.125, 0.5, 0.125, 0.25]);
        sampler.apply(&mut candidates);
        candidates.normalise();
        assert_eq!(candidates.items().iter().map(|item| item.token).collect::<Vec<_>>(), [1, 3]);
        // The second of them has 1/3 now: log2 3 = 1.585 bits, 0.535 too many; the limit falls by 0.0535.
        let second = candidates.items()[1];
        sampler.chosen(&second);
        assert!((sampler.limit - 2.046_504).abs() < 1e-5, "{}", sampler.limit);
        // Nothing within the limit: the best one stays.
        sampler.limit = -3.0;
        let mut candidates = weights(&[0.125, 0.5, 0.375]);
        sampler.apply(&mut candidates);
        assert_eq!(candidates.items().iter().map(|item| item.token).collect::<Vec<_>>(), [1]);
        sampler.reset();
        assert_eq!(sampler.limit, 2.1);
    }

    #[test]
    fn version_1_by_hand() {
        // Probabilities in proportion to 1/rank^2: the exponent is 2, so with limit 4 bits and 1000 tokens
        // k = sqrt(1 * 16 / (1 - 1/1000)) = 4.002.
        let mut candidates = weights(&(1..=1000).map(|rank| 1.0 / (rank * rank) as f32).collect::<Vec<_>>());
        let mut sampler = mirostat(1, 2.0, 1000);
        sampler.apply(&mut candidates);
        assert_eq!(candidates.len(), 4);
        // A single candidate and equal candidates give nothing to estimate from.
        for row in [&[1.0][..], &[1.0; 8], &[1.0, 0.0, 0.0]] {
            let mut candidates = weights(row);
            sampler.apply(&mut candidates);
            assert!(!candidates.is_empty());
        }
    }

    /// What the peer's library keeps of the same candidates.
    #[test]
    fn recorded_from_the_peer() {
        for (version, expected) in
            [(1, vec![(1, 0.545_455), (5, 0.454_545)]), (2, vec![(1, 0.4), (5, 0.333_333), (3, 0.266_667)])]
        {
            let mut candidates = weights(&[0.02, 0.3, 0.05, 0.2, 0.1, 0.25, 0.08]);
            mirostat(version, 1.2, 7).apply(&mut candidates);
            candidates.normalise();
            assert_eq!(candidates.len(), expected.len());
            for (found, (token, probability)) in candidates.items().iter().zip(expected) {
                assert!(
                    found.token == token && (found.probability - probability).abs() < 2e-6f32,
                    "{found:?}"
                );
            }
        }
    }
}
