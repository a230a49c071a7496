//! `POST /v1/completions` and `POST /v1/chat/completions`: OpenAI's protocols.

use std::sync::Arc;

use axum::response::Response;
use puna_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::api::Names;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing};
use crate::generate::{Ending, Output, Reason, Scored};
use crate::plan::{Plan, members};
use crate::stream::{Frame, Protocol, answer, timings};
use crate::{chat, edge::Call, probabilities, prompt};

/// `POST /v1/completions`.
pub async fn completions(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let (name, value) = fields.get(&["prompt"]).ok_or_else(|| missing("prompt"))?;
            let prompts = prompt::prompts(name, value, &app.served.tokenizer)?;
            if fields.boolean(&["echo"])?.unwrap_or(false) {
                return Err(ApiError::invalid("field 'echo' is not supported yet"));
            }
            let probable = fields.integer(&["logprobs", "n_probs"], 0..=20)?;
            let plan = Plan::new(app, fields, prompts, probable.map(|count| count as usize), &["stop"])?;
            let protocol = OpenAi::new(app, &plan, Style::Text);
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, plan, protocol).await
}

/// `POST /v1/chat/completions`.
pub async fn chat_completions(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let plan = chat_plan(app, fields, &["stop"])?;
            let protocol = OpenAi::new(app, &plan, Style::Chat);
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, plan, protocol).await
}

/// The plan of a request with `messages`.
pub fn chat_plan(app: &App, fields: &Fields, stop_fields: &[&str]) -> ApiResult<Plan> {
    match fields.get(&["tool_choice"]) {
        None => {}
        Some((_, Value::String(choice))) if choice == "auto" || choice == "none" => {}
        Some((_, other)) => {
            let message =
                format!("field 'tool_choice': {other} is not supported yet, only auto and none are");
            return Err(ApiError::invalid(message));
        }
    }
    let text = chat::render(app, fields)?;
    let asked = fields.boolean(&["logprobs"])?.unwrap_or(false);
    let top = fields.integer(&["top_logprobs", "n_probs"], 0..=20)?;
    if top.is_some_and(|top| top > 0) && !asked && fields.get(&["n_probs"]).is_none() {
        return Err(ApiError::invalid("field 'top_logprobs' needs 'logprobs'"));
    }
    let probable = match (asked, top) {
        (true, top) => Some(top.unwrap_or(0) as usize),
        (false, Some(top)) if top > 0 => Some(top as usize),
        _ => None,
    };
    Plan::new(app, fields, vec![chat::tokens(app, &text)], probable, stop_fields)
}

/// Which of the two protocols.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Text,
    Chat,
}

struct OpenAi {
    names: Names,
    tokenizer: Tokenizer,
    style: Style,
    include_usage: bool,
    probabilities: bool,
    usage: Usage,
    last_timings: Value,
    /// Answers to each prompt: all count the prompt once.
    choices: usize,
}

/// Sums over all answers.
#[derive(Default)]
struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
}

impl Usage {
    fn add(&mut self, ending: &Ending) {
        self.prompt += ending.prompt_tokens;
        self.cached += ending.timings.cached_tokens;
        self.completion += ending.tokens.len();
    }

