//! Top-nσ (Tang et al. 2024): keeps candidates whose logit is within some standard deviations of the best one.

use super::{Sampler, SamplerSpec};
use crate::Candidates;

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "top_n_sigma",
    aliases: &["top_nsigma"],
    letter: 's',
    build: |parameters| {
        let deviations = parameters.top_n_sigma;
        (deviations > 0.0).then(|| Box::new(TopNSigma { deviations }) as Box<dyn Sampler>)
    },
};

struct TopNSigma {
    deviations: f32,
}

impl Sampler for TopNSigma {
    fn apply(&mut self, candidates: &mut Candidates) {
        let Some(best) = candidates.best().filter(|best| best.logit > f32::NEG_INFINITY) else { return };
        // Deviations of the whole population; what is ruled out already does not belong to it.
        let possible = || candidates.logits().filter(|logit| *logit > f32::NEG_INFINITY).map(f64::from);
        let count = possible().count() as f64;
        let mean = possible().sum::<f64>() / count;
        let variance = possible().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / count;
        let threshold = f64::from(best.logit) - f64::from(self.deviations) * variance.sqrt();
        candidates.retain_from(threshold as f32);
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::left;
    use super::*;
    use crate::Parameters;

    /// The first three rows are those of the peer's test suite.
    #[test]
    fn values_of_the_peer() {
        let with = |top_n_sigma, weights: &[f32]| {
            left(&SPEC, &Parameters { top_n_sigma, ..Parameters::default() }, weights)
        };
        let weights = [0.1, 0.2, 0.3, 0.4];
        assert_eq!(with(1.0, &weights), [2, 3]);
        assert_eq!(with(0.0, &weights), [0, 1, 2, 3]);
        assert_eq!(with(3.0, &weights), [0, 1, 2, 3]);
        assert_eq!(with(-1.0, &weights), [0, 1, 2, 3]);
        // A weight of 0 is a logit of minus infinity: it neither stays nor counts.
        assert_eq!(with(1.0, &[0.1, 0.0, 0.2, 0.3, 0.0, 0.4]), [3, 5]);
    }
}
