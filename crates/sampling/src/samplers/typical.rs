//! Locally typical sampling (Meister et al. 2022): keeps candidates whose information is close to the
//! distribution's entropy.

use super::{Sampler, SamplerSpec};
use crate::Candidates;
use crate::math::{entropy, ln};

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "typ_p",
    aliases: &["typical_p", "typical", "typ"],
    letter: 'y',
    build: |parameters| {
        let (probability, min_keep) = (parameters.typical_p, parameters.min_keep);
        (probability < 1.0).then(|| Box::new(Typical { probability, min_keep }) as Box<dyn Sampler>)
    },
};

struct Typical {
    probability: f32,
    min_keep: usize,
}

/// Information of an event in nats; infinite for probability 0.
fn information(probability: f32) -> f64 {
    -ln(f64::from(probability))
}

impl Sampler for Typical {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.normalise();
        let entropy = entropy(candidates.items().iter().map(|item| item.probability));
        candidates.sort_by_key(|item| (information(item.probability) - entropy).abs());
        let mut sum = 0.0;
        let mut count = 0;
        for item in candidates.items() {
            sum += item.probability;
            count += 1;
            if sum > self.probability && count >= self.min_keep {
                break;
            }
        }
        candidates.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::left;
    use super::*;
    use crate::Parameters;

    #[test]
    fn values_by_hand() {
        // Probabilities 0.7, 0.15, 0.1, 0.05: entropy 0.2497 + 0.2846 + 0.2303 + 0.1498 = 0.9143; information
        // 0.3567, 1.8971, 2.3026, 2.9957; distances 0.5577, 0.9828, 1.3882, 2.0814.
        let weights = [0.7, 0.15, 0.1, 0.05];
        let with = |typical_p, min_keep| {
            left(&SPEC, &Parameters { typical_p, min_keep, ..Parameters::default() }, &weights)
        };
        assert_eq!(with(0.5, 0), [0]);
        assert_eq!(with(0.8, 0), [0, 1]);
        assert_eq!(with(0.9, 0), [0, 1, 2]);
        assert_eq!(with(0.1, 2), [0, 1]);
        assert_eq!(with(1.0, 0), [0, 1, 2, 3]);
    }

    #[test]
    fn the_most_probable_may_go() {
        // 0.4 and twenty of 0.03: entropy 0.3665 + 2.1039 = 2.4704; information 0.9163 and 3.5066, distances
        // 1.5541 and 1.0361, so the small ones are the typical ones.
        let mut weights = vec![0.03; 21];
        weights[0] = 0.4;
        let found = left(&SPEC, &Parameters { typical_p: 0.5, ..Parameters::default() }, &weights);
        assert_eq!(found, (1..=17).collect::<Vec<u32>>()); // 17 * 0.03 = 0.51 > 0.5
    }

    #[test]
    fn impossible_candidates_do_not_disturb() {
        let weights = [0.0, 0.7, 0.15, 0.0, 0.1, 0.05];
        let found = left(&SPEC, &Parameters { typical_p: 0.8, ..Parameters::default() }, &weights);
        assert_eq!(found, [1, 2]);
    }
}
