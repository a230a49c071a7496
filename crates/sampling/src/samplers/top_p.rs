//! Nucleus sampling (Holtzman et al. 2019): keeps the best candidates that together reach a probability.

use super::{Sampler, SamplerSpec};
use crate::Candidates;

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "top_p",
    aliases: &["nucleus"],
    letter: 'p',
    build: |parameters| {
        let (probability, min_keep) = (parameters.top_p, parameters.min_keep);
        (probability < 1.0).then(|| Box::new(TopP { probability, min_keep }) as Box<dyn Sampler>)
    },
};

struct TopP {
    probability: f32,
    min_keep: usize,
}

impl Sampler for TopP {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.normalise();
        let mut sum = 0.0;
        let mut count = 0;
        // The nucleus is usually small, so only ever larger parts of the vocabulary are sorted.
        while count < candidates.len() {
            if count == 0 || count.is_power_of_two() {
                candidates.sort_best((2 * count).max(64));
            }
            sum += candidates.items()[count].probability;
            count += 1;
            if sum >= self.probability && count >= self.min_keep {
                break;
            }
        }
        candidates.truncate(count);
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
        // Probabilities 0.1, 0.4, 0.2, 0.3.
        let weights = [1.0, 4.0, 2.0, 3.0];
        let with =
            |top_p, min_keep| left(&SPEC, &Parameters { top_p, min_keep, ..Parameters::default() }, &weights);
        assert_eq!(with(0.35, 0), [1]);
        assert_eq!(with(0.45, 0), [1, 3]);
        assert_eq!(with(0.75, 0), [1, 2, 3]);
        assert_eq!(with(0.95, 0), [0, 1, 2, 3]);
        assert_eq!(with(0.0, 0), [1]);
        assert_eq!(with(0.0, 3), [1, 2, 3]);
        assert_eq!(with(1.0, 0), [0, 1, 2, 3]);
    }

    #[test]
    fn wide_distributions_are_cut_at_the_right_place() {
        // 1000 equal candidates: half of the probability is half of them (up to rounding of the sum).
        let weights = [1.0; 1000];
        let found = left(&SPEC, &Parameters { top_p: 0.4995, ..Parameters::default() }, &weights);
        assert_eq!(found, (0..500).collect::<Vec<u32>>());
    }
}
