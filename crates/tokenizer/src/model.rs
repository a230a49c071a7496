//! The tokenizer models by the names of `tokenizer.ggml.model`.

use std::fmt;

use puna_gguf::Metadata;

use crate::special_tokens::Role;
use crate::vocabulary::{Defaults, Vocabulary};
use crate::{Error, Token, bpe, plamo2, rwkv, spm, ugm, wpm};

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
    ModelRow {
        names: &["bert"],
        defaults: |_| {
            Ok(Defaults {
                roles: &[
                    (Role::Classification, 101),
                    (Role::Unknown, 100),
                    (Role::Separator, 102),
                    (Role::Padding, 0),
                    (Role::Mask, 103),
                ],
                add_bos: true,
                add_separator: true,
                begins_with_classification: true,
                ..Defaults::default()
            })
        },
        build: wpm::build,
    },
    ModelRow {
        names: &["t5"],
        defaults: |_| {
            Ok(Defaults {
                roles: &[(Role::Eos, 1), (Role::Unknown, 2), (Role::Padding, 0)],
                add_eos: true,
                ..Defaults::default()
            })
        },
        build: ugm::build,
    },
    ModelRow { names: &["rwkv"], defaults: |_| Ok(Defaults::default()), build: rwkv::build },
    ModelRow {
        names: &["plamo2"],
        defaults: |_| {
            Ok(Defaults {
                roles: &[(Role::Bos, 1), (Role::Eos, 2), (Role::Unknown, 0), (Role::Padding, 3)],
                ..Defaults::default()
            })
        },
        build: plamo2::build,
    },
];

/// The row of a model name.
pub(crate) fn find(name: &str) -> Result<&'static ModelRow, Error> {
    MODELS.iter().find(|row| row.names.contains(&name)).ok_or_else(|| Error::UnknownModel {
        found: name.to_owned(),
        known: MODELS.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", "),
    })
}
