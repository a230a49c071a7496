//! The sampler chain of one request.

use crate::candidates::{best, check};
use crate::math::ln;
use crate::samplers::mirostat;
use crate::{
    BestLogits, Candidates, LogProbabilities, Needs, Parameters, Random, Sampler, SamplingError, parse_names,
};

/// Stream number of the final draw; samplers that draw for themselves use streams of their own.
const DRAW_STREAM: u64 = 0;

/// Everything that turns rows of logits into tokens for one request: biases, samplers in order, final choice.
/// Chains share nothing, so one request's settings never reach another's.
pub struct Chain {
    bias: Vec<(u32, f32)>,
    samplers: Vec<Box<dyn Sampler>>,
    greedy: bool,
    random: Random,
    seed: u32,
    candidates: Candidates,
    /// The last choice was made without candidates.
    direct: bool,
}

impl Chain {
    /// A chain for a vocabulary of this size. Samplers that would change nothing are left out. Mirostat takes
    /// the place of all but the temperature; adaptive-p comes last wherever it is named.
    pub fn new(parameters: &Parameters, vocabulary: usize) -> Result<Self, SamplingError> {
        parameters.validate(vocabulary)?;
        let mut bias = parameters.logit_bias.clone();
        bias.extend(parameters.suppress.iter().map(|token| (*token, f32::NEG_INFINITY)));
        let mirostat = mirostat::build(parameters, vocabulary);
        let mut specs = match mirostat {
            Some(_) => parse_names("temperature")?,
            None => parameters.samplers.clone(),
        };
        specs.sort_by_key(|spec| spec.name == "adaptive_p");
        let mut samplers: Vec<_> = specs.iter().filter_map(|spec| (spec.build)(parameters)).collect();
        samplers.extend(mirostat);
        Ok(Self {
            bias,
            samplers,
            greedy: parameters.temperature <= 0.0 && parameters.dynatemp_range <= 0.0,
            random: Random::new(u64::from(parameters.seed), DRAW_STREAM),
            seed: parameters.seed,
            candidates: Candidates::default(),
            direct: false,
        })
    }

    /// The seed of its draws.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Whether a bias rules this token out.
    pub fn forbids(&self, token: u32) -> bool {
        self.bias.iter().any(|(biased, bias)| *biased == token && *bias == f32::NEG_INFINITY)
    }

    /// Chooses a token for a row of raw logits. `allowed` has a bit for each token that a grammar allows; the
    /// others are ruled out before any sampler. Call [`Chain::accept`] with the token that is really used.
    pub fn sample(&mut self, logits: &[f32], allowed: Option<&[u32]>) -> Result<u32, SamplingError> {
        let keeps_best = self.samplers.iter().all(|sampler| sampler.keeps_best());
        self.direct = self.greedy && keeps_best && self.bias.is_empty() && allowed.is_none();
        if self.direct {
            check(logits)?;
            let best = best(logits).filter(|(_, logit)| *logit > f32::NEG_INFINITY);
            return best.map(|(token, _)| token).ok_or(SamplingError::NoCandidate);
        }
        self.candidates.load(logits)?;
        if let Some(allowed) = allowed {
            self.candidates.restrict(allowed);
        }
        self.choose(keeps_best)
    }

    /// The same for the highest logits of a row, as many as [`Chain::suffices`] says: it gives what the whole row would give.
    pub fn sample_best(&mut self, best: &BestLogits<'_>) -> Result<u32, SamplingError> {
        let keeps_best = self.samplers.iter().all(|sampler| sampler.keeps_best());
        self.direct = self.greedy && keeps_best && self.bias.is_empty();
        if self.direct {
            best.check()?;
            let first = best.tokens.iter().zip(best.logits).next();
            let first = first.filter(|(_, logit)| **logit > f32::NEG_INFINITY);
            return first.map(|(token, _)| *token).ok_or(SamplingError::NoCandidate);
        }
        self.candidates.load_best(best)?;
        self.choose(keeps_best)
    }

    /// How many of the highest raw logits of a row suffice to choose as from the whole row, as long as not more than `ahead`
    /// tokens are accepted before. `None` if all are needed, as with every mask.
    pub fn suffices(&self, ahead: usize) -> Option<usize> {
        // A token that is lowered makes room for one more; one that is raised could come from anywhere.
        let mut lowered = self.bias.len();
        if self.bias.iter().any(|(_, bias)| *bias > 0.0) {
            return None;
        }
        if self.greedy && self.samplers.iter().all(|sampler| sampler.keeps_best()) {
            return Some(1 + lowered);
        }
        for sampler in &self.samplers {
            match sampler.needs() {
                Needs::All => return None,
                Needs::Lowers(tokens) => lowered = lowered.saturating_add(tokens).saturating_add(ahead),
                Needs::Best(count) => return Some(lowered.saturating_add(count)),
            }
        }
        None
    }

