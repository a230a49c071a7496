//! `POST /v1/messages`: Anthropic's protocol.

use std::sync::Arc;

use axum::response::Response;
use puna_chat::dialects::Delta;
use serde_json::{Map, Value, json};

use crate::api::{Names, identifier, openai};
use crate::app::App;
use crate::chat::{part_text, text_of};
use crate::edge::Call;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::generate::{Ending, Output, Reason};
use crate::parts::Parts;
use crate::stream::{Frame, Protocol, answer};

/// Fields of OpenAI's protocol, and what they are called in this one.
pub const NAMES: &[(&str, &str)] = &[("thinking_budget_tokens", "thinking.budget_tokens")];

/// `POST /v1/messages`.
pub async fn messages(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            fields.integer(&["max_tokens"], 1..=i64::from(i32::MAX))?.ok_or_else(|| missing("max_tokens"))?;
            let chat = to_chat(fields)?;
            let planned = openai::chat_plan(app, &chat, &["stop_sequences"]);
            let (plan, mut parts) = planned.map_err(|error| error.in_terms_of(NAMES))?;
            let protocol = Anthropic {
                names: Names::new(app, "msg_"),
                prompt_tokens: plan.requests.first().map_or(0, |request| request.prompt.len()),
                // One answer, as `n` is not a field of this protocol.
                parts: parts.pop().ok_or_else(|| missing("messages"))?,
                blocks: Vec::new(),
                open: false,
                input: String::new(),
            };
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// The request as one of OpenAI's.
pub fn to_chat(fields: &Fields) -> ApiResult<Fields> {
    let list = fields.list(&["messages"])?.ok_or_else(|| missing("messages"))?;
    let mut messages = Vec::with_capacity(list.len() + 1);
    if let Some((name, system)) = fields.get(&["system"]) {
        messages.push(json!({ "role": "system", "content": text_of(name, system)? }));
    }
    for (index, message) in list.iter().enumerate() {
        let place = format!("messages[{index}]");
        match message.get("role").and_then(Value::as_str) {
            Some(role @ ("user" | "assistant")) => {
                messages.extend(message_of(&place, role, message.get("content").unwrap_or(&Value::Null))?);
            }
            _ => return Err(wrong(&place, message, "an object with the role user or assistant")),
        }
    }
    let mut members: Map<String, Value> = fields.0.clone();
    for name in ["system", "metadata", "thinking", "tools", "tool_choice", "stop", "n", "n_cmpl"] {
        members.remove(name);
    }
    if let Some(thinking) = fields.object(&["thinking"])? {
        let enabled = match thinking.get("type").and_then(Value::as_str) {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => {
                let found = thinking.get("type").unwrap_or(&Value::Null);
                return Err(wrong("thinking.type", found, "enabled, adaptive or disabled"));
            }
        };
        members.insert("chat_template_kwargs".into(), json!({ "enable_thinking": enabled }));
        if let Some(tokens) = thinking.get("budget_tokens").filter(|_| enabled) {
            members.insert("thinking_budget_tokens".into(), tokens.clone());
        }
    }
    if let Some(tools) = fields.list(&["tools"])? {
        let tool = |(index, each): (usize, &Value)| tool(&format!("tools[{index}]"), each);
        members.insert("tools".into(), tools.iter().enumerate().map(tool).collect::<ApiResult<_>>()?);
    }
    if let Some(choice) = fields.object(&["tool_choice"])? {
        members.insert("tool_choice".into(), tool_choice(choice)?);
        match choice.get("disable_parallel_tool_use") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(single)) => drop(members.insert("parallel_tool_calls".into(), json!(!single))),
            Some(other) => {
                return Err(wrong("tool_choice.disable_parallel_tool_use", other, "true or false"));
            }
        }
    }
    members.insert("messages".into(), Value::Array(messages));
    Ok(Fields(members))
}

