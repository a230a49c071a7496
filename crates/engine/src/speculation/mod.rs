//! Speculative decoding: cheap guesses at how a text goes on, of which the model checks several in one step.
//!
//! A [`Proposer`] guesses; the model computes the logits after each token of a guess, and the request's own sampler
//! chain chooses at each of these places as it would without a guess (Leviathan, Kalman and Matias, arXiv 2211.17192,
//! in its form for equal choices). As long as its choice is the guess, the next row is of use; what comes after the
//! first difference is taken back. So a guess changes how many steps a text takes and nothing else: a chain sees the
//! same rows, draws the same numbers, and log-probabilities are those of the model.
//!
//! A new kind is one file and one row of [`SPECULATIONS`].

mod draft_dflash;
mod draft_simple;
mod draft_steps;
mod followed;
mod learned;
mod ngram_cache;
mod ngram_map_k;
mod ngram_map_k4v;
mod ngram_mod;
mod ngram_simple;
mod payoff;
mod plan;
mod room;

pub(crate) use plan::{Speculation, Wish};

use draft_steps::DraftSteps;

use puna_runtime::{DraftHead, HeadKind};

use crate::{EngineError, Runner};

/// Rows of logits that the guesses of one step may take, over all sequences. A model that checks guesses is loaded
/// with room for so many more output rows than it has sequences.
pub const GUESSED_ROWS: u32 = 64;

/// A text that may be guessed at.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The sequence of the engine that it is in; a new request may begin another text there.
    pub sequence: usize,
    /// All of its tokens, at least one.
    pub tokens: &'a [u32],
    /// Tokens that a guess may have, at least 1.
    pub most: usize,
}

/// What the model has just computed of a text.
#[derive(Clone, Copy, Debug)]
pub struct Evaluated<'a> {
    /// The sequence of the engine that it is in.
    pub sequence: usize,
    /// All tokens that the sequence held after the step, those of a guess included, whether or not they were right.
    pub tokens: &'a [u32],
    /// How many of them, the last ones, the step computed; at least 1.
    pub rows: usize,
    /// `[rows, width]`: their states in the layers that the model was loaded to hand out.
    pub states: &'a [f32],
}

/// Guesses how texts go on.
pub trait Proposer: Send {
    /// A guess for each text, in their order; empty where there is none. Longer ones than asked for are cut.
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>>;

    /// Hears of what the model has computed, if it was loaded to hand out states of layers.
    fn learn(&mut self, _evaluated: &Evaluated<'_>) {}

    /// Bytes of weights that are read for each token of a guess, if it is computed and costs time itself.
    fn reads(&self) -> Option<u64> {
        None
    }
}

/// Sizes of guesses; the defaults are the peer's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SpeculationSettings {
    /// Of `ngram-simple`.
    pub simple: NgramSettings,
    /// Of `ngram-map-k`.
    pub map_k: NgramSettings,
    /// Of `ngram-map-k4v`.
    pub map_k4v: NgramSettings,
    /// Of `ngram-mod`: tokens that must agree, at least 1.
    pub mod_match: usize,
    /// Of `ngram-mod`: shorter guesses are not made.
    pub mod_least: usize,
    /// Of `ngram-mod`: longest guess.
    pub mod_most: usize,
    /// Of a draft model: longest guess.
    pub draft_most: usize,
    /// Of a draft model: shorter guesses are not made.
    pub draft_least: usize,
    /// Of a draft model: a guess ends where its next token has less than this probability.
    pub draft_probability: f32,
}

/// Sizes of guesses that repeat what was there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NgramSettings {
    /// Tokens at the end of the text that must have been there before, at least 1.
    pub size: usize,
    /// Longest guess.
    pub most: usize,
    /// How often they must have been there.
    pub hits: usize,
}

impl Default for NgramSettings {
    fn default() -> Self {
        Self { size: 12, most: 48, hits: 1 }
    }
}

impl Default for SpeculationSettings {
    fn default() -> Self {
        let ngram = NgramSettings::default();
        Self {
            simple: ngram,
            map_k: ngram,
            map_k4v: ngram,
            mod_match: 24,
            mod_least: 48,
            mod_most: 64,
            draft_most: 3,
            draft_least: 0,
            draft_probability: 0.0,
        }
    }
}

/// What a second file gives.
pub enum Draft {
    /// A model of its own.
    Model(Box<dyn Runner>),
    /// A head that reads states of the model's layers.
    Head(Box<DraftHead>),
}

