//! Prompts as requests spell them: a text, token ids, both mixed, or a list of such.

use puna_tokenizer::Tokenizer;
use serde_json::Value;

use crate::error::{ApiError, ApiResult};
use crate::fields::wrong;

/// Most prompts of one request.
pub const MOST_PROMPTS: usize = 64;

/// The prompts of a request as tokens; none is empty.
pub fn prompts(name: &str, value: &Value, tokenizer: &Tokenizer) -> ApiResult<Vec<Vec<u32>>> {
    let one = |value: &Value| match tokens(name, value, tokenizer, true, true) {
        Ok(tokens) if tokens.is_empty() => Err(ApiError::invalid(format!(
            "field '{name}': the prompt is empty: give a text, or the id of a token to begin with"
        ))),
        other => other,
    };
    match value {
        Value::Array(items) if is_list_of_prompts(items) => {
            if items.len() > MOST_PROMPTS {
                let message = format!("field '{name}': {} prompts, at most {MOST_PROMPTS}", items.len());
                return Err(ApiError::invalid(message));
            }
            items.iter().map(one).collect()
        }
        other => Ok(vec![one(other)?]),
    }
}

/// What to say of a prompt that has the beginning token twice: its text holds it, and the tokenizer adds it. It stays so, as
/// the client may want it.
pub fn doubled(tokenizer: &Tokenizer, prompts: &[Vec<u32>]) -> Option<String> {
    let vocabulary = tokenizer.vocabulary();
    let bos = vocabulary.bos().filter(|_| vocabulary.add_bos())?;
    let twice = prompts.iter().any(|prompt| prompt.starts_with(&[bos, bos]));
    let text = vocabulary.text(bos).unwrap_or("");
    twice.then(|| format!("a prompt begins with {text} although the tokenizer adds it: it is there twice"))
}

/// A list of texts or of lists; a list with a number in it is one prompt.
fn is_list_of_prompts(items: &[Value]) -> bool {
    !items.is_empty() && items.iter().all(|item| !item.is_number())
}

/// One prompt: a text, a list of ids and texts, or an object with `prompt_string`.
pub fn tokens(
    name: &str,
    value: &Value,
    tokenizer: &Tokenizer,
    add_special: bool,
    parse_special: bool,
) -> ApiResult<Vec<u32>> {
    match value {
        Value::String(text) => Ok(tokenizer.encode(text, add_special, parse_special)),
        Value::Array(items) => {
            let mut all = Vec::with_capacity(items.len());
            for (index, item) in items.iter().enumerate() {
                match item {
                    Value::String(text) => {
                        all.extend(tokenizer.encode(text, add_special && index == 0, parse_special));
                    }
                    Value::Number(_) => all.push(id(name, item, tokenizer)?),
                    other => return Err(wrong(name, other, "token ids and strings")),
                }
            }
            Ok(all)
        }
        Value::Object(members) => {
            if members.get("multimodal_data").and_then(Value::as_array).is_some_and(|data| !data.is_empty()) {
                return Err(ApiError::invalid("this model takes text only, field 'multimodal_data' is not"));
            }
            match members.get("prompt_string") {
                Some(Value::String(text)) => Ok(tokenizer.encode(text, add_special, parse_special)),
                _ => Err(wrong(name, value, "a string, token ids, or an object with 'prompt_string'")),
            }
        }
        other => Err(wrong(name, other, "a string or a list of token ids")),
    }
}

/// A token id that exists.
pub fn id(name: &str, value: &Value, tokenizer: &Tokenizer) -> ApiResult<u32> {
    let count = tokenizer.vocabulary().len();
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < count);
    id.ok_or_else(|| {
        ApiError::invalid(format!("field '{name}': {value} is no token, the vocabulary has {count}"))
    })
}