/// A tool as OpenAI's.
fn tool(place: &str, tool: &Value) -> ApiResult<Value> {
    match tool.get("type") {
        None | Some(Value::Null) => {}
        Some(kind) if kind == "custom" => {}
        Some(kind) => {
            let message = format!("field '{place}.type': {kind} is not run here, expected custom");
            return Err(ApiError::invalid(message));
        }
    }
    let name = text_in(place, tool, "name")?;
    let schema = match tool.get("input_schema") {
        Some(Value::Object(_)) | None => &tool["input_schema"],
        Some(other) => return Err(wrong(&format!("{place}.input_schema"), other, "an object")),
    };
    let function = json!({ "name": name, "description": tool["description"], "parameters": schema });
    Ok(json!({ "type": "function", "function": function }))
}

/// What has to be called, as OpenAI's protocol says it.
fn tool_choice(choice: &Map<String, Value>) -> ApiResult<Value> {
    match choice.get("type").and_then(Value::as_str) {
        Some("any") => Ok(json!("required")),
        Some(kind @ ("auto" | "none")) => Ok(json!(kind)),
        Some("tool") => match choice.get("name") {
            Some(Value::String(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
            None | Some(Value::Null) => Err(missing("tool_choice.name")),
            Some(other) => Err(wrong("tool_choice.name", other, "a string")),
        },
        _ => {
            let found = choice.get("type").unwrap_or(&Value::Null);
            Err(ApiError::invalid(format!(
                "field 'tool_choice.type': {found}, expected auto, any, tool or none"
            )))
        }
    }
}

/// A text that has to be a member.
fn text_in<'a>(place: &str, value: &'a Value, name: &str) -> ApiResult<&'a str> {
    match value.get(name) {
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Err(missing(&format!("{place}.{name}"))),
        Some(other) => Err(wrong(&format!("{place}.{name}"), other, "a string")),
    }
}

/// A message as OpenAI's: calls and their results are messages and members of their own there.
fn message_of(place: &str, role: &str, content: &Value) -> ApiResult<Vec<Value>> {
    let blocks = match content {
        Value::String(_) => return Ok(vec![json!({ "role": role, "content": content })]),
        Value::Array(blocks) => blocks,
        Value::Null => return Err(missing(&format!("{place}.content"))),
        other => return Err(wrong(&format!("{place}.content"), other, "a string or a list of blocks")),
    };
    let (mut results, mut calls, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}.content[{index}]");
        match block.get("type").and_then(Value::as_str) {
            Some("tool_use") => {
                let input = match block.get("input") {
                    None | Some(Value::Null) => "{}".to_owned(),
                    Some(input @ Value::Object(_)) => input.to_string(),
                    Some(other) => return Err(wrong(&format!("{place}.input"), other, "an object")),
                };
                let function = json!({ "name": text_in(&place, block, "name")?, "arguments": input });
                calls.push(
                    json!({ "id": text_in(&place, block, "id")?, "type": "function", "function": function }),
                );
            }
            Some("tool_result") => {
                let text = match block.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => text_of(&format!("{place}.content"), content)?,
                };
                let call = text_in(&place, block, "tool_use_id")?;
                results.push(json!({ "role": "tool", "tool_call_id": call, "content": text }));
            }
            _ => {
                // What is no text is refused under the name that it has here.
                part_text(&place, block)?;
                texts.push(block.clone());
            }
        }
    }
    if !texts.is_empty() || !calls.is_empty() || results.is_empty() {
        let mut message = json!({ "role": role, "content": texts });
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        results.push(message);
    }
    Ok(results)
}

struct Anthropic {
    names: Names,
    prompt_tokens: usize,
    parts: Parts,
    /// The blocks of the answer so far.
    blocks: Vec<Value>,
    /// Whether the last one may get more text.
    open: bool,
    /// The arguments of the last call so far, JSON.
    input: String,
}

impl Anthropic {
    fn message(&self, content: Value, stop: (Value, Value), usage: Value) -> Value {
        json!({
            "id": self.names.id, "type": "message", "role": "assistant", "model": self.names.model,
            "content": content, "stop_reason": stop.0, "stop_sequence": stop.1, "usage": usage,
        })
    }