/// What a kind of speculation needs a second file for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DraftFile {
    /// Nothing.
    None,
    /// A model of any architecture that generates text.
    Model,
    /// A head of this architecture.
    Head(&'static str),
    /// A model with layers that guess ahead, by default the model's own file.
    Ahead,
}

/// Makes a proposer; it takes the draft if it uses one.
type Build = fn(&SpeculationSettings, &mut Option<Draft>) -> Option<Box<dyn Proposer>>;

/// One kind of speculation.
pub struct SpeculationSpec {
    /// Its name in flags.
    pub name: &'static str,
    /// What it guesses, in a few words.
    pub about: &'static str,
    /// What its draft file has to be.
    pub draft: DraftFile,
    /// Makes it; nothing without a draft model where one is needed.
    build: Build,
}

/// Every kind of speculation.
pub static SPECULATIONS: &[SpeculationSpec] = &[
    SpeculationSpec {
        name: "ngram-simple",
        about: "what followed the last tokens when they were there before, found by looking through the text",
        draft: DraftFile::None,
        build: |settings, _| Some(Box::new(ngram_simple::NgramSimple(settings.simple))),
    },
    SpeculationSpec {
        name: "ngram-map-k",
        about: "the same, found in a map from tokens to their last place",
        draft: DraftFile::None,
        build: |settings, _| Some(Box::new(ngram_map_k::NgramMap::new(settings.map_k))),
    },
    SpeculationSpec {
        name: "ngram-map-k4v",
        about: "the most frequent of up to four ways in which the last tokens went on",
        draft: DraftFile::None,
        build: |settings, _| Some(Box::new(ngram_map_k4v::NgramMap4::new(settings.map_k4v))),
    },
    SpeculationSpec {
        name: "ngram-mod",
        about: "token by token what followed the last ones in any text, of this request or another",
        draft: DraftFile::None,
        build: |settings, _| Some(Box::new(ngram_mod::NgramMod::new(settings))),
    },
    SpeculationSpec {
        name: "ngram-cache",
        about: "token by token what most often followed the last one to four",
        draft: DraftFile::None,
        build: |_, _| Some(Box::new(ngram_cache::NgramCache::default())),
    },
    SpeculationSpec {
        name: "draft-simple",
        about: "what a smaller model with the same vocabulary would say (-md)",
        draft: DraftFile::Model,
        build: |settings, draft| match draft.take()? {
            Draft::Model(model) => Some(Box::new(draft_simple::DraftSimple::new(model, settings))),
            Draft::Head(_) => None,
        },
    },
    SpeculationSpec {
        name: "draft-eagle3",
        about: "token by token what a head says that reads states of the model's layers (EAGLE-3, -md)",
        draft: DraftFile::Head("eagle3"),
        build: |settings, draft| match draft.take()? {
            Draft::Head(head) => Some(Box::new(DraftSteps::new(HeadKind::Stepwise, *head, settings)?)),
            Draft::Model(_) => None,
        },
    },
    SpeculationSpec {
        name: "draft-mtp",
        about: "token by token what a layer of the model's own file says that guesses further ahead (MTP)",
        draft: DraftFile::Ahead,
        build: |settings, draft| match draft.take()? {
            Draft::Head(head) => Some(Box::new(DraftSteps::new(HeadKind::Ahead, *head, settings)?)),
            Draft::Model(_) => None,
        },
    },
    SpeculationSpec {
        name: "draft-dflash",
        about: "a block at once, by a draft model that reads states of the model's layers (DFlash, -md)",
        draft: DraftFile::Head("dflash"),
        build: |settings, draft| match draft.take()? {
            Draft::Head(head) => Some(Box::new(draft_dflash::DraftDflash::new(*head, settings)?)),
            Draft::Model(_) => None,
        },
    },
];

/// Proposers by their names in [`SPECULATIONS`]; the first that has a guess for a text is used.
pub fn proposers(
    names: &[String],
    settings: &SpeculationSettings,
    mut draft: Option<Draft>,
) -> Result<Vec<Box<dyn Proposer>>, EngineError> {
    let mut proposers = Vec::with_capacity(names.len());
    for name in names {
        let spec = SPECULATIONS.iter().find(|spec| spec.name == name);
        let spec = spec.ok_or_else(|| EngineError::UnknownSpeculation { name: name.clone() })?;
        let proposer = (spec.build)(settings, &mut draft);
        proposers.push(proposer.ok_or(EngineError::NoDraftModel { name: spec.name })?);
    }
    Ok(proposers)
}
