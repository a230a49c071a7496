//! `POST /v1/responses`: OpenAI's newer protocol.

use std::sync::Arc;

use axum::response::Response;
use puna_chat::dialects::Delta;
use serde_json::{Map, Value, json};

use crate::api::{Names, identifier, openai};
use crate::app::App;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::generate::{Ending, Output, Reason};
use crate::parts::Parts;
use crate::plan::members;
use crate::stream::{Frame, Protocol, answer, timings};

/// `POST /v1/responses`.
pub async fn responses(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let (plan, mut parts) = openai::chat_plan(app, &to_chat(fields)?, &["stop"])?;
            // One answer, as `n` is not a field of this protocol.
            let parts = parts.pop().ok_or_else(|| missing("input"))?;
            Ok((plan, Responses::new(app, fields, parts)))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// The request as one of the older protocol.
pub fn to_chat(fields: &Fields) -> ApiResult<Fields> {
    if fields.get(&["previous_response_id"]).is_some() {
        return Err(ApiError::invalid(
            "field 'previous_response_id': answers are not kept, send the conversation",
        ));
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
                add_item(index, item, &mut messages)?;
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
    let tools = fields.list(&["tools"])?.map(|tools| tools.iter().map(tool).collect::<ApiResult<Value>>());
    let choice = fields.get(&["tool_choice"]).map(|(_, choice)| choice.clone());
    for name in ["input", "instructions", "text", "reasoning", "tools", "tool_choice", "n", "n_cmpl"] {
        all.remove(name);
    }
    if let Some(tools) = tools.transpose()? {
        all.insert("tools".into(), tools);
    }
    if let Some(mut choice) = choice {
        if choice["type"] == "function" && choice["name"].is_string() {
            choice = json!({ "type": "function", "function": { "name": choice["name"] } });
        }
        all.insert("tool_choice".into(), choice);
    }
    all.insert("messages".into(), Value::Array(messages));
    Ok(Fields(all))
}

/// A function as the older protocol has it.
fn tool(tool: &Value) -> ApiResult<Value> {
    if tool["type"] != "function" || !tool["name"].is_string() {
        return Err(wrong("tools", tool, "objects of type function with a name"));
    }
    let mut function = tool.as_object().cloned().unwrap_or_default();
    function.remove("type");
    Ok(json!({ "type": "function", "function": function }))
}

/// An item of the input as messages of the older protocol.
fn add_item(index: usize, item: &Value, messages: &mut Vec<Value>) -> ApiResult<()> {
    match item.get("type").and_then(Value::as_str).unwrap_or("message") {
        "message" => messages.push(json!({ "role": item["role"], "content": item["content"] })),
        "reasoning" => {}
        "function_call" => {
            let function = json!({ "name": item["name"], "arguments": item["arguments"] });
            let call = json!({ "id": item["call_id"], "type": "function", "function": function });
            // Calls of one turn are one message, which may have text too.
            match messages.last_mut() {
                Some(last) if last["role"] == "assistant" => match &mut last["tool_calls"] {
                    Value::Array(calls) => calls.push(call),
                    other => *other = json!([call]),
                },
                _ => messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
            }
        }
        "function_call_output" => {
            let output = &item["output"];
            messages.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": output }));
        }
        other => {
            let message = format!(
                "field 'input[{index}]': type '{other}', expected message, reasoning, function_call or function_call_output"
            );
            return Err(ApiError::invalid(message));
        }
    }
    Ok(())
}

struct Responses {
    names: Names,
    parts: Parts,
    /// What the request said of tools, repeated in the answer.
    tools: Value,
    tool_choice: Value,
    parallel: bool,
    items: Vec<Item>,
    /// Whether the last one may get more text.
    open: bool,
    sequence: u64,
    last: Option<Ending>,
}

/// An item of the output.
struct Item {
    kind: Kind,
    id: String,
    /// Text of the item; of a call its arguments.
    text: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { name: String, call: String },
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
        };
        Self { kind, id: identifier(prefix), text: String::new() }
    }

    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] }),
        }
    }

    fn json(&self, status: &str) -> Value {
        let content = if status == "in_progress" { json!([]) } else { json!([self.part()]) };
        match &self.kind {
            Kind::Reasoning => json!({
                "type": "reasoning", "id": self.id, "summary": [], "content": content, "encrypted_content": "",
                "status": status,
            }),
            Kind::Message => json!({
                "type": "message", "id": self.id, "role": "assistant", "status": status, "content": content,
            }),
            Kind::Call { name, call } => json!({
                "type": "function_call", "id": self.id, "call_id": call, "name": name, "arguments": self.text,
                "status": status,
            }),
        }
    }

    /// Names of the events of its text: more of it, and all of it.
    fn events(&self) -> (&'static str, &'static str) {
        match self.kind {
            Kind::Reasoning => ("response.reasoning_text.delta", "response.reasoning_text.done"),
            Kind::Message => ("response.output_text.delta", "response.output_text.done"),
            Kind::Call { .. } => {
                ("response.function_call_arguments.delta", "response.function_call_arguments.done")
            }
        }
    }
}

