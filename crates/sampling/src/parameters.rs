//! What a request may choose about sampling.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use crate::{DryBreakers, InfillTexts, SamplerSpec, SamplingError, default_order};

/// Settings of a [`crate::Chain`]. The defaults are the peer's.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Seed of the draws; equal seeds give equal text. [`random_seed`] makes one when the user names none.
    pub seed: u32,
    /// Divides the logits; at 0 or below the most probable candidate is chosen (greedy). Temperature 0 does
    /// not switch off other samplers: the final choice is the best of what they left.
    pub temperature: f32,
    /// Keeps so many of the best; 0 or below keeps all.
    pub top_k: i32,
    /// Keeps the best until their probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps those at least this share as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Keeps those of typical information until their probabilities add up to more than this; 1 keeps all.
    pub typical_p: f32,
    /// Candidates that top-p, min-p, typical and XTC leave at least.
    pub min_keep: usize,
    /// Keeps those whose logit is within so many standard deviations of the best; 0 or below keeps all.
    pub top_n_sigma: f32,
    /// How often XTC drops the most probable candidates; 0 never.
    pub xtc_probability: f32,
    /// Candidates below this probability are not among those that XTC drops; above 0.5 it drops none.
    pub xtc_threshold: f32,
    /// How far the temperature moves around `temperature` with the entropy; 0 leaves it fixed.
    pub dynatemp_range: f32,
    /// Exponent of the share of the largest entropy, from which the temperature follows.
    pub dynatemp_exponent: f32,
    /// Strength of DRY; 0 switches it off.
    pub dry_multiplier: f32,
    /// Base of DRY's power; below 1 switches it off.
    pub dry_base: f32,
    /// Repetitions of fewer tokens cost nothing in DRY.
    pub dry_allowed_length: i32,
    /// How many of the last tokens DRY looks at; 0 none, below 0 all.
    pub dry_penalty_last_n: i32,
    /// What ends a repetition for DRY.
    pub dry_breakers: Arc<DryBreakers>,
    /// 1 or 2: mirostat of that version instead of all samplers but temperature; 0 for none.
    pub mirostat: i32,
    /// Surprise in bits that mirostat comes to.
    pub mirostat_tau: f32,
    /// How quickly mirostat learns.
    pub mirostat_eta: f32,
    /// Mean probability that adaptive-p comes to; below 0 switches it off.
    pub adaptive_target: f32,
    /// Weight that older tokens keep in adaptive-p with each new one, 0 to 0.99.
    pub adaptive_decay: f32,
    /// What the sampler `infill` has to know; it does nothing without.
    pub infill_texts: Option<Arc<InfillTexts>>,
    /// How many of the last tokens the penalties look at; 0 none, below 0 all.
    pub penalty_last_n: i32,
    /// Divides positive and multiplies negative logits of tokens seen; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Subtracted once per occurrence of a token seen.
    pub frequency_penalty: f32,
    /// Subtracted from every token seen.
    pub presence_penalty: f32,
    /// Added to the logits of single tokens before any sampler; minus infinity rules a token out.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen.
    pub suppress: Vec<u32>,
    /// The samplers, in order; see [`crate::parse_names`] and [`crate::parse_letters`].
    pub samplers: Vec<&'static SamplerSpec>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            seed: 0,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            min_keep: 0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_breakers: Arc::default(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            infill_texts: None,
            penalty_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            suppress: Vec::new(),
            samplers: default_order(),
        }
    }
}

impl Parameters {
    /// The most probable token at every step, nothing else.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks ranges, and tokens against the size of the vocabulary.
    pub fn validate(&self, vocabulary: usize) -> Result<(), SamplingError> {
        let finite = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("dynatemp_range", self.dynatemp_range),
            ("dynatemp_exponent", self.dynatemp_exponent),
            ("dry_multiplier", self.dry_multiplier),
            ("dry_base", self.dry_base),
            ("mirostat_tau", self.mirostat_tau),
            ("mirostat_eta", self.mirostat_eta),
            ("adaptive_target", self.adaptive_target),
            ("adaptive_decay", self.adaptive_decay),
        ];
        for (name, value) in finite {
            if !value.is_finite() {
                return Err(SamplingError::Parameter { name, value, expected: "a finite number" });
            }
        }
        let value = self.repeat_penalty;
        if !value.is_finite() || value <= 0.0 {
            let expected = "a finite number above 0";
            return Err(SamplingError::Parameter { name: "repeat_penalty", value, expected });
        }
        if !(0..=2).contains(&self.mirostat) {
            let value = self.mirostat as f32;
            return Err(SamplingError::Parameter { name: "mirostat", value, expected: "0, 1 or 2" });
        }
        for (_, value) in &self.logit_bias {
            if value.is_nan() || *value == f32::INFINITY {
                let expected = "a finite number or minus infinity";
                return Err(SamplingError::Parameter { name: "logit_bias", value: *value, expected });
            }
        }
        let named = self.logit_bias.iter().map(|(token, _)| token).chain(&self.suppress);
        match named.copied().find(|token| *token as usize >= vocabulary) {
            Some(token) => Err(SamplingError::TokenOutOfRange { token, vocabulary }),
            None => Ok(()),
        }
    }
}

/// A seed that differs from call to call.
pub fn random_seed() -> u32 {
    // The standard library seeds its hash maps from the system's randomness.
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}
