//! Text to tokens and back, by whatever model the file names.

use std::sync::Arc;

use puna_gguf::Metadata;

use crate::model::{self, Model, Source, WITHOUT_TOKENIZER};
use crate::partition::{Fragment, Partition};
use crate::special_tokens::Role;
use crate::vocabulary::{Kind, Vocabulary, parse_byte};
use crate::{Error, Token};

/// The tokenizer of a model file. Immutable; clones share their data.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vocabulary: Vocabulary,
    model: Box<dyn Model>,
    partition: Partition,
    warnings: Vec<String>,
}

impl Tokenizer {
    /// The tokenizer that metadata describe, or `None` if `tokenizer.ggml.model` is absent or says that there is
    /// none.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Tokenizer>, Error> {
        let name = match metadata.optional_str("tokenizer.ggml.model")? {
            None => return Ok(None),
            Some(name) if WITHOUT_TOKENIZER.contains(&name) => return Ok(None),
            Some(name) => name,
        };
        let row = model::find(name)?;
        let vocabulary = Vocabulary::from_metadata(metadata, (row.defaults)(metadata)?)?;
        let mut warnings = vocabulary.warnings().to_vec();
        let source = Source { metadata, vocabulary: &vocabulary, warnings: &mut warnings };
        let model = (row.build)(source)?;
        let partition = Partition::new(&vocabulary)?;
        Ok(Some(Tokenizer { inner: Arc::new(Inner { vocabulary, model, partition, warnings }) }))
    }

    /// The tokens, their texts and roles.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.inner.vocabulary
    }

    /// What is odd about the file without being an error, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// The tokens of a text.
    ///
    /// `add_special` adds the tokens for the beginning, the end or the separator of a sequence as the model's flags
    /// say, even if the text already holds them. `parse_special` makes the texts of control tokens in `text` those
    /// tokens; without it they are ordinary text, as user input must be. User-defined tokens are always found.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let Inner { vocabulary, model, partition, .. } = &*self.inner;
        let mut tokens = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && vocabulary.add_bos() {
            tokens.extend(vocabulary.bos());
        }
        let mut after_special = true;
        for fragment in partition.split(vocabulary, text, parse_special) {
            match fragment {
                Fragment::Token(token) => tokens.push(token),
                Fragment::Text(text) => model.encode(vocabulary, text, after_special, &mut tokens),
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        if add_special && vocabulary.add_separator() {
            tokens.extend(vocabulary.role(Role::Separator));
        }
        if add_special && vocabulary.add_eos() {
            tokens.extend(vocabulary.eos());
        }
        tokens
    }

    /// The tokens of bytes that should be UTF-8: parts that are not are read as U+FFFD, as [`Decoder`](crate::Decoder)
    /// writes them.
    pub fn encode_bytes(&self, bytes: &[u8], add_special: bool, parse_special: bool) -> Vec<Token> {
        self.encode(&String::from_utf8_lossy(bytes), add_special, parse_special)
    }

    /// The bytes of one token, which need not be whole characters. Control, unknown and unused tokens have none
    /// unless `special`; tokens beyond the vocabulary have none.
    pub fn piece(&self, token: Token, special: bool) -> Vec<u8> {
        let Inner { vocabulary, model, .. } = &*self.inner;
        let (Some(text), Some(kind)) = (vocabulary.text(token), vocabulary.kind(token)) else {
            return Vec::new();
        };
        match kind {
            Kind::Normal => model.bytes(text),
            Kind::UserDefined => text.as_bytes().to_vec(),
            Kind::Byte => parse_byte(text).map_or_else(|| model.bytes(text), |byte| vec![byte]),
            Kind::Control | Kind::Unknown | Kind::Unused if special => text.as_bytes().to_vec(),
            Kind::Control | Kind::Unknown | Kind::Unused => Vec::new(),
        }
    }

    /// The bytes of a whole text. The space that encoding put in front, if the model wants one, is removed.
    pub fn decode(&self, tokens: &[Token], special: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        let mut first = self.vocabulary().add_space_prefix();
        for &token in tokens {
            let piece = self.piece(token, special);
            if first && !piece.is_empty() {
                first = false;
                let ordinary = self.vocabulary().kind(token) == Some(Kind::Normal);
                bytes.extend_from_slice(match piece.strip_prefix(b" ") {
                    Some(rest) if ordinary => rest,
                    _ => &piece,
                });
            } else {
                bytes.extend_from_slice(&piece);
            }
        }
        bytes
    }
}
