//! Adaptive-p: prefers candidates whose probability is near a target, which moves so that the chosen tokens'
//! mean probability comes to the target asked for.

use super::{Sampler, SamplerSpec};
use crate::{Candidate, Candidates};

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "adaptive_p",
    aliases: &[],
    letter: 'a',
    build: |parameters| {
        let (target, decay) = (parameters.adaptive_target, parameters.adaptive_decay.clamp(0.0, 0.99));
        (target >= 0.0).then(|| Box::new(AdaptiveP::new(target, decay)) as Box<dyn Sampler>)
    },
};

/// Distance from the target at which a candidate's logit begins to fall linearly.
const WIDTH: f32 = 0.3;
const PEAK: f32 = 5.0;
const SHARPNESS: f32 = 10.0;

struct AdaptiveP {
    target: f32,
    /// Weight that older tokens keep with each new one.
    decay: f32,
    weighted_sum: f32,
    total_weight: f32,
    /// Tokens and their probabilities before the change.
    original: Vec<(u32, f32)>,
    /// What was chosen and its probability before the change, until it is accepted.
    pending: Option<(u32, f32)>,
}

impl AdaptiveP {
    /// As if all tokens before had met the target.
    fn new(target: f32, decay: f32) -> Self {
        let (weighted_sum, total_weight) = (target / (1.0 - decay), 1.0 / (1.0 - decay));
        Self { target, decay, weighted_sum, total_weight, original: Vec::new(), pending: None }
    }
}

impl Sampler for AdaptiveP {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.normalise();
        self.original.clear();
        self.original.extend(candidates.items().iter().map(|item| (item.token, item.probability)));
        self.original.sort_unstable_by_key(|(token, _)| *token);
        let target = self.target.clamp(0.0, 1.0);
        let adapted = (2.0 * target - self.weighted_sum / self.total_weight).clamp(0.0, 1.0);
        candidates.map(|item| {
            let distance = ((item.probability - adapted) / WIDTH).abs();
            match item.logit {
                f32::NEG_INFINITY => f32::NEG_INFINITY,
                _ => PEAK - SHARPNESS * distance * distance / (1.0 + distance),
            }
        });
    }

    fn chosen(&mut self, candidate: &Candidate) {
        let at = self.original.binary_search_by_key(&candidate.token, |(token, _)| *token);
        self.pending = at.ok().and_then(|at| self.original.get(at)).copied();
    }

    fn accept(&mut self, token: u32) {
        if let Some((_, probability)) = self.pending.take().filter(|(pending, _)| *pending == token) {
            self.weighted_sum = probability + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }

    fn reset(&mut self) {
        *self = Self::new(self.target, self.decay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_hand() {
        // Probabilities 0.1, 0.2, 0.3, 0.4, target 0.3: distances 2/3, 1/3, 0, 1/3 give logits
        // 5 - 10 * (4/9) / (5/3) = 2.3333, 5 - 10 * (1/9) / (4/3) = 4.1667, 5, 4.1667.
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.3f32.ln(), 0.4f32.ln(), f32::NEG_INFINITY];
        let mut sampler = AdaptiveP::new(0.3, 0.5);
        let mut candidates = Candidates::new(&logits).unwrap();
        sampler.apply(&mut candidates);
        let found: Vec<f32> = candidates.items().iter().map(|item| item.logit).collect();
        for (found, expected) in found.iter().zip([2.333_333, 4.166_667, 5.0, 4.166_667]) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
        assert_eq!(found[4], f32::NEG_INFINITY);
        // Token 3 with 0.4: sum 0.4 + 0.5 * 0.6 = 0.7, weight 1 + 0.5 * 2 = 2, mean 0.35; target 0.25.
        sampler.chosen(&candidates.items()[3].clone());
        sampler.accept(3);
        assert!((sampler.weighted_sum - 0.7).abs() < 1e-6 && (sampler.total_weight - 2.0).abs() < 1e-6);
        let mut candidates = Candidates::new(&logits).unwrap();
        sampler.apply(&mut candidates);
        let distance = 0.15f32 / 0.3;
        let expected = 5.0 - 10.0 * distance * distance / (1.0 + distance);
        assert!((candidates.items()[0].logit - expected).abs() < 1e-5);
        // Another token than the chosen one was accepted: nothing is learned.
        sampler.chosen(&candidates.items()[0].clone());
        sampler.accept(1);
        assert!((sampler.weighted_sum - 0.7).abs() < 1e-6);
        sampler.reset();
        assert!((sampler.weighted_sum - 0.6).abs() < 1e-6);
    }
}
