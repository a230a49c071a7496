//! Chat templates: Jinja2 sources rendered byte for byte as Hugging Face transformers renders them.
//!
//! [`Template::parse`] compiles a source once; [`Template::render`] turns a [`Conversation`] into the prompt text.
//! [`builtin::find`] names the templates that need no file.
#![forbid(unsafe_code)]

pub mod builtin;
mod environment;
mod error;
mod generator;
mod json;
mod stack;
mod stops;
mod template;
mod time;

pub use error::Error;
pub use stops::Stops;
pub use template::{Conversation, Limits, Template};
pub use time::LocalTime;
