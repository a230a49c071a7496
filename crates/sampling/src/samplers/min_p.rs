//! Keeps candidates that are at least a share as probable as the best one.

use super::{Sampler, SamplerSpec};
use crate::Candidates;
use crate::math::ln;

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "min_p",
    aliases: &[],
    letter: 'm',
    build: |parameters| {
        let (share, min_keep) = (parameters.min_p, parameters.min_keep);
        (share > 0.0).then(|| Box::new(MinP { share, min_keep }) as Box<dyn Sampler>)
    },
};

struct MinP {
    share: f32,
    min_keep: usize,
}

impl Sampler for MinP {
    fn apply(&mut self, candidates: &mut Candidates) {
        let Some(best) = candidates.best() else { return };
        // A share above 1 would rule out even the best.
        let threshold = (best.logit + ln(f64::from(self.share)) as f32).min(best.logit);
        let enough = candidates.logits().filter(|logit| *logit >= threshold).count();
        if enough >= self.min_keep {
            candidates.retain_from(threshold);
        } else {
            candidates.keep_best(self.min_keep);
        }
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

    #[test]
    fn values_by_hand() {
        let weights = [1.0, 10.0, 2.0, 5.0];
        let with =
            |min_p, min_keep| left(&SPEC, &Parameters { min_p, min_keep, ..Parameters::default() }, &weights);
        assert_eq!(with(0.0, 0), [0, 1, 2, 3]);
        assert_eq!(with(0.09, 0), [0, 1, 2, 3]);
        assert_eq!(with(0.11, 0), [1, 2, 3]);
        assert_eq!(with(0.4, 0), [1, 3]);
        assert_eq!(with(0.6, 0), [1]);
        assert_eq!(with(7.0, 0), [1]);
        assert_eq!(with(0.6, 3), [1, 2, 3]);
    }
}
