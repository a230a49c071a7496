//! Model folders of the Hugging Face hub (`config.json`, safetensors, tokenizer files) as GGUF.
//!
//! [`Conversion::open`] reads a folder and decides about every key and tensor without touching the weights. Each
//! tensor of the result is a [`Recipe`]: what it looks like, and how its bytes come from the folder's. From there
//! it goes into a file, tensor by tensor, or becomes a [`puna_gguf::File`] in memory that runs as it is.
//!
//! An architecture is a row of [`ARCHITECTURES`](architectures::ARCHITECTURES): class names, a function for its
//! keys, and rules that give tensors their names. A tensor that no rule knows is an error, so nothing is lost
//! silently.
//!
//! Everything in a folder is untrusted: lengths and offsets are checked against the files before they are used.
#![forbid(unsafe_code)]

mod ahead;
pub mod architectures;
mod config;
mod conversion;
mod error;
mod keys;
mod lora;
mod model;
mod recipe;
mod rules;
pub mod safetensors;
mod source;
mod tokenizer;

pub use config::Config;
pub use conversion::{Conversion, LayersAhead, Options, stored_format};
pub use error::ConvertError;
pub use lora::LoraConversion;
pub use recipe::Recipe;
pub use source::Source;
