//! Sharpens or flattens the distribution.

use super::{Sampler, SamplerSpec};
use crate::Candidates;

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "temperature",
    aliases: &["temp"],
    letter: 't',
    build: |parameters| {
        let temperature = parameters.temperature;
        (temperature != 1.0).then(|| Box::new(Temperature { temperature }) as Box<dyn Sampler>)
    },
};

struct Temperature {
    /// Divisor of the logits; at 0 or below only the best candidate stays.
    temperature: f32,
}

impl Sampler for Temperature {
    fn apply(&mut self, candidates: &mut Candidates) {
        let Some(best) = candidates.best() else { return };
        if self.temperature <= 0.0 {
            return candidates.keep_best(1);
        }
        if best.logit == f32::NEG_INFINITY {
            return;
        }
        // A tiny temperature would make several logits infinite; relative to the best only the others
        // overflow, and rightly so.
        let origin = if (best.logit / self.temperature).is_finite() { 0.0 } else { best.logit };
        candidates.map(|item| (item.logit - origin) / self.temperature);
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
}
