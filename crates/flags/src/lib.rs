//! The flag table shared by all tools.
//!
//! A flag is one row: its spellings, environment variable, value, help and the setter of one field of a plain
//! configuration. Everything else derives from the rows: parsing with `clap`, help, completions, man pages.
//! The tools that share [`Config`] use [`FLAGS`]; `bench`, whose flags take lists, has its own rows
//! ([`bench::FLAGS`]) and the same machinery.
#![forbid(unsafe_code)]

pub mod bench;
mod config;
mod diffusion;
mod embedding;
mod error;
mod flag;
mod pages;
mod parse;
mod spec;
mod speculation;
mod suggest;
mod table;
mod values;
mod workshop;

pub use clap::Command;
pub use config::{
    Chat, Config, Context, Cpu, Device, GrammarSource, ISA_LEVELS, Layers, LoadMode, Log, Logits, Model,
    Prompt, Rope, Sampling, Server, Tokenize,
};
pub use diffusion::Diffusion;
pub use embedding::Embedding;
pub use error::UsageError;
pub use flag::{Action, Flag, Group, Kind, SetValue, ToolSet};
pub use pages::{Shell, completions, man_page, program, shell};
pub use parse::Outcome;
pub use spec::{Positional, Spec};
pub use speculation::{NgramSizes, SPECULATION_TYPES, Speculation};
pub use suggest::closest;
pub use table::FLAGS;
pub use table::{device_list, override_list};
pub use values::Toggle;
pub use workshop::{
    BatchedBench, Convert, ConvertLegacy, Cvector, Edit, ExportLora, Gguf, GgufHash, GgufSplit, Imatrix,
    Perplexity, Quantize, Tasks,
};