    /// Chooses one of the candidates that were loaded.
    fn choose(&mut self, keeps_best: bool) -> Result<u32, SamplingError> {
        self.candidates.change(&self.bias, |logit, bias| logit + bias);
        if self.greedy && keeps_best {
            // Nothing can win but the best of the row.
            self.candidates.keep_best(1);
        }
        for sampler in &mut self.samplers {
            sampler.apply(&mut self.candidates);
        }
        let chosen = if self.greedy {
            self.candidates.keep_best(1);
            self.candidates.draw(0.0)?
        } else {
            let draw = self.random.next_f64();
            self.candidates.draw(draw)?
        };
        for sampler in &mut self.samplers {
            sampler.chosen(&chosen);
        }
        Ok(chosen.token)
    }

    /// Log-probabilities after all samplers, of the row that was sampled last: `chosen` and the `count` most
    /// probable tokens that were left.
    pub fn log_probabilities(&mut self, chosen: u32, count: usize) -> LogProbabilities {
        if self.direct {
            let top = if count > 0 { vec![(chosen, 0.0)] } else { Vec::new() };
            return LogProbabilities { chosen: 0.0, top };
        }
        self.candidates.normalise();
        self.candidates.sort_best(count);
        let items = self.candidates.items();
        let all = || items.iter().filter(|item| item.probability > 0.0);
        let of = |probability: f32| ln(f64::from(probability)) as f32;
        LogProbabilities {
            chosen: all()
                .find(|item| item.token == chosen)
                .map_or(f32::NEG_INFINITY, |item| of(item.probability)),
            top: all().take(count).map(|item| (item.token, of(item.probability))).collect(),
        }
    }

    /// Tells the samplers which token was appended: of the prompt, or chosen.
    pub fn accept(&mut self, token: u32) {
        for sampler in &mut self.samplers {
            sampler.accept(token);
        }
    }

