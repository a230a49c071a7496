//! Byte-pair tokenizers: of bytes with a pre-tokenizer, or of characters as SentencePiece has them.

use std::collections::HashMap;

use puna_gguf::Metadata;
use puna_tokenizer::{BYTE_LEVEL_PATTERN, PUNCTUATION_PATTERN, is_pre_tokenizer, pre_tokenizer_name};
use serde_json::Value;

use super::{BYTE, CONTROL, Files, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary};
use crate::ConvertError;

const FILE: &str = "tokenizer.json";

fn wrong(reason: impl Into<String>) -> ConvertError {
    ConvertError::Tokenizer { file: FILE, reason: reason.into() }
}

/// Whether text becomes the characters that GPT-2 has for bytes.
pub(crate) fn is_byte_level(json: &Value) -> bool {
    let mut open: Vec<&Value> =
        ["pre_tokenizer", "decoder"].iter().filter_map(|part| json.get(part)).collect();
    while let Some(part) = open.pop() {
        if part.get("type").and_then(Value::as_str) == Some("ByteLevel") {
            return true;
        }
        for list in ["pretokenizers", "decoders"] {
            open.extend(part.get(list).and_then(Value::as_array).into_iter().flatten());
        }
    }
    false
}

/// Added tokens: number, text, whether special.
pub(crate) fn added(json: &Value) -> Vec<(u64, &str, bool)> {
    let list = json.get("added_tokens").and_then(Value::as_array);
    let one = |token: &'_ Value| {
        Some((token.get("id")?.as_u64()?, token.get("special")?.as_bool().unwrap_or(false)))
    };
    list.into_iter()
        .flatten()
        .filter_map(|token| {
            let (id, special) = one(token)?;
            Some((id, token.get("content")?.as_str()?, special))
        })
        .collect()
}

/// The vocabulary of a model part with added tokens.
fn vocabulary(json: &Value) -> Result<Vocabulary, ConvertError> {
    let tokens = json.pointer("/model/vocab").and_then(Value::as_object);
    let tokens = tokens.ok_or_else(|| wrong("the model has no vocab"))?;
    let added = added(json);
    let mut vocabulary = Vocabulary::of(tokens.len() + added.len());
    for (text, id) in tokens {
        let id = id.as_u64().ok_or_else(|| wrong(format!("the number of token {text:?} is {id}")))?;
        vocabulary.set(FILE, id, text, NORMAL)?;
    }
    for (id, text, special) in added {
        vocabulary.set(FILE, id, text, if special { CONTROL } else { USER_DEFINED })?;
    }
    Ok(vocabulary)
}

