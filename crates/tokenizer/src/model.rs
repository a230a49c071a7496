//! The tokenizer models by the names of `tokenizer.ggml.model`.

use std::fmt;

use puna_gguf::Metadata;

use crate::special_tokens::Role;
use crate::vocabulary::{Defaults, Vocabulary};
use crate::{Error, Token, bpe, spm};

/// One way of turning text into tokens.
pub(crate) trait Model: fmt::Debug + Send + Sync {
    /// Appends the tokens of a text without special tokens. `after_special` is true at the start of the whole text
    /// and after special tokens.
    fn encode(&self, vocabulary: &Vocabulary, text: &str, after_special: bool, tokens: &mut Vec<Token>);

    /// The bytes of a token that is ordinary text ([`crate::Kind::Normal`]).
    fn bytes(&self, text: &str) -> Vec<u8>;
}

/// What a model's constructor gets.
pub(crate) struct Source<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) vocabulary: &'a Vocabulary,
    pub(crate) warnings: &'a mut Vec<String>,
}

/// One tokenizer model.
pub(crate) struct ModelRow {
    pub(crate) names: &'static [&'static str],
    /// Defaults of roles and flags; they may depend on the pre-tokenizer.
    pub(crate) defaults: fn(&Metadata) -> Result<Defaults, Error>,
    pub(crate) build: fn(Source<'_>) -> Result<Box<dyn Model>, Error>,
}

/// Names of files without a tokenizer.
pub(crate) const WITHOUT_TOKENIZER: &[&str] = &["none", "no_vocab", "test"];

/// All models.
pub(crate) const MODELS: &[ModelRow] = &[
    ModelRow {
        names: &["llama"],
        defaults: |_| {
            Ok(Defaults {
                roles: &[(Role::Bos, 1), (Role::Eos, 2), (Role::Unknown, 0)],
                add_bos: true,
                add_space_prefix: true,
                ..Defaults::default()
            })
        },
        build: spm::build,
    },
    ModelRow { names: &["gpt2", "gemma4", "whitespace"], defaults: bpe::defaults, build: bpe::build },
];

/// The row of a model name.
pub(crate) fn find(name: &str) -> Result<&'static ModelRow, Error> {
    MODELS.iter().find(|row| row.names.contains(&name)).ok_or_else(|| Error::UnknownModel {
        found: name.to_owned(),
        known: MODELS.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", "),
    })
}
