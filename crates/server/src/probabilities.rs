//! Log-probabilities as answers show them.

use puna_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::generate::Scored;

/// A token without a probability has this instead of minus infinity, which JSON cannot say.
const LEAST: f32 = f32::MIN;

/// One entry for each token: id, text, bytes, log-probability and the most probable ones. Those after sampling
/// are shown as probabilities, under names of their own.
pub fn entries(scored: &[Scored], tokenizer: &Tokenizer, after_sampling: bool) -> Value {
    let top_name = if after_sampling { "top_probs" } else { "top_logprobs" };
    let one = |token: u32, value: f32| {
        let bytes = tokenizer.piece(token, true);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match after_sampling {
            true => json!({ "id": token, "token": text, "bytes": bytes, "prob": value.exp() }),
            false => json!({ "id": token, "token": text, "bytes": bytes, "logprob": value.max(LEAST) }),
        }
    };
    let entry = |scored: &Scored| {
        let found = &scored.log_probabilities;
        let mut entry = one(scored.token, found.chosen);
        let top: Vec<Value> = found.top.iter().map(|(token, value)| one(*token, *value)).collect();
        if let Value::Object(members) = &mut entry {
            members.insert(top_name.into(), Value::Array(top));
        }
        entry
    };
    Value::Array(scored.iter().map(entry).collect())
}
