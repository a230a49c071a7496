//! `POST /v1/messages`: Anthropic's protocol, for text.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::api::{Names, openai};
use crate::app::App;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::generate::{Ending, Output, Reason};
use crate::plan::Plan;
use crate::stream::{Frame, Protocol, answer};

/// `POST /v1/messages`.
pub async fn messages(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            fields.integer(&["max_tokens"], 1..=i64::from(i32::MAX))?.ok_or_else(|| missing("max_tokens"))?;
            let (plan, _) = openai::chat_plan(app, &to_chat(fields)?, &["stop_sequences"])?;
            let protocol = Anthropic::new(app, &plan);
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, plan, protocol).await
}

/// The request as one of OpenAI's.
pub fn to_chat(fields: &Fields) -> ApiResult<Fields> {
    if fields.list(&["tools"])?.is_some_and(|tools| !tools.is_empty()) {
        return Err(ApiError::invalid("field 'tools' is not supported yet at this endpoint"));
    }
    let list = fields.list(&["messages"])?.ok_or_else(|| missing("messages"))?;
    let mut messages = Vec::with_capacity(list.len() + 1);
    if let Some((name, system)) = fields.get(&["system"]) {
        messages.push(json!({ "role": "system", "content": crate::chat::text_of(name, system)? }));
    }
    for (index, message) in list.iter().enumerate() {
        let place = format!("messages[{index}]");
        match message.get("role").and_then(Value::as_str) {
            Some("user" | "assistant") => messages.push(message.clone()),
            _ => return Err(wrong(&place, message, "an object with the role user or assistant")),
        }
    }
    let mut members: Map<String, Value> = fields.0.clone();
    for name in ["system", "metadata", "thinking", "tools", "tool_choice", "stop", "n", "n_cmpl"] {
        members.remove(name);
    }
    if let Some(thinking) = fields.object(&["thinking"])? {
        let enabled = thinking.get("type").is_some_and(|kind| kind == "enabled");
        members.insert("chat_template_kwargs".into(), json!({ "enable_thinking": enabled }));
    }
    members.insert("messages".into(), Value::Array(messages));
    Ok(Fields(members))
}

struct Anthropic {
    names: Names,
    prompt_tokens: usize,
}

impl Anthropic {
    fn new(app: &App, plan: &Plan) -> Self {
        let prompt_tokens = plan.requests.first().map_or(0, |request| request.prompt.len());
        Self { names: Names::new(app, "msg_"), prompt_tokens }
    }

    fn message(&self, content: Value, stop: (Value, Value), usage: Value) -> Value {
        json!({
            "id": self.names.id, "type": "message", "role": "assistant", "model": self.names.model,
            "content": content, "stop_reason": stop.0, "stop_sequence": stop.1, "usage": usage,
        })
    }
}

fn stop(reason: &Reason) -> (Value, Value) {
    match reason {
        Reason::EndOfGeneration => (json!("end_turn"), Value::Null),
        Reason::Stop(word) => (json!("stop_sequence"), json!(word)),
        Reason::Limit => (json!("max_tokens"), Value::Null),
    }
}

fn usage(ending: &Ending) -> Value {
    json!({
        "input_tokens": ending.prompt_tokens.saturating_sub(ending.timings.cached_tokens),
        "cache_read_input_tokens": ending.timings.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": ending.tokens.len(),
    })
}

fn event(name: &'static str, mut value: Value) -> Frame {
    if let Value::Object(members) = &mut value {
        members.insert("type".into(), json!(name));
    }
    Frame::Event(name, value)
}

impl Protocol for Anthropic {
    fn begin(&mut self) -> Vec<Frame> {
        let usage = json!({
            "input_tokens": self.prompt_tokens, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
            "output_tokens": 0,
        });
        let message = self.message(json!([]), (Value::Null, Value::Null), usage);
        let block = json!({ "index": 0, "content_block": { "type": "text", "text": "" } });
        vec![event("message_start", json!({ "message": message })), event("content_block_start", block)]
    }

    fn output(&mut self, _: usize, output: &Output) -> Vec<Frame> {
        match output {
            Output::Progress { .. } => Vec::new(),
            Output::Piece(piece) => {
                let delta = json!({ "index": 0, "delta": { "type": "text_delta", "text": piece.text } });
                vec![event("content_block_delta", delta)]
            }
            Output::Ending(ending) => {
                let (reason, sequence) = stop(&ending.reason);
                let delta = json!({
                    "delta": { "stop_reason": reason, "stop_sequence": sequence }, "usage": usage(ending),
                });
                vec![event("content_block_stop", json!({ "index": 0 })), event("message_delta", delta)]
            }
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        vec![event("message_stop", json!({}))]
    }

    fn whole(&mut self, endings: Vec<Ending>) -> Value {
        let Some(ending) = endings.first() else { return Value::Null };
        let content = json!([{ "type": "text", "text": ending.text }]);
        self.message(content, stop(&ending.reason), usage(ending))
    }

    fn failure(&self, error: &ApiError) -> Frame {
        Frame::Event("error", error.anthropic())
    }
}
