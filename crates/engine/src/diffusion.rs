//! Text by masked diffusion: a canvas of mask tokens that are replaced over some steps (LLaDA, arXiv 2502.09992;
//! Dream, arXiv 2508.15487).

use puna_runtime::{Batch, Model, OutputRows, Work};
use puna_sampling::{Candidates, Parameters, Random, SAMPLERS, Sampler, SamplingError};

use crate::EngineError;

/// Streams of the generator: one for each thing that is drawn, so that none disturbs another.
const TOKENS: u64 = 0;
const NOISE: u64 = 1;
const PLACES: u64 = 2;

/// When masks are replaced.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum DiffusionSchedule {
    /// Anywhere; of the masks left at time `t`, the share `1 − s / t` until the next time `s`. Time falls evenly from 1 to
    /// this number, at which the last step replaces the rest.
    Time {
        /// The last time, at least 0 and below 1.
        end: f32,
    },
    /// In one block of so many places after the other, each in an equal part of the steps.
    Blocks {
        /// Places in a block, at least 1.
        length: u32,
    },
}

/// Which masks are replaced first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiffusionOrder {
    /// Each with the same chance, so that the number of a step varies.
    Origin,
    /// Those whose distribution has the least entropy.
    Entropy,
    /// Those whose best token leads the second by most.
    Margin,
    /// Any.
    Random,
    /// Those whose chosen token is most probable.
    Confidence,
}

/// What a diffusion may be asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct DiffusionOptions {
    /// Tokens of prompt and answer together.
    pub length: u32,
    /// Steps, at least one per block.
    pub steps: u32,
    /// When masks are replaced.
    pub schedule: DiffusionSchedule,
    /// Which masks are replaced first.
    pub order: DiffusionOrder,
    /// Above 0 places are drawn by their score over this number, instead of taken by it.
    pub order_temperature: f32,
    /// Above 0 logits are moved away from those without the prompt, by this much (classifier-free guidance; Ho and
    /// Salimans, arXiv 2207.12598).
    pub guidance: f32,
    /// Whether logits get Gumbel noise to the power of the temperature before tokens are chosen.
    pub noise: bool,
    /// Temperature of tokens; at 0 or below the best is chosen.
    pub temperature: f32,
    /// Keeps so many of the best; 0 or below keeps all.
    pub top_k: i32,
    /// Keeps the best until their probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Seed of all draws.
    pub seed: u32,
    /// The mask token.
    pub mask: u32,
    /// Whether the row before a place predicts it, as in models made from autoregressive ones.
    pub shifts_logits: bool,
}

/// From a canvas to its logits, `[length, vocabulary]`.
pub type CanvasLogits<'a> = &'a mut dyn FnMut(&[u32]) -> Result<Vec<f32>, DiffusionError>;

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum DiffusionError {
    /// An option makes no sense.
    #[error("{option} is {value}, it must be {rule}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value as text.
        value: String,
        /// What it should be.
        rule: &'static str,
    },
    /// The model gave other numbers than asked for.
    #[error("the model gave {found} logits, {expected} were expected")]
    Logits {
        /// Numbers that came.
        found: usize,
        /// Numbers that should have come.
        expected: usize,
    },
    /// Watching ended it.
    #[error("the generation was stopped")]
    Stopped,
    /// Logits are unusable.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The model refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A step that is about to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiffusionProgress<'a> {
    /// Steps done.
    pub step: u32,
    /// Steps in all.
    pub steps: u32,
    /// The canvas: the prompt, then tokens and masks.
    pub tokens: &'a [u32],
}

