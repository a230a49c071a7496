//! HTTP in, text out: a stateless edge over the engine that speaks the protocols of llama.cpp's server, OpenAI and
//! Anthropic.
//!
//! [`Server::start_many`] serves several models, each in a process of its own that the program knows how to start.
//!
//! [`Server::start`] takes a model that runs ([`Served`]) and how to serve it ([`Options`]). The endpoints are the
//! rows of [`ROUTES`], their errors those of [`ERRORS`]. A request is checked once, becomes a plan, and its
//! tokens come back as events; whoever stops reading stops its request.
#![forbid(unsafe_code)]

mod api;
mod app;
mod audit;
mod budget;
mod caller;
mod chat;
mod clock;
mod connections;
mod edge;
mod error;
mod fields;
mod generate;
mod grammar;
mod keys;
mod many;
mod metrics;
mod openapi;
mod options;
mod parts;
mod patience;
mod plan;
mod probabilities;
mod prompt;
mod report;
mod residence;
mod routes;
mod sampling;
mod server;
mod speech;
mod stream;
mod tls;
mod tool_choice;

pub use clock::text as time_text;
pub use error::{ApiError, ERRORS, ErrorRow, Kind, ServerError};
pub use grammar::grammar_tokens;
pub use many::{Entry, OWN_ROUTES, Offer, StartChild};
pub use metrics::{METRICS, MetricRow, Metrics};
pub use options::{AdapterFacts, AuditOptions, Defaults, Embeds, Facts, Options, Served, Tls, Warnings};
pub use parts::Reasoning;
pub use report::{Report, Reports};
pub use residence::{Awake, Freed, Reload, Residence};
pub use routes::{ROUTES, Route};
pub use sampling::{dry_breakers, infill_texts};
pub use server::{Server, Stopper};