    /// Adds parts to the blocks and tells of it.
    fn add(&mut self, deltas: Vec<Delta>) -> Vec<Frame> {
        let mut frames = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.add_text("text", "text", "text_delta", &text, &mut frames),
                Delta::Reasoning(text) => {
                    self.add_text("thinking", "thinking", "thinking_delta", &text, &mut frames);
                }
                Delta::Call(name) => {
                    let id = identifier("toolu_");
                    self.start(
                        json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
                        &mut frames,
                    );
                    self.input.clear();
                }
                Delta::Arguments(text) => {
                    self.input.push_str(&text);
                    frames.push(self.delta(json!({ "type": "input_json_delta", "partial_json": text })));
                }
            }
        }
        frames
    }

    fn add_text(&mut self, kind: &str, member: &str, name: &str, text: &str, frames: &mut Vec<Frame>) {
        let same = self.open && self.blocks.last().is_some_and(|block| block["type"] == kind);
        if !same {
            let mut block = json!({ "type": kind, member: "" });
            if kind == "thinking" {
                block["signature"] = json!("");
            }
            self.start(block, frames);
        }
        if let Some(Value::String(whole)) = self.blocks.last_mut().and_then(|block| block.get_mut(member)) {
            whole.push_str(text);
        }
        frames.push(self.delta(json!({ "type": name, member: text })));
    }

    fn delta(&self, delta: Value) -> Frame {
        event("content_block_delta", json!({ "index": self.blocks.len().saturating_sub(1), "delta": delta }))
    }

    fn start(&mut self, block: Value, frames: &mut Vec<Frame>) {
        self.close(frames);
        let start = json!({ "index": self.blocks.len(), "content_block": block });
        frames.push(event("content_block_start", start));
        self.blocks.push(block);
        self.open = true;
    }

    fn close(&mut self, frames: &mut Vec<Frame>) {
        if std::mem::take(&mut self.open) {
            if let Some(last) = self.blocks.last_mut().filter(|block| block["type"] == "tool_use") {
                last["input"] = serde_json::from_str(&self.input).unwrap_or_else(|_| json!({}));
            }
            frames.push(event("content_block_stop", json!({ "index": self.blocks.len() - 1 })));
        }
    }

    fn stop(&self, reason: &Reason) -> (Value, Value) {
        let called = self.blocks.iter().any(|block| block["type"] == "tool_use");
        match reason {
            Reason::Limit => (json!("max_tokens"), Value::Null),
            _ if called => (json!("tool_use"), Value::Null),
            Reason::EndOfGeneration => (json!("end_turn"), Value::Null),
            Reason::Stop(word) => (json!("stop_sequence"), json!(word)),
        }
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

/// An event whose data begin with its name.
fn event(name: &'static str, value: Value) -> Frame {
    let mut all = Map::new();
    all.insert("type".into(), json!(name));
    if let Value::Object(members) = value {
        all.extend(members);
    }
    Frame::Event(name, Value::Object(all))
}

impl Protocol for Anthropic {
    fn begin(&mut self) -> Vec<Frame> {
        let usage = json!({
            "input_tokens": self.prompt_tokens, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
            "output_tokens": 0,
        });
        let message = self.message(json!([]), (Value::Null, Value::Null), usage);
        vec![event("message_start", json!({ "message": message }))]
    }

    fn output(&mut self, _: usize, output: &Output) -> Vec<Frame> {
        match output {
            Output::Progress { .. } => Vec::new(),
            Output::Piece(piece) => {
                let deltas = self.parts.deltas(&piece.text);
                self.add(deltas)
            }
            Output::Ending(ending) => {
                let deltas = self.parts.last_deltas(&ending.reason);
                let mut frames = self.add(deltas);
                self.close(&mut frames);
                let (reason, sequence) = self.stop(&ending.reason);
                let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
                frames.push(event("message_delta", json!({ "delta": delta, "usage": usage(ending) })));
                frames
            }
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        vec![event("message_stop", json!({}))]
    }

    fn whole(&mut self, endings: Vec<Ending>) -> Value {
        let Some(ending) = endings.first() else { return Value::Null };
        let mut deltas = self.parts.deltas(&ending.text);
        deltas.extend(self.parts.last_deltas(&ending.reason));
        // The blocks are what counts; there is no stream to tell.
        drop(self.add(deltas));
        self.close(&mut Vec::new());
        self.message(json!(self.blocks), self.stop(&ending.reason), usage(ending))
    }

    fn failure(&self, error: &ApiError) -> Frame {
        Frame::Event("error", error.anthropic())
    }
}
