//! The endpoints: one file for each family.

pub mod adapters;
pub mod anthropic;
pub mod audio;
pub mod embeddings;
pub mod infill;
pub mod information;
pub mod native;
pub mod ollama;
pub mod openai;
pub mod responses;
pub mod slots;
pub mod text;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::app::{App, now};

/// What every answer says of itself.
#[derive(Clone, Debug)]
pub struct Names {
    /// Its own name, unlike any other's.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Name and version of the program.
    pub build: String,
}

impl Names {
    /// For one answer; `prefix` begins its id.
    pub fn new(app: &App, prefix: &str) -> Self {
        let facts = &app.served.facts;
        Self { id: identifier(prefix), model: facts.name.clone(), created: now(), build: facts.build.clone() }
    }
}

/// An id that no other answer has: random, and counted in case that the random numbers meet.
pub fn identifier(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:08x}{:08x}{count:08x}", puna_sampling::random_seed(), puna_sampling::random_seed())
}
