//! Makes tokens that appeared lately less probable.

use std::collections::{HashMap, VecDeque};

use super::{Needs, Sampler, SamplerSpec};
use crate::Candidates;

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "penalties",
    aliases: &[],
    letter: 'e',
    build: |parameters| {
        let neutral = parameters.repeat_penalty == 1.0
            && parameters.frequency_penalty == 0.0
            && parameters.presence_penalty == 0.0;
        if neutral || parameters.penalty_last_n == 0 {
            return None;
        }
        Some(Box::new(Penalties {
            // Below 0 there is no limit.
            last_n: usize::try_from(parameters.penalty_last_n).unwrap_or(usize::MAX),
            repeat: parameters.repeat_penalty,
            frequency: parameters.frequency_penalty,
            presence: parameters.presence_penalty,
            window: VecDeque::new(),
            counts: HashMap::new(),
        }))
    },
};

struct Penalties {
    last_n: usize,
    repeat: f32,
    frequency: f32,
    presence: f32,
    /// The last tokens, oldest first; grows with what was really accepted, not with `last_n`.
    window: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Sampler for Penalties {
    fn apply(&mut self, candidates: &mut Candidates) {
        let seen: Vec<(u32, u32)> = self.counts.iter().map(|(token, count)| (*token, *count)).collect();
        candidates.change(&seen, |logit, count| {
            let scaled = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
            scaled - (*count as f32 * self.frequency + self.presence)
        });
    }

    fn accept(&mut self, token: u32) {
        self.window.push_back(token);
        *self.counts.entry(token).or_default() += 1;
        if self.window.len() > self.last_n
            && let Some(old) = self.window.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    fn needs(&self) -> Needs {
        let lowers = self.repeat >= 1.0 && self.frequency >= 0.0 && self.presence >= 0.0;
        if lowers { Needs::Lowers(self.counts.len()) } else { Needs::All }
    }

    fn reset(&mut self) {
        self.window.clear();
        self.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;

    fn penalised(parameters: &Parameters, history: &[u32], logits: &[f32]) -> Vec<f32> {
        let mut candidates = Candidates::new(logits).unwrap();
        if let Some(mut sampler) = (SPEC.build)(parameters) {
            history.iter().for_each(|token| sampler.accept(*token));
            sampler.apply(&mut candidates);
        }
        candidates.items().iter().map(|item| item.logit).collect()
    }

    const LOGITS: [f32; 4] = [2.0, -1.0, 3.0, 0.5];

    #[test]
    fn values_by_hand() {
        let base = Parameters::default;
        let repeat = Parameters { repeat_penalty: 2.0, ..base() };
        assert_eq!(penalised(&repeat, &[0, 1, 0], &LOGITS), [1.0, -2.0, 3.0, 0.5]);
        let presence = Parameters { presence_penalty: 0.5, ..base() };
        assert_eq!(penalised(&presence, &[0, 1, 0], &LOGITS), [1.5, -1.5, 3.0, 0.5]);
        let frequency = Parameters { frequency_penalty: 0.5, ..base() };
        assert_eq!(penalised(&frequency, &[0, 1, 0], &LOGITS), [1.0, -1.5, 3.0, 0.5]);
        let all =
            Parameters { repeat_penalty: 2.0, presence_penalty: 0.25, frequency_penalty: 0.5, ..base() };
        assert_eq!(penalised(&all, &[0, 1, 0], &LOGITS), [-0.25, -2.75, 3.0, 0.5]);
    }

    #[test]
    fn any_window_length_works() {
        let with = |penalty_last_n, history: &[u32]| {
            let parameters = Parameters { penalty_last_n, presence_penalty: 1.0, ..Parameters::default() };
            penalised(&parameters, history, &LOGITS)
        };
        let history = [3, 0, 1];
        assert_eq!(with(0, &history), LOGITS);
        assert_eq!(with(1, &history), [2.0, -2.0, 3.0, 0.5]); // the last one, not the first
        assert_eq!(with(2, &history), [1.0, -2.0, 3.0, 0.5]);
        for unlimited in [3, -1, 1_000_000_000, i32::MAX, i32::MIN] {
            assert_eq!(with(unlimited, &history), [1.0, -2.0, 3.0, -0.5]);
        }
        assert_eq!(with(64, &[]), LOGITS);
        // Tokens outside the row are counted but change nothing.
        assert_eq!(with(64, &[99, u32::MAX]), LOGITS);
    }

    #[test]
    fn what_left_the_window_counts_no_more() {
        let parameters = Parameters { penalty_last_n: 2, frequency_penalty: 1.0, ..Parameters::default() };
        assert_eq!(penalised(&parameters, &[0, 0, 0], &LOGITS), [0.0, -1.0, 3.0, 0.5]);
        assert_eq!(penalised(&parameters, &[0, 0, 0, 1], &LOGITS), [1.0, -2.0, 3.0, 0.5]);
        assert_eq!(penalised(&parameters, &[0, 0, 1, 1], &LOGITS), [2.0, -3.0, 3.0, 0.5]);
    }
}
