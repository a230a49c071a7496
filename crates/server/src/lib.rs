//! HTTP in, text out: a stateless edge over the engine that speaks the protocols of llama.cpp's server, OpenAI and
//! Anthropic.
//!
//! [`Server::start`] takes a model that runs ([`Served`]) and how to serve it ([`Options`]). The endpoints are the
//! rows of [`ROUTES`], their errors those of [`ERRORS`]. A request is checked once, becomes a plan, and its
//! tokens come back as events; whoever stops reading stops its request.
#![forbid(unsafe_code)]

mod api;
mod app;
mod audit;
mod caller;
mod chat;
mod clock;
mod edge;
mod error;
mod fields;
mod generate;
mod grammar;
mod keys;
mod metrics;
mod openapi;
mod options;
mod parts;
mod patience;
mod plan;
mod probabilities;
mod prompt;
mod routes;
mod sampling;
mod server;
mod speech;
mod stream;
mod tls;
mod tool_choice;

pub use error::{ApiError, ERRORS, ErrorRow, Kind, ServerError};
pub use grammar::grammar_tokens;
pub use metrics::{METRICS, MetricRow, Metrics};
pub use options::{AuditOptions, Defaults, Embeds, Facts, Options, Served, Tls, Warnings};
pub use routes::{ROUTES, Route};
pub use sampling::{dry_breakers, infill_texts};
pub use server::Server;
