//! From a row of logits to the next token: candidates, the sampler chain, seeded draws and log-probabilities.
//!
//! A [`Chain`] is built from [`Parameters`]; each step it takes one row of logits with [`Chain::sample`] and is
//! told with [`Chain::accept`] what was chosen. The samplers are the rows of [`SAMPLERS`]: a new one is one
//! file in `samplers` and one row.
//!
//! Equal parameters, seed and logits give equal tokens on every platform: ties are broken by the lower token
//! id, draws come from the crate's own generator ([`Random`]), and exponentials, logarithms and powers from
//! its own series of exactly defined operations.
#![forbid(unsafe_code)]

mod candidates;
mod chain;
mod error;
mod log_probabilities;
mod math;
mod parameters;
mod random;
mod samplers;

pub use candidates::{BestLogits, Candidate, Candidates};
pub use chain::Chain;
pub use error::SamplingError;
pub use log_probabilities::{LogProbabilities, log_probabilities};
pub use parameters::{Parameters, random_seed};
pub use random::Random;
pub use samplers::{
    DEFAULT_BREAKERS, DryBreakers, InfillTexts, Needs, SAMPLERS, Sampler, SamplerSpec, default_order,
    parse_letters, parse_names,
};
