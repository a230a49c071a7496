//! Requests in, tokens out: one thread that owns a model and serves all sequences together.
//!
//! [`Engine::start`] moves a model to the engine thread. Each [`Request`] is a list of token ids; what happens
//! to it arrives as [`Event`]s. Every sequence of the model is a slot that keeps the tokens of its last request,
//! so that a prompt that begins like them is not computed again. A step is a map from slots to numbers of
//! tokens, made by [`schedule()`]: prompts and generation have no modes of their own.
//!
//! A request that fails, fails alone: bad logits, a refused batch or a panic in a step end the request that
//! caused them, and the others go on.
#![forbid(unsafe_code)]

mod adapters;
mod ahead;
mod diffusion;
mod disk;
mod embedding;
mod engine;
mod error;
mod event;
mod job;
mod request;
mod reuse;
mod runner;
mod saved;
mod schedule;
mod speculation;
mod step;
mod store;
mod transfer;
mod worker;

pub use diffusion::{
    CanvasLogits, DiffusionError, DiffusionOptions, DiffusionOrder, DiffusionProgress, DiffusionSchedule,
    diffuse, diffuse_with,
};
pub use disk::{DiskCache, Warn};
pub use embedding::{EmbeddingSender, normalize};
pub use engine::{Aids, Engine, EngineOptions, EventSender, Meters};
pub use error::EngineError;
pub use event::{Event, FinishReason, Timings};
pub use request::{Request, RequestId, UNLIMITED, UNTIL_FULL};
pub use runner::Runner;
pub use schedule::{Demand, Limits, Share, schedule};
pub use speculation::{
    Draft, DraftFile, Evaluated, GUESSED_ROWS, NgramSettings, Proposer, SPECULATIONS, SpeculationSettings,
    SpeculationSpec, Text, proposers,
};
