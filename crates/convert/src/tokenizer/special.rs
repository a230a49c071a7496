//! Tokens with a meaning, flags for the ends of texts, and the chat template.

use std::collections::HashMap;

use puna_gguf::Metadata;
use serde_json::Value;

use super::{Files, Vocabulary};
use crate::ConvertError;

/// Token ids by text.
pub(crate) struct Index {
    /// The first token of each text.
    ids: HashMap<String, u32>,
    /// Tokens, of which several may have one text.
    count: usize,
}

impl Index {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Self {
        let count = vocabulary.tokens.len();
        let mut ids = HashMap::with_capacity(count);
        for (id, text) in (0..).zip(&vocabulary.tokens) {
            ids.entry(text.clone()).or_insert(id);
        }
        Self { ids, count }
    }

    fn find(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}

/// Names in the files, and the keys.
const ROLES: &[(&str, &str)] = &[
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    // The misspelling is the real key.
    ("sep", "tokenizer.ggml.seperator_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("cls", "tokenizer.ggml.cls_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
];

/// Writes what the files say beside the vocabulary.
pub(crate) fn write(
    files: &Files<'_>,
    index: &Index,
    json: Option<&Value>,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    let settings = files.json("tokenizer_config.json")?.unwrap_or(Value::Null);
    let special = files.json("special_tokens_map.json")?.unwrap_or(Value::Null);
    let generation = files.json("generation_config.json")?.unwrap_or(Value::Null);
    for (role, key) in ROLES {
        let name = format!("{role}_token");
        let by_text =
            [&settings, &special].into_iter().find_map(|file| index.find(content(file.get(&name)?)?));
        let id = format!("{role}_token_id");
        let number = |value: &Value| match value {
            Value::Array(list) => list.first().and_then(Value::as_u64),
            other => other.as_u64(),
        };
        let by_id =
            || files.config.get(&[&id]).and_then(number).or_else(|| generation.get(&id).and_then(number));
        let in_range = |id: u64| u32::try_from(id).ok().filter(|id| (*id as usize) < index.count);
        if let Some(found) = by_text.or_else(|| by_id().and_then(in_range)) {
            metadata.set(*key, found);
        }
    }
    let template = json.and_then(|json| template(json.get("post_processor")?));
    let flag = |name: &str| settings.get(name).and_then(Value::as_bool);
    let (begins, ends) = match template {
        Some((begins, ends)) => (Some(begins), Some(ends)),
        None => (flag("add_bos_token"), flag("add_eos_token")),
    };
    let encoder = metadata.optional_str("tokenizer.ggml.model")? == Some("bert");
    // Readers take the first token of BERT's texts from the key that they have for beginnings.
    if encoder && let Some(first) = metadata.get("tokenizer.ggml.cls_token_id").cloned() {
        metadata.set("tokenizer.ggml.bos_token_id", first);
    }
    if !encoder {
        if let Some(begins) = begins {
            metadata.set("tokenizer.ggml.add_bos_token", begins);
        }
        if let Some(ends) = ends {
            metadata.set("tokenizer.ggml.add_eos_token", ends);
        }
    }
    templates(files, &settings, metadata)
}

/// The text of a token, given as such or as an object.
fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Whether texts begin and end with special tokens, if the post-processor says so.
fn template(processor: &Value) -> Option<(bool, bool)> {
    match processor.get("type")?.as_str()? {
        "TemplateProcessing" => {
            let single = processor.get("single")?.as_array()?;
            let special = |part: Option<&Value>| part.is_some_and(|part| part.get("SpecialToken").is_some());
            Some((special(single.first()), single.len() > 1 && special(single.last())))
        }
        "Sequence" => processor.get("processors")?.as_array()?.iter().find_map(template),
        "BertProcessing" | "RobertaProcessing" => Some((true, true)),
        _ => None,
    }
}

/// The chat template, and its named variants.
fn templates(files: &Files<'_>, settings: &Value, metadata: &mut Metadata) -> Result<(), ConvertError> {
    const KEY: &str = "tokenizer.chat_template";
    if let Some(text) = files.text("chat_template.jinja")? {
        metadata.set(KEY, text);
        return Ok(());
    }
    let separate = files.json("chat_template.json")?;
    let found = separate.as_ref().and_then(|json| json.get("chat_template"));
    match found.or_else(|| settings.get("chat_template")) {
        Some(Value::String(text)) => {
            metadata.set(KEY, text.as_str());
        }
        Some(Value::Array(variants)) => {
            let mut names = Vec::new();
            for variant in variants {
                let text = |name: &str| variant.get(name).and_then(Value::as_str);
                let (Some(name), Some(template)) = (text("name"), text("template")) else { continue };
                if name == "default" {
                    metadata.set(KEY, template);
                } else {
                    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                    let name: String = name.chars().filter(|letter| plain(*letter)).take(64).collect();
                    metadata.set(format!("{KEY}.{name}"), template);
                    names.push(name);
                }
            }
            if !names.is_empty() {
                metadata.set("tokenizer.chat_templates", names);
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::NORMAL;
    use super::*;

    #[test]
    fn tokens_of_equal_texts_all_count() {
        let mut vocabulary = Vocabulary::of(3);
        for id in 0..3 {
            vocabulary.set("x", id, "same", NORMAL).expect("there is room");
        }
        let index = Index::new(&vocabulary);
        assert_eq!((index.find("same"), index.count), (Some(0), 3));
    }

    #[test]
    fn post_processors_say_how_texts_begin() {
        let template = |text: &str| template(&serde_json::from_str(text).expect("the sample is JSON"));
        let bos = r#"{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}]}"#;
        assert_eq!(template(bos), Some((true, false)));
        let nested = format!(r#"{{"type": "Sequence", "processors": [{{"type": "ByteLevel"}}, {bos}]}}"#);
        assert_eq!(template(&nested), Some((true, false)));
        assert_eq!(template(r#"{"type": "ByteLevel"}"#), None);
        assert_eq!(template("null"), None);
    }
}
