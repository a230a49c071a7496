//! `POST /completion`: the peer's own protocol.

use std::sync::Arc;

use axum::response::Response;
use puna_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiResult;
use crate::fields::{Fields, missing};
use crate::generate::{Ending, Output, Reason};
use crate::plan::{Plan, members};
use crate::stream::{Frame, Protocol, answer, progress, timings};
use crate::{edge::Call, probabilities, prompt};

/// Most probable tokens that may be asked for.
const MOST_PROBABLE: i64 = 1000;

/// `POST /completion`.
pub async fn completion(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let (name, value) = fields.get(&["prompt"]).ok_or_else(|| missing("prompt"))?;
            let prompts = prompt::prompts(name, value, &app.served.tokenizer)?;
            if let Some(warning) = prompt::doubled(&app.served.tokenizer, &prompts) {
                app.front.options.warnings.say(&warning);
            }
            let probable =
                fields.integer(&["n_probs", "logprobs"], 0..=MOST_PROBABLE)?.filter(|count| *count > 0);
            let plan = Plan::new(app, fields, prompts, probable.map(|count| count as usize), &["stop"])?;
            let protocol = Native::new(app, &plan, fields)?;
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// Answers in this protocol.
pub struct Native {
    tokenizer: Tokenizer,
    model: String,
    settings: Value,
    probabilities: bool,
    after_sampling: bool,
    return_tokens: bool,
    return_progress: bool,
    timings_per_token: bool,
    /// Members to show; empty for all.
    shown: Vec<String>,
    /// Text of each prompt.
    prompts: Vec<String>,
    choices: usize,
}

impl Native {
    /// As the fields say.
    pub fn new(app: &App, plan: &Plan, fields: &Fields) -> ApiResult<Self> {
        let tokenizer = app.served.tokenizer.clone();
        let text = |prompt: &[u32]| String::from_utf8_lossy(&tokenizer.decode(prompt, true)).into_owned();
        Ok(Self {
            prompts: plan.requests.iter().map(|request| text(&request.prompt)).collect(),
            model: app.served.facts.name.clone(),
            settings: plan.settings.clone(),
            probabilities: plan.requests.iter().any(|request| request.log_probabilities.is_some()),
            after_sampling: plan.requests.iter().any(|request| request.after_sampling),
            return_tokens: plan.return_tokens,
            return_progress: plan.return_progress,
            timings_per_token: plan.timings_per_token,
            shown: fields.texts(&["response_fields"])?.unwrap_or_default(),
            choices: plan.requests.len(),
            tokenizer,
        })
    }

    /// The last object of an answer; in a stream its text has been sent before.
    fn result(&self, index: usize, ending: &Ending, stream: bool) -> Value {
        let (stop, word) = match &ending.reason {
            Reason::EndOfGeneration => ("eos", ""),
            Reason::Stop(word) => ("word", word.as_str()),
            Reason::Limit => ("limit", ""),
        };
        let held = ending.timings.cached_tokens + ending.timings.prompt_tokens + ending.tokens.len();
        let mut settings = self.settings.clone();
        if let Some(seed) = settings.get("seed").and_then(Value::as_u64) {
            settings["seed"] = json!((seed as u32).wrapping_add(index as u32));
        }
        let tokens = if self.return_tokens && !stream { ending.tokens.as_slice() } else { &[] };
        let mut result = members(json!({
            "index": index,
            "content": if stream { "" } else { &ending.text },
            "tokens": tokens,
            "id_slot": ending.slot,
            "stop": true,
            "model": self.model,
            "tokens_predicted": ending.tokens.len(),
            "tokens_evaluated": ending.prompt_tokens,
            "generation_settings": settings,
            "prompt": self.prompts.get(index),
            "has_new_line": ending.text.contains('\n'),
            "truncated": ending.timings.full,
            "stop_type": stop,
            "stopping_word": word,
            "tokens_cached": held,
            "timings": timings(&ending.timings),
        }));
        if self.probabilities && !stream {
            let entries = probabilities::entries(&ending.scored, &self.tokenizer, self.after_sampling);
            result.insert("completion_probabilities".into(), entries);
        }
        let result = Value::Object(result);
        if self.shown.is_empty() { result } else { chosen(&result, &self.shown) }
    }
}

/// Only these members, by the names given; `a/b` is member `b` of `a`.
fn chosen(value: &Value, names: &[String]) -> Value {
    let find = |name: &String| {
        let pointer = format!("/{name}");
        Some((name.clone(), value.pointer(&pointer)?.clone()))
    };
    Value::Object(names.iter().filter_map(find).collect())
}

impl Protocol for Native {
    fn output(&mut self, index: usize, output: &Output) -> Vec<Frame> {
        match output {
            Output::Progress { .. } if !self.return_progress => Vec::new(),
            Output::Progress { processed, cached, total, time } => vec![Frame::Data(json!({
                "index": index, "content": "", "tokens": [], "stop": false, "tokens_predicted": 0,
                "tokens_evaluated": total,
                "prompt_progress": progress(*processed, *cached, *total, *time),
            }))],
            Output::Piece(piece) => {
                let mut chunk = members(json!({
                    "index": index,
                    "content": piece.text,
                    "tokens": piece.tokens,
                    "stop": false,
                    "id_slot": piece.slot,
                    "tokens_predicted": piece.generated,
                    "tokens_evaluated": piece.prompt_tokens,
                }));
                if self.timings_per_token {
                    chunk.insert("timings".into(), timings(&piece.timings));
                }
                if self.probabilities {
                    let entries = probabilities::entries(&piece.scored, &self.tokenizer, self.after_sampling);
                    chunk.insert("completion_probabilities".into(), entries);
                }
                vec![Frame::Data(Value::Object(chunk))]
            }
            Output::Ending(ending) => vec![Frame::Data(self.result(index, ending, true))],
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn whole(&mut self, endings: Vec<Ending>) -> Value {
        let mut all: Vec<Value> =
            endings.iter().enumerate().map(|(index, ending)| self.result(index, ending, false)).collect();
        match all.pop() {
            Some(only) if self.choices == 1 => only,
            last => {
                all.extend(last);
                Value::Array(all)
            }
        }
    }
}