impl Responses {
    fn new(app: &App, fields: &Fields, parts: Parts) -> Self {
        let member = |name: &str| fields.get(&[name]).map(|(_, value)| value.clone());
        Self {
            names: Names::new(app, "resp_"),
            parts,
            tools: member("tools").unwrap_or_else(|| json!([])),
            tool_choice: member("tool_choice").unwrap_or_else(|| json!("auto")),
            parallel: member("parallel_tool_calls").is_none_or(|parallel| parallel != json!(false)),
            items: Vec::new(),
            open: false,
            sequence: 0,
            last: None,
        }
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
            "instructions": null, "metadata": {}, "parallel_tool_calls": self.parallel, "tool_choice": self.tool_choice,
            "tools": self.tools, "temperature": null, "top_p": null,
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

    /// Adds parts to the items and tells of it.
    fn add(&mut self, deltas: Vec<Delta>) -> Vec<Frame> {
        let mut frames = Vec::new();
        for delta in deltas {
            let (kind, text) = match delta {
                Delta::Reasoning(text) => (Some(Kind::Reasoning), text),
                Delta::Content(text) => (Some(Kind::Message), text),
                Delta::Call(name) => {
                    self.start(Kind::Call { name, call: identifier("call_") }, &mut frames);
                    continue;
                }
                Delta::Arguments(text) => (None, text),
            };
            let same = |item: &Item| kind.as_ref().is_none_or(|kind| item.kind == *kind);
            match kind {
                Some(kind) if !self.open || !self.items.last().is_some_and(same) => {
                    self.start(kind, &mut frames);
                }
                _ => {}
            }
            let Some(item) = self.items.last_mut() else { continue };
            item.text.push_str(&text);
            let name = item.events().0;
            let place = self.place(json!({ "delta": text }));
            frames.push(self.event(name, place));
        }
        frames
    }

    /// The place of the last item, with more members.
    fn place(&self, more: Value) -> Value {
        let index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last() else { return more };
        let mut all = members(json!({ "item_id": item.id, "output_index": index }));
        match item.kind {
            Kind::Call { .. } => {}
            Kind::Reasoning => drop(all.insert("content_index".into(), json!(0))),
            Kind::Message => {
                all.insert("content_index".into(), json!(0));
                if more.get("part").is_none() {
                    all.insert("logprobs".into(), json!([]));
                }
            }
        }
        all.extend(members(more));
        Value::Object(all)
    }

    fn start(&mut self, kind: Kind, frames: &mut Vec<Frame>) {
        self.close("completed", frames);
        let item = Item::new(kind);
        let (json, part, call) =
            (item.json("in_progress"), item.part(), matches!(item.kind, Kind::Call { .. }));
        self.items.push(item);
        self.open = true;
        let added = json!({ "output_index": self.items.len() - 1, "item": json });
        frames.push(self.event("response.output_item.added", added));
        if !call {
            let place = self.place(json!({ "part": part }));
            frames.push(self.event("response.content_part.added", place));
        }
    }

    fn close(&mut self, status: &str, frames: &mut Vec<Frame>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Some(item) = self.items.last() else { return };
        let (done, json, part, text) = (item.events().1, item.json(status), item.part(), item.text.clone());
        let call = matches!(item.kind, Kind::Call { .. });
        let member = if call { "arguments" } else { "text" };
        let place = self.place(json!({ member: text }));
        frames.push(self.event(done, place));
        if !call {
            let place = self.place(json!({ "part": part }));
            frames.push(self.event("response.content_part.done", place));
        }
        let all = json!({ "output_index": self.items.len() - 1, "item": json });
        frames.push(self.event("response.output_item.done", all));
    }

    /// All items; one of an answer that a limit ended is not complete.
    fn output_items(&self, status: &str) -> Value {
        let last = self.items.len().saturating_sub(1);
        let item =
            |(index, item): (usize, &Item)| item.json(if index == last { status } else { "completed" });
        self.items.iter().enumerate().map(item).collect()
    }
}

fn status(reason: &Reason) -> &'static str {
    if *reason == Reason::Limit { "incomplete" } else { "completed" }
}

impl Protocol for Responses {
    fn begin(&mut self) -> Vec<Frame> {
        let response = self.response("in_progress", json!([]), None);
        vec![
            self.event("response.created", json!({ "response": response })),
            self.event("response.in_progress", json!({ "response": response })),
        ]
    }

    fn output(&mut self, _: usize, output: &Output) -> Vec<Frame> {
        match output {
            Output::Progress { .. } => Vec::new(),
            Output::Piece(piece) => {
                let deltas = self.parts.deltas(&piece.text);
                self.add(deltas)
            }
            Output::Ending(ending) => {
                self.last = Some((**ending).clone());
                let deltas = self.parts.last_deltas(&ending.reason);
                self.add(deltas)
            }
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        let Some(ending) = self.last.take() else { return Vec::new() };
        let status = status(&ending.reason);
        let mut frames = Vec::new();
        self.close(status, &mut frames);
        let response = self.response(status, self.output_items(status), Some(&ending));
        let last = if status == "completed" { "response.completed" } else { "response.incomplete" };
        frames.push(self.event(last, json!({ "response": response })));
        frames
    }

    fn whole(&mut self, endings: Vec<Ending>) -> Value {
        let Some(ending) = endings.into_iter().next() else { return Value::Null };
        let mut deltas = self.parts.deltas(&ending.text);
        deltas.extend(self.parts.last_deltas(&ending.reason));
        // The items are what counts; there is no stream to tell.
        drop(self.add(deltas));
        let status = status(&ending.reason);
        self.response(status, self.output_items(status), Some(&ending))
    }

    fn failure(&self, error: &ApiError) -> Frame {
        let body = json!({
            "type": "error", "code": error.row().name, "message": error.message, "param": null,
            "sequence_number": self.sequence,
        });
        Frame::Event("error", body)
    }
}