    fn json(&self) -> Value {
        json!({
            "completion_tokens": self.completion,
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

impl OpenAi {
    fn new(app: &App, plan: &Plan, style: Style) -> Self {
        let prefix = if style == Style::Chat { "chatcmpl-" } else { "cmpl-" };
        Self {
            names: Names::new(app, prefix),
            tokenizer: app.served.tokenizer.clone(),
            style,
            include_usage: plan.include_usage,
            probabilities: plan.requests.iter().any(|request| request.log_probabilities.is_some()),
            usage: Usage::default(),
            last_timings: Value::Null,
            choices: plan.requests.len(),
        }
    }

    fn frame(&self, stream: bool, choices: Vec<Value>) -> Map<String, Value> {
        let object = match (self.style, stream) {
            (Style::Text, _) => "text_completion",
            (Style::Chat, true) => "chat.completion.chunk",
            (Style::Chat, false) => "chat.completion",
        };
        members(json!({
            "id": self.names.id,
            "object": object,
            "created": self.names.created,
            "model": self.names.model,
            "system_fingerprint": self.names.build,
            "choices": choices,
        }))
    }

    fn log_probabilities(&self, scored: &[Scored]) -> Value {
        match self.probabilities {
            true => json!({ "content": probabilities::entries(scored, &self.tokenizer) }),
            false => Value::Null,
        }
    }

    /// A chunk of a stream with one choice.
    fn chunk(
        &self,
        index: usize,
        text: Option<&str>,
        scored: &[Scored],
        reason: Value,
    ) -> Map<String, Value> {
        let log_probabilities = self.log_probabilities(scored);
        let choice = match self.style {
            Style::Text => json!({
                "index": index, "text": text.unwrap_or(""), "logprobs": log_probabilities, "finish_reason": reason,
            }),
            Style::Chat => {
                let delta = text.map_or_else(|| json!({}), |text| json!({ "content": text }));
                let mut choice = members(json!({ "index": index, "delta": delta, "finish_reason": reason }));
                if self.probabilities && text.is_some() {
                    choice.insert("logprobs".into(), log_probabilities);
                }
                Value::Object(choice)
            }
        };
        self.frame(true, vec![choice])
    }
}

/// OpenAI's name for the end of an answer.
pub fn finish_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::EndOfGeneration | Reason::Stop(_) => "stop",
        Reason::Limit => "length",
    }
}

impl Protocol for OpenAi {
    fn begin(&mut self) -> Vec<Frame> {
        if self.style == Style::Text {
            return Vec::new();
        }
        let role = |index: usize| json!({ "index": index, "delta": { "role": "assistant", "content": null }, "finish_reason": null });
        (0..self.choices)
            .map(|index| Frame::Data(Value::Object(self.frame(true, vec![role(index)]))))
            .collect()
    }

    fn output(&mut self, index: usize, output: &Output) -> Vec<Frame> {
        match output {
            Output::Progress { .. } => Vec::new(),
            Output::Piece(piece) => {
                let chunk = self.chunk(index, Some(&piece.text), &piece.scored, Value::Null);
                vec![Frame::Data(Value::Object(chunk))]
            }
            Output::Ending(ending) => {
                self.usage.add(ending);
                self.last_timings = timings(ending);
                let mut chunk = self.chunk(index, None, &[], json!(finish_reason(&ending.reason)));
                chunk.insert("timings".into(), self.last_timings.clone());
                vec![Frame::Data(Value::Object(chunk))]
            }
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let mut chunk = self.frame(true, Vec::new());
            chunk.insert("usage".into(), self.usage.json());
            chunk.insert("timings".into(), self.last_timings.clone());
            frames.push(Frame::Data(Value::Object(chunk)));
        }
        frames.push(Frame::Done);
        frames
    }

    fn whole(&mut self, endings: Vec<Ending>) -> Value {
        let mut choices = Vec::with_capacity(endings.len());
        for (index, ending) in endings.iter().enumerate() {
            self.usage.add(ending);
            let log_probabilities = self.log_probabilities(&ending.scored);
            let reason = finish_reason(&ending.reason);
            choices.push(match self.style {
                Style::Text => json!({
                    "text": ending.text, "index": index, "logprobs": log_probabilities, "finish_reason": reason,
                }),
                Style::Chat => {
                    let message = json!({ "role": "assistant", "content": ending.text });
                    let mut choice =
                        members(json!({ "index": index, "message": message, "finish_reason": reason }));
                    if self.probabilities {
                        choice.insert("logprobs".into(), log_probabilities);
                    }
                    Value::Object(choice)
                }
            });
        }
        let mut result = self.frame(false, choices);
        result.insert("usage".into(), self.usage.json());
        if let Some(ending) = endings.last() {
            result.insert("timings".into(), timings(ending));
        }
        Value::Object(result)
    }
}
