//! `POST /v1/responses`: OpenAI's newer protocol, for text.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::api::{Names, identifier, openai};
use crate::app::App;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::generate::{Ending, Output, Reason};
use crate::plan::members;
use crate::stream::{Frame, Protocol, answer, timings};

/// `POST /v1/responses`.
pub async fn responses(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let (plan, _) = openai::chat_plan(app, &to_chat(fields)?, &["stop"])?;
            Ok((plan, Responses::new(app)))
        })
        .await?;
    answer(&app, plan, protocol).await
}

/// The request as one of the older protocol.
pub fn to_chat(fields: &Fields) -> ApiResult<Fields> {
    if fields.get(&["previous_response_id"]).is_some() {
        return Err(ApiError::invalid(
            "field 'previous_response_id': answers are not kept, send the conversation",
        ));
    }
    if fields.list(&["tools"])?.is_some_and(|tools| !tools.is_empty()) {
        return Err(ApiError::invalid("field 'tools' is not supported yet at this endpoint"));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text(&["instructions"])? {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match fields.get(&["input"]) {
        None => return Err(missing("input")),
        Some((_, Value::String(text))) => messages.push(json!({ "role": "user", "content": text })),
        Some((_, Value::Array(items))) => {
            for (index, item) in items.iter().enumerate() {
                match item.get("type").and_then(Value::as_str).unwrap_or("message") {
                    "message" => messages.push(json!({ "role": item["role"], "content": item["content"] })),
                    "reasoning" => {}
                    other => {
                        let message = format!("field 'input[{index}]': type '{other}' is not supported yet");
                        return Err(ApiError::invalid(message));
                    }
                }
            }
        }
        Some((name, other)) => return Err(wrong(name, other, "a string or a list of items")),
    }
    let mut all: Map<String, Value> = fields.0.clone();
    if let Some(format) = fields.object(&["text"])?.and_then(|text| text.get("format")) {
        all.insert("response_format".into(), format.clone());
    }
    if let Some(effort) = fields.object(&["reasoning"])?.and_then(|reasoning| reasoning.get("effort")) {
        all.insert("reasoning_effort".into(), effort.clone());
    }
    for name in ["input", "instructions", "text", "reasoning", "tools", "tool_choice", "n", "n_cmpl"] {
        all.remove(name);
    }
    all.insert("messages".into(), Value::Array(messages));
    Ok(Fields(all))
}

struct Responses {
    names: Names,
    item: String,
    text: String,
    sequence: u64,
    last: Option<Ending>,
}

impl Responses {
    fn new(app: &App) -> Self {
        let item = identifier("msg_");
        Self { names: Names::new(app, "resp_"), item, text: String::new(), sequence: 0, last: None }
    }

    fn event(&mut self, name: &'static str, value: Value) -> Frame {
        let mut all = members(json!({ "type": name, "sequence_number": self.sequence }));
        self.sequence += 1;
        all.extend(members(value));
        Frame::Event(name, Value::Object(all))
    }

    fn response(&self, status: &str, output: Value, ending: Option<&Ending>) -> Value {
        let mut all = members(json!({
            "id": self.names.id, "object": "response", "created_at": self.names.created, "status": status,
            "model": self.names.model, "output": output, "error": null, "incomplete_details": null,
            "instructions": null, "metadata": {}, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
            "temperature": null, "top_p": null,
        }));
        if let Some(ending) = ending {
            all.insert("completed_at".into(), json!(crate::app::now()));
            if ending.reason == Reason::Limit {
                all.insert("incomplete_details".into(), json!({ "reason": "max_output_tokens" }));
            }
            let (input, output) = (ending.prompt_tokens, ending.tokens.len());
            let usage = json!({
                "input_tokens": input, "output_tokens": output, "total_tokens": input + output,
                "input_tokens_details": { "cached_tokens": ending.timings.cached_tokens },
                "output_tokens_details": { "reasoning_tokens": 0 },
            });
            all.insert("usage".into(), usage);
            all.insert("timings".into(), timings(ending));
        }
        Value::Object(all)
    }

    fn part(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    fn message(&self, status: &str, content: Value) -> Value {
        json!({ "type": "message", "id": self.item, "role": "assistant", "status": status, "content": content })
    }

    fn place(&self) -> Value {
        json!({ "item_id": self.item, "output_index": 0, "content_index": 0 })
    }

    fn at_place(&mut self, name: &'static str, key: &str, value: Value) -> Frame {
        let mut all = members(self.place());
        all.insert(key.into(), value);
        self.event(name, Value::Object(all))
    }
}

fn status(reason: &Reason) -> &'static str {
    if *reason == Reason::Limit { "incomplete" } else { "completed" }
}

impl Protocol for Responses {
    fn begin(&mut self) -> Vec<Frame> {
        let response = self.response("in_progress", json!([]), None);
        let item = self.message("in_progress", json!([]));
        let part = self.part();
        vec![
            self.event("response.created", json!({ "response": response })),
            self.event("response.in_progress", json!({ "response": response })),
            self.event("response.output_item.added", json!({ "output_index": 0, "item": item })),
            self.at_place("response.content_part.added", "part", part),
        ]
    }

    fn output(&mut self, _: usize, output: &Output) -> Vec<Frame> {
        match output {
            Output::Progress { .. } => Vec::new(),
            Output::Piece(piece) => {
                self.text.push_str(&piece.text);
                let mut all = members(self.place());
                all.extend(members(json!({ "delta": piece.text, "logprobs": [] })));
                vec![self.event("response.output_text.delta", Value::Object(all))]
            }
            Output::Ending(ending) => {
                self.last = Some((**ending).clone());
                Vec::new()
            }
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        let Some(ending) = self.last.take() else { return Vec::new() };
        let status = status(&ending.reason);
        let item = self.message(status, json!([self.part()]));
        let response = self.response(status, json!([item]), Some(&ending));
        let mut done = members(self.place());
        done.extend(members(json!({ "text": self.text, "logprobs": [] })));
        let part = self.part();
        let last = if status == "completed" { "response.completed" } else { "response.incomplete" };
        vec![
            self.event("response.output_text.done", Value::Object(done)),
            self.at_place("response.content_part.done", "part", part),
            self.event("response.output_item.done", json!({ "output_index": 0, "item": item })),
            self.event(last, json!({ "response": response })),
        ]
    }

    fn whole(&mut self, endings: Vec<Ending>) -> Value {
        let Some(ending) = endings.into_iter().next() else { return Value::Null };
        self.text.clone_from(&ending.text);
        let status = status(&ending.reason);
        let item = self.message(status, json!([self.part()]));
        self.response(status, json!([item]), Some(&ending))
    }

    fn failure(&self, error: &ApiError) -> Frame {
        let body = json!({
            "type": "error", "code": error.row().name, "message": error.message, "param": null,
            "sequence_number": self.sequence,
        });
        Frame::Event("error", body)
    }
}
