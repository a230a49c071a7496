//! Chat templates: Jinja2 sources rendered byte for byte as Hugging Face transformers renders them.
//!
//! [`Template::parse`] compiles a source once; [`Template::render`] turns a [`Conversation`] into the prompt text.
//! [`builtin::find`] names the templates that need no file. [`dialects`] reads what models answer, [`Stops`] finds the
//! texts that end an answer.
#![forbid(unsafe_code)]

pub mod builtin;
pub mod dialects;
mod environment;
mod error;
mod generator;
mod json;
mod markup;
mod stack;
mod stops;
mod template;
mod time;
mod weight;

pub use error::Error;
pub use stops::Stops;
pub use template::{Conversation, Limits, Template};
pub use time::LocalTime;
