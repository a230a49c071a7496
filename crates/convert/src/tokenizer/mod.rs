//! From a folder's tokenizer files to the `tokenizer.*` keys.

mod byte_pair;
mod files;
mod sentencepiece;
mod special;
mod unigram;
mod word_piece;

pub(crate) use files::Files;

use puna_gguf::Metadata;
use serde_json::Value;

use crate::ConvertError;

/// Kinds of tokens, as `tokenizer.ggml.token_type` numbers them.
pub(crate) const NORMAL: i32 = 1;
pub(crate) const UNKNOWN: i32 = 2;
pub(crate) const CONTROL: i32 = 3;
pub(crate) const USER_DEFINED: i32 = 4;
pub(crate) const UNUSED: i32 = 5;
pub(crate) const BYTE: i32 = 6;

/// A vocabulary on its way into a file.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    pub(crate) tokens: Vec<String>,
    pub(crate) kinds: Vec<i32>,
    /// Empty if the tokenizer has none.
    pub(crate) scores: Vec<f32>,
    /// Most tokens, unused ones included.
    most: usize,
}

/// More tokens than any model has.
const MOST_TOKENS: usize = 1 << 24;
/// Numbers that a vocabulary may leave out, beyond as many as it has tokens.
const MOST_GAPS: usize = 1 << 16;

impl Vocabulary {
    /// Room for the tokens that a file lists so many of. Numbers may leave gaps, but a few listed tokens with enormous
    /// numbers must not make a vocabulary of millions.
    pub(crate) fn of(listed: usize) -> Self {
        let most = listed.saturating_mul(2).saturating_add(MOST_GAPS).min(MOST_TOKENS);
        Self { tokens: Vec::new(), kinds: Vec::new(), scores: Vec::new(), most }
    }

    /// Sets token `id`; gaps before it are filled with unused tokens.
    pub(crate) fn set(
        &mut self,
        file: &'static str,
        id: u64,
        text: &str,
        kind: i32,
    ) -> Result<(), ConvertError> {
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        if index >= self.most {
            let reason = format!("a token has the number {id}, expected one below {}", self.most);
            return Err(ConvertError::Tokenizer { file, reason });
        }
        self.grow(index + 1);
        if let (Some(token), Some(place)) = (self.tokens.get_mut(index), self.kinds.get_mut(index)) {
            *token = text.to_owned();
            *place = kind;
        }
        Ok(())
    }

    /// Fills up to `count` tokens with unused ones.
    pub(crate) fn grow(&mut self, count: usize) {
        while self.tokens.len() < count {
            self.tokens.push(format!("[PAD{}]", self.tokens.len()));
            self.kinds.push(UNUSED);
            if !self.scores.is_empty() {
                self.scores.push(-10000.0);
            }
        }
    }

    fn write(mut self, size: Option<u64>, metadata: &mut Metadata) {
        // Rows of the embedding beyond the vocabulary get tokens, too: the engine wants one for each.
        let rows = usize::try_from(size.unwrap_or(0)).unwrap_or(0).min(MOST_TOKENS);
        self.grow(rows);
        metadata.set("tokenizer.ggml.tokens", self.tokens);
        if !self.scores.is_empty() {
            metadata.set("tokenizer.ggml.scores", self.scores);
        }
        metadata.set("tokenizer.ggml.token_type", self.kinds);
    }
}

/// Writes the keys of the folder's tokenizer; `size` is the number of rows of the embedding.
pub(crate) fn write(
    files: &Files<'_>,
    size: Option<u64>,
    metadata: &mut Metadata,
    warnings: &mut Vec<String>,
) -> Result<(), ConvertError> {
    let json = files.json("tokenizer.json")?;
    let kind = json.as_ref().and_then(|json| {
        let model = json.get("model")?;
        // Older files do not say; only byte pairs have merges.
        let implied = model.get("merges").map(|_| "BPE");
        model.get("type").and_then(Value::as_str).or(implied)
    });
    let pieces = files.bytes("tokenizer.model")?;
    let vocabulary = match (&json, kind) {
        (Some(json), Some("WordPiece")) => Some(word_piece::from_json(json, metadata)?),
        (Some(json), Some("BPE")) if byte_pair::is_byte_level(json) => {
            Some(byte_pair::from_json(files, json, metadata, warnings)?)
        }
        (_, Some("BPE" | "Unigram") | None) if pieces.is_some() => {
            let pieces = pieces.unwrap_or_default();
            Some(sentencepiece::from_protobuf(files, &pieces, json.as_ref(), metadata)?)
        }
        (Some(json), Some("BPE")) => Some(byte_pair::from_merges(json, metadata)?),
        (Some(json), Some("Unigram")) => Some(unigram::from_json(json, metadata)?),
        (Some(_), Some(other)) => {
            return Err(ConvertError::Tokenizer {
                file: "tokenizer.json",
                reason: format!("tokenizers of type {other:?} are not known"),
            });
        }
        _ => match (files.json("vocab.json")?, files.text("merges.txt")?, files.text("vocab.txt")?) {
            (Some(tokens), Some(merges), _) => {
                Some(byte_pair::from_lists(files, &tokens, &merges, metadata)?)
            }
            (_, _, Some(list)) => Some(word_piece::from_list(files, &list, metadata)?),
            _ => None,
        },
    };
    let Some(vocabulary) = vocabulary else {
        warnings.push("the folder has no tokenizer; the model takes token ids only".into());
        metadata.set("tokenizer.ggml.model", "none");
        return Ok(());
    };
    let index = special::Index::new(&vocabulary);
    special::write(files, &index, json.as_ref(), metadata)?;
    vocabulary.write(size, metadata);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tokens_follow_how_many_there_are() {
        let mut vocabulary = Vocabulary::of(3);
        vocabulary.set("x", 7, "seven", NORMAL).expect("gaps are filled");
        assert_eq!((vocabulary.tokens.len(), vocabulary.kinds[6]), (8, UNUSED));
        let error = vocabulary.set("x", 10_000_000, "far", NORMAL).expect_err("it is too far").to_string();
        assert!(error.contains("10000000"), "{error}");
        assert_eq!(vocabulary.tokens.len(), 8);
    }
}
