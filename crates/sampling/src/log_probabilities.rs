//! Log-probabilities for people and interfaces: of the raw logits, before any sampler. Those after the samplers
//! come from [`crate::Chain::log_probabilities`].

use crate::math::{exp, ln};
use crate::{Candidates, SamplingError, candidates};

/// Log-probabilities of one position.
#[derive(Clone, PartialEq, Debug)]
pub struct LogProbabilities {
    /// Natural logarithm of the chosen token's probability.
    pub chosen: f32,
    /// The most probable tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}

/// Log-softmax of a row of raw logits at `chosen`, and the `count` most probable tokens. A token outside the
/// row has minus infinity.
pub fn log_probabilities(
    logits: &[f32],
    chosen: u32,
    count: usize,
) -> Result<LogProbabilities, SamplingError> {
    candidates::check(logits)?;
    let maximum = candidates::best(logits).map_or(f32::NEG_INFINITY, |(_, logit)| logit);
    if maximum == f32::NEG_INFINITY {
        return Err(SamplingError::NoCandidate);
    }
    let sum: f64 = logits.iter().map(|logit| exp(f64::from(*logit) - f64::from(maximum))).sum();
    let normaliser = f64::from(maximum) + ln(sum);
    let of = |logit: f32| (f64::from(logit) - normaliser) as f32;
    let top = if count == 0 {
        Vec::new()
    } else {
        let mut candidates = Candidates::new(logits)?;
        candidates.keep_best(count);
        candidates.sort_best(count);
        candidates.items().iter().map(|item| (item.token, of(item.logit))).collect()
    };
    let chosen = logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |logit| of(*logit));
    Ok(LogProbabilities { chosen, top })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_hand() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let found = log_probabilities(&logits, 0, 2).unwrap();
        assert!((found.chosen - 0.125f32.ln()).abs() < 1e-6);
        assert_eq!(found.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2, 1]);
        assert!((found.top[0].1 - 0.625f32.ln()).abs() < 1e-6);
        assert!((found.top[1].1 - 0.25f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn probabilities_sum_to_one() {
        let logits: Vec<f32> = (0..1000).map(|n| ((n * 37) % 101) as f32 / 7.0).collect();
        let found = log_probabilities(&logits, 3, 5000).unwrap();
        assert_eq!(found.top.len(), 1000);
        let sum: f64 = found.top.iter().map(|(_, value)| f64::from(*value).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    }

    #[test]
    fn bad_rows() {
        assert!(log_probabilities(&[f32::NAN], 0, 1).is_err());
        assert_eq!(log_probabilities(&[f32::NEG_INFINITY], 0, 1), Err(SamplingError::NoCandidate));
        let found = log_probabilities(&[0.0, f32::NEG_INFINITY], 1, 9).unwrap();
        assert_eq!(found.chosen, f32::NEG_INFINITY);
        assert_eq!(found.top, [(0, 0.0), (1, f32::NEG_INFINITY)]);
        assert_eq!(log_probabilities(&[0.0], 5, 0).unwrap().chosen, f32::NEG_INFINITY);
    }
}
