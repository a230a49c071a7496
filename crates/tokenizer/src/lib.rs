//! Tokenizers of GGUF model files: text to token ids and back.
//!
//! [`Tokenizer::from_metadata`] reads the `tokenizer.*` keys. One source file holds one tokenizer model, `model.rs` lists
//! them; byte-pair models share a table of pre-tokenizers. Everything is linear or `n log n` in the length of the
//! text, and nothing recurses over it.
#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod charsmap;
mod decoder;
mod error;
mod joints;
mod merge;
mod model;
mod partition;
mod plamo2;
mod pre_tokenizer;
mod pre_tokenizer_table;
mod prefix_table;
mod recognise;
mod rwkv;
mod special_tokens;
mod spm;
mod tokenizer;
mod ugm;
mod vocabulary;
mod word_cache;
mod wpm;

pub use decoder::Decoder;
pub use error::Error;
pub use recognise::{BYTE_LEVEL_PATTERN, PUNCTUATION_PATTERN, is_pre_tokenizer, pre_tokenizer_name};
pub use special_tokens::Role;
pub use tokenizer::Tokenizer;
pub use vocabulary::{Kind, Vocabulary};

/// A token id: the position of a token in the vocabulary, from 0.
pub type Token = u32;
