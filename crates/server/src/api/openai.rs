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
use crate::parts::{Parts, Wanted};
use crate::plan::{Plan, members};
use crate::stream::{Frame, Protocol, answer, progress, timings};
use crate::{budget, chat, edge::Call, probabilities, prompt, tool_choice};

/// `POST /v1/completions`.
pub async fn completions(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let (name, value) = fields.get(&["prompt"]).ok_or_else(|| missing("prompt"))?;
            let prompts = prompt::prompts(name, value, &app.served.tokenizer)?;
            if let Some(warning) = prompt::doubled(&app.served.tokenizer, &prompts) {
                app.front.options.warnings.say(&warning);
            }
            if fields.boolean(&["echo"])?.unwrap_or(false) {
                return Err(ApiError::invalid("field 'echo' is not supported yet"));
            }
            let probable = fields.integer(&["logprobs", "n_probs"], 0..=20)?;
            let plan = Plan::new(app, fields, prompts, probable.map(|count| count as usize), &["stop"])?;
            let protocol = OpenAi::new(app, &plan, Style::Text);
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// `POST /v1/chat/completions`.
pub async fn chat_completions(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let (plan, parts) = chat_plan(app, fields, &["stop"])?;
            let mut protocol = OpenAi::new(app, &plan, Style::Chat);
            protocol.parts = parts;
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// The plan of a request with `messages`, and what tells the parts of each answer apart.
pub fn chat_plan(app: &App, fields: &Fields, stop_fields: &[&str]) -> ApiResult<(Plan, Vec<Parts>)> {
    let wanted = Wanted::new(fields, app.served.defaults.reasoning)?;
    let choice = tool_choice::read(fields)?;
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
    let mut plan = Plan::new(app, fields, vec![chat::tokens(app, &text)], probable, stop_fields)?;
    plan.shown = wanted.shown(app, &text);
    if let Some(budget) = budget::of(app, fields, &text)? {
        plan.requests.iter_mut().for_each(|request| request.reasoning = Some(budget.clone()));
    }
    if let Some(grammar) = tool_choice::grammar(app, fields, &choice, &text)? {
        plan.requests.iter_mut().for_each(|request| request.grammar = Some(grammar.clone()));
    }
    let parts = plan.requests.iter().map(|_| wanted.parts(app, &text)).collect();
    Ok((plan, parts))
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
    return_progress: bool,
    timings_per_token: bool,
    probabilities: bool,
    after_sampling: bool,
    usage: Usage,
    last_timings: Value,
    choices: usize,
    /// Of a chat, one for each choice.
    parts: Vec<Parts>,
}

/// Sums over all answers.
#[derive(Default)]
struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
    /// Of a chat.
    reasoning: Option<usize>,
}

impl Usage {
    fn add(&mut self, ending: &Ending, parts: Option<&mut Parts>) {
        if let Some(parts) = parts {
            *self.reasoning.get_or_insert(0) += parts.reasoning_tokens(&ending.tokens);
        }
        self.prompt += ending.prompt_tokens;
        self.cached += ending.timings.cached_tokens;
        self.completion += ending.tokens.len();
    }

    fn json(&self) -> Value {
        let mut all = json!({
            "completion_tokens": self.completion,
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        });
        if let Some(reasoning) = self.reasoning {
            all["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning });
        }
        all
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
            return_progress: plan.return_progress,
            timings_per_token: plan.timings_per_token,
            probabilities: plan.requests.iter().any(|request| request.log_probabilities.is_some()),
            after_sampling: plan.requests.iter().any(|request| request.after_sampling),
            usage: Usage::default(),
            last_timings: Value::Null,
            choices: plan.requests.len(),
            parts: Vec::new(),
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
            true => {
                json!({ "content": probabilities::entries(scored, &self.tokenizer, self.after_sampling) })
            }
            false => Value::Null,
        }
    }

    /// A chunk of a completion's stream.
    fn text_chunk(&self, index: usize, text: &str, scored: &[Scored], reason: Value) -> Map<String, Value> {
        let log_probabilities = self.log_probabilities(scored);
        let choice =
            json!({ "index": index, "text": text, "logprobs": log_probabilities, "finish_reason": reason });
        self.frame(true, vec![choice])
    }

    /// A chunk of a chat's stream.
    fn chat_chunk(&self, index: usize, delta: Value, scored: &[Scored], reason: Value) -> Map<String, Value> {
        let mut choice = members(json!({ "index": index, "delta": delta, "finish_reason": reason }));
        if self.probabilities && !scored.is_empty() {
            choice.insert("logprobs".into(), self.log_probabilities(scored));
        }
        self.frame(true, vec![Value::Object(choice)])
    }

    /// Chunks of a chat's stream; the first has the probabilities of them all.
    fn chat_chunks(&self, index: usize, deltas: Vec<Value>, scored: &[Scored]) -> Vec<Frame> {
        let deltas = match deltas.is_empty() && self.probabilities && !scored.is_empty() {
            true => vec![json!({})],
            false => deltas,
        };
        let chunk = |(place, delta)| {
            let scored = if place == 0 { scored } else { &[] };
            Frame::Data(Value::Object(self.chat_chunk(index, delta, scored, Value::Null)))
        };
        deltas.into_iter().enumerate().map(chunk).collect()
    }

    /// Why an answer ended: a limit, its calls, or itself.
    fn reason(&self, index: usize, reason: &Reason) -> &'static str {
        match reason {
            Reason::Limit => "length",
            _ if self.parts.get(index).is_some_and(Parts::called) => "tool_calls",
            Reason::EndOfGeneration | Reason::Stop(_) => "stop",
        }
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
            Output::Progress { .. } if !self.return_progress => Vec::new(),
            Output::Progress { processed, cached, total, time } => {
                let mut chunk = match self.style {
                    Style::Text => self.text_chunk(index, "", &[], Value::Null),
                    Style::Chat => self.chat_chunk(index, json!({}), &[], Value::Null),
                };
                chunk.insert("prompt_progress".into(), progress(*processed, *cached, *total, *time));
                vec![Frame::Data(Value::Object(chunk))]
            }
            Output::Piece(piece) => {
                let mut frames = match self.parts.get_mut(index) {
                    None => {
                        let chunk = self.text_chunk(index, &piece.text, &piece.scored, Value::Null);
                        vec![Frame::Data(Value::Object(chunk))]
                    }
                    Some(parts) => {
                        let deltas = parts.push(&piece.text);
                        self.chat_chunks(index, deltas, &piece.scored)
                    }
                };
                if let (true, Some(Frame::Data(last))) = (self.timings_per_token, frames.last_mut()) {
                    last["timings"] = timings(&piece.timings);
                }
                frames
            }
            Output::Ending(ending) => {
                self.usage.add(ending, self.parts.get_mut(index));
                self.last_timings = timings(&ending.timings);
                let parts = self.parts.get_mut(index);
                let rest = parts.map(|parts| parts.finish(&ending.reason)).unwrap_or_default();
                let mut frames = self.chat_chunks(index, rest, &[]);
                let reason = json!(self.reason(index, &ending.reason));
                let mut chunk = match self.style {
                    Style::Text => self.text_chunk(index, "", &[], reason),
                    Style::Chat => self.chat_chunk(index, json!({}), &[], reason),
                };
                chunk.insert("timings".into(), self.last_timings.clone());
                frames.push(Frame::Data(Value::Object(chunk)));
                frames
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
            self.usage.add(ending, self.parts.get_mut(index));
            let log_probabilities = self.log_probabilities(&ending.scored);
            let message = self.parts.get_mut(index).map(|parts| parts.message(&ending.text, &ending.reason));
            let reason = self.reason(index, &ending.reason);
            choices.push(match message {
                None => json!({
                    "text": ending.text, "index": index, "logprobs": log_probabilities, "finish_reason": reason,
                }),
                Some(message) => {
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
            result.insert("timings".into(), timings(&ending.timings));
        }
        Value::Object(result)
    }
}
