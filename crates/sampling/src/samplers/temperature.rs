//! Sharpens or flattens the distribution, by a fixed temperature or by one that follows the entropy.

use super::{Sampler, SamplerSpec};
use crate::Candidates;
use crate::math::{entropy, ln, pow};

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "temperature",
    aliases: &["temp"],
    letter: 't',
    build: |parameters| {
        let (temperature, range) = (parameters.temperature, parameters.dynatemp_range);
        let exponent = parameters.dynatemp_exponent;
        (temperature != 1.0 || range > 0.0)
            .then(|| Box::new(Temperature { temperature, range, exponent }) as Box<dyn Sampler>)
    },
};

struct Temperature {
    /// Divisor of the logits; at 0 or below only the best candidate stays.
    temperature: f32,
    /// How far the divisor goes below and above; 0 leaves it fixed.
    range: f32,
    /// Bends the way from entropy to divisor.
    exponent: f32,
}

impl Temperature {
    /// The divisor for these candidates: low where the model is sure, high where it is not.
    fn dynamic(&self, candidates: &mut Candidates) -> f32 {
        let least = (self.temperature - self.range).max(0.0);
        let most = self.temperature + self.range;
        candidates.normalise();
        let entropy = entropy(candidates.items().iter().map(|item| item.probability));
        let share = entropy / ln(candidates.len() as f64);
        least + (most - least) * pow(share, f64::from(self.exponent)) as f32
    }
}

impl Sampler for Temperature {
    fn apply(&mut self, candidates: &mut Candidates) {
        let Some(best) = candidates.best() else { return };
        let mut divisor = self.temperature;
        if self.range > 0.0 {
            if candidates.len() == 1 {
                return;
            }
            divisor = self.dynamic(candidates);
        }
        if divisor <= 0.0 {
            return candidates.keep_best(1);
        }
        if best.logit == f32::NEG_INFINITY {
            return;
        }
        // A tiny temperature would make several logits infinite; relative to the best only the others
        // overflow, and rightly so.
        let origin = if (best.logit / divisor).is_finite() { 0.0 } else { best.logit };
        candidates.scale(origin, divisor);
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;

    fn probabilities(temperature: f32, logits: &[f32]) -> Vec<f32> {
        let parameters = Parameters { temperature, ..Parameters::default() };
        let mut candidates = Candidates::new(logits).unwrap();
        if let Some(mut sampler) = (SPEC.build)(&parameters) {
            sampler.apply(&mut candidates);
        }
        candidates.normalise();
        candidates.items().iter().map(|item| item.probability).collect()
    }

    #[test]
    fn values_by_hand() {
        // Weights 1 : 4 become 1 : 2 at temperature 2 (square root) and 1 : 16 at temperature 0.5 (square).
        let logits = [0.0, 4f32.ln()];
        for (temperature, expected) in [(1.0, 0.8), (2.0, 2.0 / 3.0), (0.5, 16.0 / 17.0)] {
            let found = probabilities(temperature, &logits)[1];
            assert!((found - expected).abs() < 1e-6, "{temperature}: {found}");
        }
    }

    #[test]
    fn zero_or_below_keeps_the_best() {
        assert_eq!(probabilities(0.0, &[0.0, 2.0, 1.0]), [1.0]);
        assert_eq!(probabilities(-1.0, &[3.0, 2.0, 1.0]), [1.0]);
    }

    #[test]
    fn tiny_temperatures_do_not_overflow() {
        assert_eq!(probabilities(1e-40, &[5.0, 6.0, -3.0]), [0.0, 1.0, 0.0]);
        assert_eq!(probabilities(f32::MIN_POSITIVE, &[6.0, 6.0, f32::NEG_INFINITY]), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn dynamic_by_hand() {
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.3f32.ln(), 0.4f32.ln()];
        let divided = |temperature, dynatemp_range, dynatemp_exponent, logits: &[f32]| {
            let parameters =
                Parameters { temperature, dynatemp_range, dynatemp_exponent, ..Parameters::default() };
            let mut candidates = Candidates::new(logits).unwrap();
            (SPEC.build)(&parameters).unwrap().apply(&mut candidates);
            candidates.logits().collect::<Vec<f32>>()
        };
        // Entropy 1.279854 of ln 4 = 1.386294: share 0.923220. Range 0.5 around 1: 0.5 + 1 * 0.923220.
        for (exponent, divisor) in [(1.0, 1.423_22), (2.0, 1.352_335)] {
            let found = divided(1.0, 0.5, exponent, &logits)[0];
            assert!((found - logits[0] / divisor).abs() < 1e-5, "{found}");
        }
        // The lowest temperature is 0: a sure model is greedy.
        assert_eq!(divided(0.2, 0.5, 1.0, &[0.0, f32::NEG_INFINITY]), [0.0]);
        assert_eq!(divided(0.5, 0.5, 1.0, &[3.0]), [3.0]);
    }
}