/// Fills a canvas after `prompt` with a model of which every row sees all. `watch` is called before each step and ends
/// the generation by returning false. Returns the whole canvas; equal options give equal tokens.
pub fn diffuse(
    model: &mut Model,
    prompt: &[u32],
    options: &DiffusionOptions,
    watch: &mut dyn FnMut(DiffusionProgress<'_>) -> bool,
) -> Result<Vec<u32>, DiffusionError> {
    let vocabulary = model.information().vocabulary;
    let most = model.options().context.min(model.options().micro_batch);
    let refuse = |option, value: String, rule| Err(DiffusionError::Option { option, value, rule });
    if options.length > most {
        return refuse("the length", options.length.to_string(), "at most the tokens of one step");
    }
    if options.mask >= vocabulary {
        return refuse("the mask token", options.mask.to_string(), "in the vocabulary");
    }
    if let Some(token) = prompt.iter().find(|token| **token >= vocabulary) {
        return Err(EngineError::TokenOutOfRange { token: *token, vocabulary }.into());
    }
    let mut logits = |canvas: &[u32]| {
        model.clear(0);
        let work = vec![Work { sequence: 0, tokens: canvas.to_vec(), outputs: OutputRows::All }];
        let outputs = model.run(&Batch::of(work)).map_err(EngineError::from)?;
        Ok(outputs.logits.into_vec())
    };
    diffuse_with(prompt, options, vocabulary as usize, &mut logits, watch)
}

/// [`diffuse`] with any function from a canvas to its logits, `[length, vocabulary]`.
pub fn diffuse_with(
    prompt: &[u32],
    options: &DiffusionOptions,
    vocabulary: usize,
    logits: CanvasLogits<'_>,
    watch: &mut dyn FnMut(DiffusionProgress<'_>) -> bool,
) -> Result<Vec<u32>, DiffusionError> {
    let blocks = options.blocks(prompt.len())?;
    let mut canvas = prompt.to_vec();
    canvas.resize(options.length as usize, options.mask);
    let mut chooser = Chooser::new(options)?;
    let steps = options.steps / blocks.len() as u32;
    for (number, block) in blocks.iter().enumerate() {
        let masks = canvas[block.clone()].iter().filter(|token| **token == options.mask).count();
        for step in 0..steps {
            let progress = DiffusionProgress {
                step: number as u32 * steps + step,
                steps: blocks.len() as u32 * steps,
                tokens: &canvas,
            };
            if !watch(progress) {
                return Err(DiffusionError::Stopped);
            }
            let places: Vec<usize> = block.clone().filter(|place| canvas[*place] == options.mask).collect();
            if places.is_empty() {
                break;
            }
            let rows = guided(&canvas, prompt.len(), options, logits)?;
            if rows.len() != canvas.len() * vocabulary {
                let expected = canvas.len() * vocabulary;
                return Err(DiffusionError::Logits { found: rows.len(), expected });
            }
            let replaced = options.replaced(step, steps, masks, places.len());
            for (place, token) in chooser.choose(&rows, vocabulary, &places, replaced)? {
                canvas[place] = token;
            }
        }
    }
    Ok(canvas)
}

/// Logits of the canvas, moved away from those of the canvas without its prompt if the options say so.
fn guided(
    canvas: &[u32],
    prompt: usize,
    options: &DiffusionOptions,
    logits: CanvasLogits<'_>,
) -> Result<Vec<f32>, DiffusionError> {
    let mut rows = logits(canvas)?;
    if options.guidance > 0.0 {
        let mut without = canvas.to_vec();
        without[..prompt].fill(options.mask);
        let without = logits(&without)?;
        let factor = options.guidance + 1.0;
        rows.iter_mut()
            .zip(&without)
            .for_each(|(with, without)| *with = without + factor * (*with - without));
    }
    Ok(rows)
}

impl DiffusionOptions {
    /// The parts of the canvas that are filled one after the other.
    fn blocks(&self, prompt: usize) -> Result<Vec<std::ops::Range<usize>>, DiffusionError> {
        let length = self.length as usize;
        let refuse = |option, value: String, rule| Err(DiffusionError::Option { option, value, rule });
        if prompt >= length {
            return refuse("the length", length.to_string(), "more than the tokens of the prompt");
        }
        let blocks: Vec<_> = match self.schedule {
            DiffusionSchedule::Time { end } if !(0.0..1.0).contains(&end) => {
                return refuse("the last time", end.to_string(), "at least 0 and below 1");
            }
            DiffusionSchedule::Blocks { length: 0 } => {
                return refuse("the length of a block", "0".into(), "at least 1");
            }
            DiffusionSchedule::Time { .. } => std::iter::once(0..length).collect(),
            DiffusionSchedule::Blocks { length: block } => {
                let block = block as usize;
                (prompt..length).step_by(block).map(|start| start..(start + block).min(length)).collect()
            }
        };
        if (self.steps as usize) < blocks.len() {
            return refuse("the number of steps", self.steps.to_string(), "at least one per block");
        }
        Ok(blocks)
    }

    /// How many of the masks left are replaced in a step. In a block the steps share its first `masks` evenly, earlier ones
    /// take what is left over.
    fn replaced(&self, step: u32, steps: u32, masks: usize, left: usize) -> f64 {
        match self.schedule {
            DiffusionSchedule::Time { .. } if step + 1 >= steps => left as f64,
            DiffusionSchedule::Time { end } => {
                let time = |step: u32| 1.0 - step as f64 / steps as f64 * (1.0 - end as f64);
                left as f64 * (1.0 - time(step + 1) / time(step))
            }
            DiffusionSchedule::Blocks { .. } => {
                let (masks, steps) = (masks as u32, steps.max(1));
                f64::from(masks / steps + u32::from(step < masks % steps)).min(left as f64)
            }
        }
    }
}

/// Chooses tokens and places.
struct Chooser<'a> {
    options: &'a DiffusionOptions,
    samplers: Vec<Box<dyn Sampler>>,
    candidates: Candidates,
    tokens: Random,
    noise: Random,
    places: Random,
}

impl<'a> Chooser<'a> {
    fn new(options: &'a DiffusionOptions) -> Result<Self, DiffusionError> {
        let parameters = Parameters {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            seed: options.seed,
            ..Parameters::default()
        };
        // In this order, whatever the default order of a chain is.
        // At temperature 0 the scores of places need the distribution, which a greedy chain would reduce to one token.
        let names: &[&str] =
            if options.temperature > 0.0 { &["top_k", "top_p", "temperature"] } else { &["top_k", "top_p"] };
        let specs = names.iter().map(|name| SAMPLERS.iter().find(|spec| spec.name == *name));
        let samplers = specs.flatten().filter_map(|spec| (spec.build)(&parameters)).collect();
        let random = |stream| Random::new(u64::from(options.seed), stream);
        let [tokens, noise, places] = [TOKENS, NOISE, PLACES].map(random);
        let candidates = Candidates::default();
        Ok(Self { options, samplers, candidates, tokens, noise, places })
    }

    /// The places to replace, out of `places`, with their tokens; `replaced` of them.
    fn choose(
        &mut self,
        rows: &[f32],
        vocabulary: usize,
        places: &[usize],
        replaced: f64,
    ) -> Result<Vec<(usize, u32)>, DiffusionError> {
        let mut chosen = Vec::new();
        let share = replaced / places.len() as f64;
        for place in places {
            let by_chance = self.options.order == DiffusionOrder::Origin;
            if by_chance && self.places.next_f64() >= share {
                continue;
            }
            let row = if self.options.shifts_logits { place.saturating_sub(1) } else { *place };
            let (token, score) = self.token(&rows[row * vocabulary..][..vocabulary])?;
            chosen.push((*place, token, score));
        }
        if self.options.order != DiffusionOrder::Origin {
            let count = (replaced as usize).min(chosen.len());
            self.best_places(&mut chosen, count);
        }
        Ok(chosen.into_iter().map(|(place, token, _)| (place, token)).collect())
    }

    /// A token for one place, and how sure it is.
    fn token(&mut self, logits: &[f32]) -> Result<(u32, f64), DiffusionError> {
        let temperature = f64::from(self.options.temperature);
        if self.options.noise && temperature > 0.0 {
            let noisy: Vec<f32> = logits
                .iter()
                .map(|logit| {
                    // The logarithm of exp(logit) / (−ln u)^temperature.
                    let noise = -(self.noise.next_f64().max(f64::MIN_POSITIVE)).ln();
                    (f64::from(*logit) - temperature * noise.max(f64::MIN_POSITIVE).ln()) as f32
                })
                .collect();
            self.candidates.load(&noisy)?;
        } else {
            self.candidates.load(logits)?;
        }
        for sampler in &mut self.samplers {
            sampler.apply(&mut self.candidates);
        }
        self.candidates.normalise();
        let token = if temperature > 0.0 {
            let draw = self.tokens.next_f64();
            self.candidates.draw(draw)?
        } else {
            self.candidates.best().ok_or(SamplingError::NoCandidate)?
        };
        let score = match self.options.order {
            DiffusionOrder::Origin => 0.0,
            DiffusionOrder::Random => self.places.next_f64(),
            DiffusionOrder::Confidence => {
                let found = self.candidates.items().iter().find(|candidate| candidate.token == token.token);
                found.map_or(0.0, |candidate| f64::from(candidate.probability))
            }
            DiffusionOrder::Entropy => {
                let items = self.candidates.items().iter().map(|item| f64::from(item.probability));
                items.filter(|p| *p > 0.0).map(|p| p * p.ln()).sum()
            }
            DiffusionOrder::Margin => {
                let mut best = [0.0_f64; 2];
                for item in self.candidates.items() {
                    let p = f64::from(item.probability);
                    best = if p > best[0] { [p, best[0]] } else { [best[0], best[1].max(p)] };
                }
                best[0] - best[1]
            }
        };
        Ok((token.token, score))
    }

    /// Keeps the `count` best by score, of equals the first; or draws as many by their scores.
    fn best_places(&mut self, chosen: &mut Vec<(usize, u32, f64)>, count: usize) {
        let temperature = f64::from(self.options.order_temperature);
        if temperature > 0.0 {
            // The largest of scores with Gumbel noise are a draw without replacement (Vieira, 2014).
            for (_, _, score) in chosen.iter_mut() {
                let noise = -(self.places.next_f64().max(f64::MIN_POSITIVE)).ln();
                *score = *score / temperature - noise.max(f64::MIN_POSITIVE).ln();
            }
        }
        chosen.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
        chosen.truncate(count);
    }
}