/// Merges as `left right`; newer files have pairs.
fn merges(json: &Value) -> Result<Vec<String>, ConvertError> {
    let list = json.pointer("/model/merges").and_then(Value::as_array);
    let list = list.ok_or_else(|| wrong("the model has no merges"))?;
    let one = |merge: &Value| match merge {
        Value::String(text) => Some(text.clone()),
        Value::Array(pair) => match pair.as_slice() {
            // A space in a part stands for itself in newer files and has another character in GGUF.
            [Value::String(left), Value::String(right)] => {
                Some(format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ")))
            }
            _ => None,
        },
        _ => None,
    };
    list.iter().map(|merge| one(merge).ok_or_else(|| wrong(format!("{merge} is no merge")))).collect()
}

/// A tokenizer of bytes.
pub(crate) fn from_json(
    files: &Files<'_>,
    json: &Value,
    metadata: &mut Metadata,
    warnings: &mut Vec<String>,
) -> Result<Vocabulary, ConvertError> {
    let vocabulary = vocabulary(json)?;
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", pre_tokenizer(files, json, warnings)?);
    metadata.set("tokenizer.ggml.merges", merges(json)?);
    Ok(vocabulary)
}

/// The name of the pre-tokenizer.
fn pre_tokenizer(
    files: &Files<'_>,
    json: &Value,
    warnings: &mut Vec<String>,
) -> Result<String, ConvertError> {
    if let Some(name) = files.pre_tokenizer {
        if !is_pre_tokenizer(name) {
            return Err(ConvertError::PreTokenizer { found: format!("the name {name:?}") });
        }
        return Ok(name.to_owned());
    }
    let part = json.get("pre_tokenizer").unwrap_or(&Value::Null);
    let patterns = patterns(part, warnings)?;
    let ignore_merges = json.pointer("/model/ignore_merges").and_then(Value::as_bool).unwrap_or(false);
    let text = json.get("post_processor").map(Value::to_string).unwrap_or_default();
    let begins = text.contains("SpecialToken");
    let views: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let found = pre_tokenizer_name(&views, ignore_merges, begins);
    found.map(str::to_owned).ok_or_else(|| ConvertError::PreTokenizer {
        found: format!("{patterns:?}").chars().take(400).collect(),
    })
}

/// The patterns of a pre-tokenizer, one after another.
fn patterns(part: &Value, warnings: &mut Vec<String>) -> Result<Vec<String>, ConvertError> {
    let mut found = Vec::new();
    let mut open = vec![part];
    while let Some(part) = open.pop() {
        match part.get("type").and_then(Value::as_str) {
            Some("Sequence") => {
                let parts = part.get("pretokenizers").and_then(Value::as_array);
                open.extend(parts.into_iter().flatten().rev());
            }
            Some("ByteLevel") => {
                if part.get("use_regex").and_then(Value::as_bool).unwrap_or(true) {
                    found.push(BYTE_LEVEL_PATTERN.to_owned());
                }
                if part.get("add_prefix_space").and_then(Value::as_bool) == Some(true) {
                    warnings.push("texts get no space in front, though tokenizer.json asks for one".into());
                }
            }
            Some("Split") => {
                let pattern = part.get("pattern").and_then(|pattern| {
                    let regex = pattern.get("Regex").and_then(Value::as_str).map(str::to_owned);
                    regex.or_else(|| pattern.get("String").and_then(Value::as_str).map(escaped))
                });
                found.push(pattern.ok_or_else(|| wrong("a split has no pattern"))?);
            }
            Some("Digits") => {
                let single = part.get("individual_digits").and_then(Value::as_bool).unwrap_or(false);
                found.push(if single { r"\p{N}".into() } else { r"\p{N}+".into() });
            }
            Some("Punctuation") => found.push(PUNCTUATION_PATTERN.to_owned()),
            other => {
                let found = format!("{:?}", other.unwrap_or("none"));
                return Err(ConvertError::PreTokenizer { found });
            }
        }
    }
    Ok(found)
}

/// A text as a pattern that matches it.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

/// A tokenizer of characters with fallback to bytes: SentencePiece's, whose scores follow from the order of merges.
pub(crate) fn from_merges(json: &Value, metadata: &mut Metadata) -> Result<Vocabulary, ConvertError> {
    let mut vocabulary = vocabulary(json)?;
    let mut ranks: HashMap<String, usize> = HashMap::new();
    let list = json.pointer("/model/merges").and_then(Value::as_array);
    for (rank, merge) in list.into_iter().flatten().enumerate() {
        let joined = match merge {
            Value::String(text) => text.split_once(' ').map(|(left, right)| format!("{left}{right}")),
            Value::Array(pair) => pair.iter().map(Value::as_str).collect(),
            _ => None,
        };
        ranks.entry(joined.ok_or_else(|| wrong(format!("{merge} is no merge")))?).or_insert(rank);
    }
    vocabulary.scores = vec![0.0; vocabulary.tokens.len()];
    let unknown = json.pointer("/model/unk_token").and_then(Value::as_str);
    let places = vocabulary.tokens.iter().zip(&mut vocabulary.kinds).zip(&mut vocabulary.scores);
    for ((text, kind), score) in places {
        *score = ranks.get(text).map_or(-1e9, |rank| -(*rank as f32));
        if unknown == Some(text) {
            *kind = UNKNOWN;
        } else if is_byte(text) {
            *kind = BYTE;
        }
    }
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.add_space_prefix", adds_space(json));
    Ok(vocabulary)
}

/// Whether a token stands for a byte: `<0x0A>`.
pub(crate) fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Whether texts get a space in front: a normaliser or a pre-tokenizer says so.
pub(crate) fn adds_space(json: &Value) -> bool {
    let mut open: Vec<&Value> =
        ["normalizer", "pre_tokenizer"].iter().filter_map(|part| json.get(part)).collect();
    while let Some(part) = open.pop() {
        match part.get("type").and_then(Value::as_str) {
            Some("Prepend") => return true,
            Some("Metaspace") => {
                let scheme = part.get("prepend_scheme").and_then(Value::as_str);
                let flag = part.get("add_prefix_space").and_then(Value::as_bool);
                return scheme.map_or(flag.unwrap_or(true), |scheme| scheme != "never");
            }
            _ => {}
        }
        for list in ["normalizers", "pretokenizers"] {
            open.extend(part.get(list).and_then(Value::as_array).into_iter().flatten());
        }
    }
    false
}

/// GPT-2's older files: `vocab.json` and `merges.txt`.
pub(crate) fn from_lists(
    files: &Files<'_>,
    tokens: &Value,
    merges: &str,
    metadata: &mut Metadata,
) -> Result<Vocabulary, ConvertError> {
    let wrong = |reason: &str| ConvertError::Tokenizer { file: "vocab.json", reason: reason.to_owned() };
    let tokens = tokens.as_object().ok_or_else(|| wrong("it is no object"))?;
    let mut vocabulary = Vocabulary::of(tokens.len());
    for (text, id) in tokens {
        let id = id.as_u64().ok_or_else(|| wrong("a token has no number"))?;
        let kind = if text.starts_with("<|") && text.ends_with("|>") { CONTROL } else { NORMAL };
        vocabulary.set("vocab.json", id, text, kind)?;
    }
    if let Some(Value::Object(more)) = files.json("added_tokens.json")? {
        for (text, id) in &more {
            let id = id.as_u64().ok_or_else(|| wrong("an added token has no number"))?;
            vocabulary.set("added_tokens.json", id, text, CONTROL)?;
        }
    }
    let lines = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", files.pre_tokenizer.unwrap_or("gpt-2"));
    metadata.set("tokenizer.ggml.merges", lines.map(str::to_owned).collect::<Vec<_>>());
    Ok(vocabulary)
}