    /// Forgets all accepted tokens and starts the draws over.
    pub fn reset(&mut self) {
        self.random = Random::new(u64::from(self.seed), DRAW_STREAM);
        for sampler in &mut self.samplers {
            sampler.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_names;

    const LOGITS: [f32; 6] = [0.1, 2.0, -1.0, 1.9, 0.5, 1.0];

    fn draws(parameters: &Parameters, count: usize) -> Vec<u32> {
        let mut chain = Chain::new(parameters, LOGITS.len()).unwrap();
        (0..count)
            .map(|_| {
                let token = chain.sample(&LOGITS, None).unwrap();
                chain.accept(token);
                token
            })
            .collect()
    }

    #[test]
    fn greedy_takes_the_best() {
        assert_eq!(draws(&Parameters::greedy(), 4), [1; 4]);
        // Also when temperature is not in the chain, and when there is no chain.
        let samplers = parse_names("top_k").unwrap();
        assert_eq!(draws(&Parameters { samplers, ..Parameters::greedy() }, 2), [1; 2]);
        assert_eq!(draws(&Parameters { samplers: Vec::new(), ..Parameters::greedy() }, 2), [1; 2]);
    }

    #[test]
    fn equal_seeds_draw_equally() {
        let with_seed = |seed| Parameters { seed, temperature: 1.5, ..Parameters::default() };
        let first = draws(&with_seed(42), 64);
        assert_eq!(first, draws(&with_seed(42), 64));
        assert_ne!(first, draws(&with_seed(43), 64));
        // Pinned, so that a change of the generator or of the order of draws does not pass unnoticed.
        assert_eq!(first[..12], PINNED);
        let mut chain = Chain::new(&with_seed(42), 6).unwrap();
        let again: Vec<u32> = (0..8).map(|_| chain.sample(&LOGITS, None).unwrap()).collect();
        chain.reset();
        assert_eq!(again, (0..8).map(|_| chain.sample(&LOGITS, None).unwrap()).collect::<Vec<_>>());
        assert_eq!(chain.seed(), 42);
    }
    const PINNED: [u32; 12] = [1, 3, 0, 5, 1, 1, 1, 1, 5, 5, 5, 4];

    #[test]
    fn draws_follow_the_distribution() {
        // Logits ln 1, ln 2, ln 5 at temperature 1 and no other sampler: shares 1/8, 2/8, 5/8.
        let samplers = parse_names("temperature").unwrap();
        let parameters = Parameters { temperature: 1.0, samplers, seed: 5, ..Parameters::default() };
        let mut chain = Chain::new(&parameters, 3).unwrap();
        let mut counts = [0; 3];
        for _ in 0..40_000 {
            counts[chain.sample(&[0.0, 2f32.ln(), 5f32.ln()], None).unwrap() as usize] += 1;
        }
        for (count, expected) in counts.into_iter().zip([5_000i32, 10_000, 25_000]) {
            assert!((count - expected).abs() < 500, "{counts:?}");
        }
    }

    #[test]
    fn bias_forces_and_forbids() {
        let biased = |logit_bias| Parameters { logit_bias, ..Parameters::greedy() };
        assert_eq!(draws(&biased(vec![(2, 100.0)]), 1), [2]);
        assert_eq!(draws(&biased(vec![(1, f32::NEG_INFINITY)]), 1), [3]);
        assert_eq!(draws(&Parameters { suppress: vec![1, 3], ..Parameters::greedy() }, 1), [5]);
        let out = Chain::new(&biased(vec![(6, 1.0)]), 6).err().unwrap();
        assert_eq!(out, SamplingError::TokenOutOfRange { token: 6, vocabulary: 6 });
        let all = Parameters { suppress: (0..6).collect(), ..Parameters::default() };
        assert_eq!(Chain::new(&all, 6).unwrap().sample(&LOGITS, None), Err(SamplingError::NoCandidate));
    }

    #[test]
    fn bad_rows_are_errors_under_every_setting() {
        let bad: [&[f32]; 5] = [
            &[],
            &[1.0, f32::NAN, 2.0],
            &[f32::NAN; 3],
            &[f32::NEG_INFINITY; 3],
            &[1.0, f32::INFINITY, f32::NEG_INFINITY],
        ];
        let settings = [
            Parameters::default(),
            Parameters::greedy(),
            Parameters { repeat_penalty: 2.0, typical_p: 0.5, ..Parameters::default() },
            Parameters { repeat_penalty: 2.0, typical_p: 0.5, ..Parameters::greedy() },
            Parameters { samplers: Vec::new(), ..Parameters::default() },
        ];
        for parameters in &settings {
            for row in bad {
                let mut chain = Chain::new(parameters, 3).unwrap();
                chain.accept(1);
                assert!(chain.sample(row, None).is_err(), "{row:?}");
                // The chain still works afterwards.
                assert!(chain.sample(&[0.0, 1.0, f32::NEG_INFINITY], None).is_ok());
            }
        }
    }

    #[test]
    fn parameters_outside_their_range_are_refused() {
        let refused = |parameters: Parameters| Chain::new(&parameters, 8).err().unwrap().to_string();
        let base = Parameters::default;
        assert_eq!(
            refused(Parameters { repeat_penalty: 0.0, ..base() }),
            "repeat_penalty is 0, it must be a finite number above 0"
        );
        refused(Parameters { temperature: f32::NAN, ..base() });
        refused(Parameters { presence_penalty: f32::INFINITY, ..base() });
        refused(Parameters { logit_bias: vec![(0, f32::NAN)], ..base() });
    }

    #[test]
    fn extreme_values_still_choose_something() {
        let extremes = [f32::MIN_POSITIVE, 1e-40, 1e-3, 1e3, f32::MAX];
        for temperature in extremes {
            for repeat_penalty in extremes {
                let parameters =
                    Parameters { temperature, repeat_penalty, typical_p: 0.3, ..Parameters::default() };
                let mut chain = Chain::new(&parameters, 6).unwrap();
                chain.accept(1);
                let token = chain.sample(&LOGITS, None).unwrap();
                assert!(token < 6);
            }
        }
    }

    #[test]
    fn a_large_vocabulary_is_quick() {
        let mut random = Random::new(3, 9);
        let logits: Vec<f32> = (0..262_144).map(|_| random.next_f64() as f32 * 20.0).collect();
        let mut chain = Chain::new(&Parameters::default(), logits.len()).unwrap();
        chain.sample(&logits, None).unwrap();
        let start = std::time::Instant::now();
        for _ in 0..20 {
            chain.sample(&logits, None).unwrap();
        }
        let each = start.elapsed() / 20;
        // About 0.6 ms on one core; the limit only catches a full sort on a busy machine.
        assert!(each.as_millis() < 15, "{each:?}");
    }
}
