//! Unigram tokenizers from `tokenizer.json`.

use puna_gguf::Metadata;
use serde_json::Value;

use super::byte_pair::{added, adds_space, is_byte};
use super::{BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary};
use crate::ConvertError;

const FILE: &str = "tokenizer.json";

pub(crate) fn from_json(json: &Value, metadata: &mut Metadata) -> Result<Vocabulary, ConvertError> {
    let wrong = |reason: String| ConvertError::Tokenizer { file: FILE, reason };
    let list = json.pointer("/model/vocab").and_then(Value::as_array);
    let list = list.ok_or_else(|| wrong("the model has no vocab".into()))?;
    let unknown = json.pointer("/model/unk_id").and_then(Value::as_u64);
    let added = added(json);
    let mut vocabulary = Vocabulary::of(list.len() + added.len());
    let mut scores = Vec::with_capacity(list.len());
    for (id, entry) in (0..).zip(list) {
        let pair = entry.as_array().map(Vec::as_slice);
        let Some([Value::String(text), score]) = pair else {
            return Err(wrong(format!("{entry} is no token with a score")));
        };
        let kind = if Some(id) == unknown {
            UNKNOWN
        } else if is_byte(text) {
            BYTE
        } else {
            NORMAL
        };
        vocabulary.set(FILE, id, text, kind)?;
        let score = score.as_f64().ok_or_else(|| wrong(format!("the score of token {text:?} is {score}")))?;
        scores.push(score as f32);
    }
    vocabulary.scores = scores;
    for (id, text, special) in added {
        if Some(id) != unknown {
            vocabulary.set(FILE, id, text, if special { CONTROL } else { USER_DEFINED })?;
        }
    }
    metadata.set("tokenizer.ggml.model", "t5");
    metadata.set("tokenizer.ggml.pre", "default");
    metadata.set("tokenizer.ggml.add_space_prefix", adds_space(json));
    let mut open = vec![json.get("normalizer").unwrap_or(&Value::Null)];
    let mut squeezes = false;
    let mut strips = false;
    while let Some(part) = open.pop() {
        match part.get("type").and_then(Value::as_str) {
            Some("Precompiled") => {
                let text = part.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or("");
                let map =
                    base64(text).ok_or_else(|| wrong("the precompiled_charsmap is no base64".into()))?;
                metadata.set("tokenizer.ggml.precompiled_charsmap", map);
            }
            Some("Replace") => squeezes = true,
            Some("Strip") => strips = true,
            _ => open.extend(part.get("normalizers").and_then(Value::as_array).into_iter().flatten()),
        }
    }
    metadata.set("tokenizer.ggml.remove_extra_whitespaces", squeezes);
    if squeezes && !strips {
        metadata.set("puna.tokenizer.keep_last_space", true);
    }
    Ok(vocabulary)
}

/// Bytes of base64 with padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let value = |letter: u8| -> Option<u32> {
        Some(match letter {
            b'A'..=b'Z' => u32::from(letter - b'A'),
            b'a'..=b'z' => u32::from(letter - b'a') + 26,
            b'0'..=b'9' => u32::from(letter - b'0') + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let mut number = 0;
        for letter in group {
            number = number << 6 | value(*letter)?;
        }
        number <<= 6 * (4 - group.len()) as u32;
        let made = number.to_be_bytes();
        bytes.extend_from_slice(made.get(1..group.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_decoded() {
        assert_eq!(super::base64("TWFu").as_deref(), Some(&b"Man"[..]));
        assert_eq!(super::base64("TWE=").as_deref(), Some(&b"Ma"[..]));
        assert_eq!(super::base64("TQ==").as_deref(), Some(&b"M"[..]));
        assert_eq!(super::base64("").as_deref(), Some(&b""[..]));
        assert_eq!(super::base64("T!"), None);
    }
}
