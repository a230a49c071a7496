//! How the tools guess ahead.

use std::path::PathBuf;

/// Kinds of speculation that exist.
pub const SPECULATION_TYPES: &[&str] = &[
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
];

/// Speculative decoding.
#[derive(Clone, PartialEq, Debug)]
pub struct Speculation {
    /// Kinds, out of [`SPECULATION_TYPES`]; the first that has a guess is used.
    pub types: Vec<&'static str>,
    /// File of the draft model.
    pub draft_model: Option<PathBuf>,
    /// Draft model of the hub.
    pub draft_hf: Option<String>,
    /// Tokens that a draft model guesses at most.
    pub draft_most: u32,
    /// Shorter guesses of a draft model are not used.
    pub draft_least: u32,
    /// Least probability of a token that a draft model guesses.
    pub draft_probability: f32,
    /// Format of the draft model's cached keys; empty for that of the model.
    pub draft_type_k: &'static str,
    /// Format of its cached values.
    pub draft_type_v: &'static str,
    /// Of `ngram-simple`.
    pub simple: NgramSizes,
    /// Of `ngram-map-k`.
    pub map_k: NgramSizes,
    /// Of `ngram-map-k4v`.
    pub map_k4v: NgramSizes,
    /// Of `ngram-mod`: tokens that must agree.
    pub mod_match: u32,
    /// Of `ngram-mod`: shortest guess.
    pub mod_least: u32,
    /// Of `ngram-mod`: longest guess.
    pub mod_most: u32,
}

/// Sizes of guesses that repeat what was there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NgramSizes {
    /// Tokens that must have been there before.
    pub size_n: u32,
    /// Longest guess.
    pub size_m: u32,
    /// How often they must have been there.
    pub min_hits: u32,
}

impl Default for NgramSizes {
    fn default() -> Self {
        Self { size_n: 12, size_m: 48, min_hits: 1 }
    }
}

impl Default for Speculation {
    fn default() -> Self {
        Self {
            types: Vec::new(),
            draft_model: None,
            draft_hf: None,
            draft_most: 3,
            draft_least: 0,
            draft_probability: 0.0,
            draft_type_k: "",
            draft_type_v: "",
            simple: NgramSizes::default(),
            map_k: NgramSizes::default(),
            map_k4v: NgramSizes::default(),
            mod_match: 24,
            mod_least: 48,
            mod_most: 64,
        }
    }
}
