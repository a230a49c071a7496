//! Keeps a fixed number of the best candidates.

use super::{Needs, Sampler, SamplerSpec};
use crate::Candidates;

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "top_k",
    aliases: &[],
    letter: 'k',
    build: |parameters| {
        let count = usize::try_from(parameters.top_k).ok().filter(|count| *count > 0)?;
        Some(Box::new(TopK { count: count.max(parameters.min_keep) }))
    },
};

struct TopK {
    count: usize,
}

impl Sampler for TopK {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.keep_best(self.count);
    }

    fn keeps_best(&self) -> bool {
        true
    }

    fn needs(&self) -> Needs {
        Needs::Best(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::left;
    use super::*;
    use crate::Parameters;

    #[test]
    fn values_by_hand() {
        let weights = [1.0, 5.0, 2.0, 2.0, 3.0];
        let with = |top_k| left(&SPEC, &Parameters { top_k, ..Parameters::default() }, &weights);
        assert_eq!(with(1), [1]);
        assert_eq!(with(2), [1, 4]);
        assert_eq!(with(3), [1, 2, 4]); // of the two equal ones the lower token
        assert_eq!(with(99), [0, 1, 2, 3, 4]);
        assert_eq!(with(0), [0, 1, 2, 3, 4]);
        assert_eq!(with(-1), [0, 1, 2, 3, 4]);
    }
}
