//! BERT's tokenizer.

use puna_gguf::Metadata;
use serde_json::Value;

use super::byte_pair::added;
use super::{CONTROL, Files, NORMAL, USER_DEFINED, Vocabulary};
use crate::ConvertError;

/// A token as GGUF has it: words begin with `▁`, continuations have no mark.
fn text_of(token: &str) -> String {
    if token.starts_with('[') && token.ends_with(']') {
        return token.to_owned();
    }
    token.strip_prefix("##").map_or_else(|| format!("▁{token}"), str::to_owned)
}

/// From `tokenizer.json`.
pub(crate) fn from_json(json: &Value, metadata: &mut Metadata) -> Result<Vocabulary, ConvertError> {
    const FILE: &str = "tokenizer.json";
    let wrong = |reason: String| ConvertError::Tokenizer { file: FILE, reason };
    let tokens = json.pointer("/model/vocab").and_then(Value::as_object);
    let tokens = tokens.ok_or_else(|| wrong("the model has no vocab".into()))?;
    let added = added(json);
    let mut vocabulary = Vocabulary::of(tokens.len() + added.len());
    for (token, id) in tokens {
        let id = id.as_u64().ok_or_else(|| wrong(format!("the number of token {token:?} is {id}")))?;
        vocabulary.set(FILE, id, &text_of(token), NORMAL)?;
    }
    for (id, text, special) in added {
        vocabulary.set(FILE, id, text, if special { CONTROL } else { USER_DEFINED })?;
    }
    let normaliser = json.get("normalizer").unwrap_or(&Value::Null);
    let flag = |name: &str| normaliser.get(name).and_then(Value::as_bool);
    let lowercase = flag("lowercase").unwrap_or(true);
    write(lowercase, flag("strip_accents"), metadata);
    Ok(vocabulary)
}

/// From `vocab.txt`, one token in a line.
pub(crate) fn from_list(
    files: &Files<'_>,
    list: &str,
    metadata: &mut Metadata,
) -> Result<Vocabulary, ConvertError> {
    let mut vocabulary = Vocabulary::of(list.lines().count());
    for (id, token) in (0..).zip(list.lines()) {
        let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].contains(&token);
        vocabulary.set("vocab.txt", id, &text_of(token), if special { CONTROL } else { NORMAL })?;
    }
    let settings = files.json("tokenizer_config.json")?.unwrap_or(Value::Null);
    let flag = |name: &str| settings.get(name).and_then(Value::as_bool);
    write(flag("do_lower_case").unwrap_or(true), flag("strip_accents"), metadata);
    Ok(vocabulary)
}

fn write(lowercase: bool, strip_accents: Option<bool>, metadata: &mut Metadata) {
    metadata.set("tokenizer.ggml.model", "bert");
    metadata.set("tokenizer.ggml.token_type_count", 2u32);
    metadata.set("tokenizer.ggml.normalizer.lowercase", lowercase);
    metadata.set("tokenizer.ggml.normalizer.strip_accents", strip_accents.unwrap_or(lowercase));
}
