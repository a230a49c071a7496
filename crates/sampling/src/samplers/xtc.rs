//! XTC ("exclude top choices"): now and then drops all but the least probable of the candidates that are
//! probable enough.

use super::{Sampler, SamplerSpec};
use crate::{Candidates, Random};

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "xtc",
    aliases: &[],
    letter: 'x',
    build: |parameters| {
        // Above one half at most one candidate can be probable enough.
        let on = parameters.xtc_probability > 0.0 && parameters.xtc_threshold <= 0.5;
        on.then(|| {
            Box::new(Xtc {
                probability: parameters.xtc_probability,
                threshold: parameters.xtc_threshold,
                min_keep: parameters.min_keep,
                seed: parameters.seed,
                random: Random::new(u64::from(parameters.seed), STREAM),
            }) as Box<dyn Sampler>
        })
    },
};

/// Its draws do not disturb the final ones.
const STREAM: u64 = 1;

struct Xtc {
    /// How often it acts.
    probability: f32,
    threshold: f32,
    min_keep: usize,
    seed: u32,
    random: Random,
}

impl Sampler for Xtc {
    fn apply(&mut self, candidates: &mut Candidates) {
        if candidates.len() < 2 || self.random.next_f64() > f64::from(self.probability) {
            return;
        }
        candidates.normalise();
        let above = candidates.items().iter().filter(|item| item.probability >= self.threshold).count();
        let dropped = above.saturating_sub(1);
        if dropped > 0 && candidates.len() - dropped >= self.min_keep {
            candidates.sort_best(above);
            candidates.drop_first(dropped);
        }
    }

    fn reset(&mut self) {
        self.random = Random::new(u64::from(self.seed), STREAM);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::left;
    use super::*;
    use crate::Parameters;

    fn with(xtc_probability: f32, xtc_threshold: f32, min_keep: usize) -> Vec<u32> {
        let parameters = Parameters { xtc_probability, xtc_threshold, min_keep, ..Parameters::default() };
        left(&SPEC, &parameters, &[0.1, 0.4, 0.2, 0.3])
    }

    /// The first four rows are those of the peer's test suite.
    #[test]
    fn values_of_the_peer() {
        assert_eq!(with(1.0, 0.09, 0), [0]);
        assert_eq!(with(1.0, 0.19, 0), [0, 2]);
        assert_eq!(with(1.0, 0.29, 0), [0, 2, 3]);
        assert_eq!(with(1.0, 0.39, 0), [0, 1, 2, 3]);
        assert_eq!(with(1.0, 0.51, 0), [0, 1, 2, 3]);
        assert_eq!(with(0.0, 0.09, 0), [0, 1, 2, 3]);
        assert_eq!(with(1.0, 0.09, 1), [0]);
        assert_eq!(with(1.0, 0.09, 2), [0, 1, 2, 3]); // too few would stay
    }

    #[test]
    fn acts_as_often_as_it_should() {
        let parameters = Parameters { xtc_probability: 0.3, ..Parameters::default() };
        let mut sampler = (SPEC.build)(&parameters).unwrap();
        let mut acted = 0;
        for _ in 0..10_000 {
            let mut candidates = Candidates::new(&[0.0, 0.0]).unwrap();
            sampler.apply(&mut candidates);
            acted += usize::from(candidates.len() == 1);
        }
        assert!((2_800..3_200).contains(&acted), "{acted}");
    }
}
