//! `POST /v1/responses`: OpenAI's newer protocol.

use std::sync::Arc;

use axum::response::Response;
use puna_chat::dialects::Delta;
use serde_json::{Map, Value, json};

use crate::api::{Names, identifier, openai};
use crate::app::App;
use crate::chat::text_of;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::generate::{Ending, Output, Reason};
use crate::parts::Parts;
use crate::plan::{Plan, members};
use crate::stream::{Frame, Protocol, answer, timings};

/// Fields of the older protocol, and what they are called in this one.
pub const NAMES: &[(&str, &str)] = &[
    ("messages", "input"),
    ("response_format.schema", "text.format.schema"),
    ("response_format.json_schema", "text.format.schema"),
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
];

/// `POST /v1/responses`.
pub async fn responses(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let chat = to_chat(fields)?;
            let planned = openai::chat_plan(app, &chat, &["stop"]);
            let (plan, mut parts) = planned.map_err(|error| error.in_terms_of(NAMES))?;
            // One answer, as `n` is not a field of this protocol.
            let parts = parts.pop().ok_or_else(|| missing("input"))?;
            let protocol = Responses::new(app, fields, &plan, parts);
            Ok((plan, protocol))
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
    if fields.integer(&["top_logprobs"], 0..=20)?.is_some_and(|top| top > 0) {
        return Err(ApiError::invalid(
            "field 'top_logprobs' is not supported here: /v1/chat/completions tells log-probabilities",
        ));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text(&["instructions"])? {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match fields.get(&["input"]) {
        None => return Err(missing("input")),
        Some((_, Value::String(text))) => messages.push(json!({ "role": "user", "content": text })),
        Some((_, Value::Array(items))) if items.is_empty() => {
            return Err(ApiError::invalid("field 'input': no items, expected at least one"));
        }
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
    let tool = |(index, each): (usize, &Value)| tool(&format!("tools[{index}]"), each);
    let tools = fields.list(&["tools"])?;
    let tools = tools.map(|tools| tools.iter().enumerate().map(tool).collect::<ApiResult<Value>>());
    let choice = fields.get(&["tool_choice"]).map(|(_, choice)| choice.clone());
    for name in
        ["input", "instructions", "text", "reasoning", "tools", "tool_choice", "n", "n_cmpl", "top_logprobs"]
    {
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

/// Who may say something.
const ROLES: &[&str] = &["user", "assistant", "system", "developer"];

/// A function as the older protocol has it.
fn tool(place: &str, tool: &Value) -> ApiResult<Value> {
    if tool["type"] != "function" || !tool["name"].is_string() {
        return Err(wrong(place, tool, "an object of type function with a name"));
    }
    if !(tool["parameters"].is_object() || tool["parameters"].is_null()) {
        return Err(wrong(&format!("{place}.parameters"), &tool["parameters"], "an object"));
    }
    let mut function = tool.as_object().cloned().unwrap_or_default();
    function.remove("type");
    Ok(json!({ "type": "function", "function": function }))
}

/// An item of the input as messages of the older protocol.
fn add_item(index: usize, item: &Value, messages: &mut Vec<Value>) -> ApiResult<()> {
    let place = format!("input[{index}]");
    let text = |name: &str| match item.get(name) {
        Some(Value::String(text)) => Ok(text.as_str()),
        None | Some(Value::Null) => Err(missing(&format!("{place}.{name}"))),
        Some(other) => Err(wrong(&format!("{place}.{name}"), other, "a string")),
    };
    if !item.is_object() {
        return Err(wrong(&place, item, "an object"));
    }
    match item.get("type").and_then(Value::as_str).unwrap_or("message") {
        "message" => {
            let role = text("role")?;
            if !ROLES.contains(&role) {
                return Err(ApiError::invalid(format!(
                    "field '{place}.role': {}, expected one of {}",
                    item["role"],
                    ROLES.join(", ")
                )));
            }
            let content = item.get("content").filter(|content| !content.is_null());
            let content = content.ok_or_else(|| missing(&format!("{place}.content")))?;
            text_of(&format!("{place}.content"), content)?;
            messages.push(json!({ "role": role, "content": content }));
        }
        "reasoning" => {}
        "function_call" => {
            let function = json!({ "name": text("name")?, "arguments": text("arguments")? });
            let call = json!({ "id": text("call_id")?, "type": "function", "function": function });
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
            let output = item.get("output").filter(|output| !output.is_null());
            let output = output.ok_or_else(|| missing(&format!("{place}.output")))?;
            text_of(&format!("{place}.output"), output)?;
            messages.push(json!({ "role": "tool", "tool_call_id": text("call_id")?, "content": output }));
        }
        other => {
            let message = format!(
                "field '{place}.type': '{other}', expected message, reasoning, function_call or function_call_output"
            );
            return Err(ApiError::invalid(message));
        }
    }
    Ok(())
}

struct Responses {
    names: Names,
    parts: Parts,
    /// What the request said, or what holds where it said nothing, repeated in the answer.
    settings: Map<String, Value>,
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
    fn new(app: &App, fields: &Fields, plan: &Plan, parts: Parts) -> Self {
        Self {
            names: Names::new(app, "resp_"),
            parts,
            settings: settings(fields, plan),
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

    fn response(&mut self, status: &str, output: Value, ending: Option<&Ending>) -> Value {
        let mut all = members(json!({
            "id": self.names.id, "object": "response", "created_at": self.names.created, "status": status,
            "model": self.names.model, "output": output, "error": null, "incomplete_details": null,
        }));
        all.extend(self.settings.clone());
        if let Some(ending) = ending {
            all.insert("completed_at".into(), json!(crate::app::now()));
            if ending.reason == Reason::Limit {
                all.insert("incomplete_details".into(), json!({ "reason": "max_output_tokens" }));
            }
            let (input, output) = (ending.prompt_tokens, ending.tokens.len());
            let usage = json!({
                "input_tokens": input, "output_tokens": output, "total_tokens": input + output,
                "input_tokens_details": { "cached_tokens": ending.timings.cached_tokens },
                "output_tokens_details": { "reasoning_tokens": self.parts.reasoning_tokens(&ending.tokens) },
            });
            all.insert("usage".into(), usage);
            all.insert("timings".into(), timings(&ending.timings));
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

/// What an answer repeats of its request, with the values that hold where it said nothing.
fn settings(fields: &Fields, plan: &Plan) -> Map<String, Value> {
    let given =
        |name: &str, otherwise: Value| fields.get(&[name]).map_or(otherwise, |(_, value)| value.clone());
    let predict = plan.requests.first().and_then(|request| u32::try_from(request.predict).ok());
    let parallel = given("parallel_tool_calls", Value::Null) != json!(false);
    members(json!({
        "background": false,
        "instructions": given("instructions", Value::Null),
        "max_output_tokens": predict,
        "metadata": given("metadata", json!({})),
        "parallel_tool_calls": parallel,
        "previous_response_id": null,
        "reasoning": given("reasoning", json!({ "effort": null, "summary": null })),
        "store": false,
        "temperature": plan.settings["temperature"],
        "text": given("text", json!({ "format": { "type": "text" } })),
        "tool_choice": given("tool_choice", json!("auto")),
        "tools": given("tools", json!([])),
        "top_logprobs": 0,
        "top_p": plan.settings["top_p"],
        "truncation": "disabled",
    }))
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
        let items = self.output_items(status);
        let response = self.response(status, items, Some(&ending));
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
        let items = self.output_items(status);
        self.response(status, items, Some(&ending))
    }

    fn failure(&self, error: &ApiError) -> Frame {
        let body = json!({
            "type": "error", "code": error.row().name, "message": error.message, "param": null,
            "sequence_number": self.sequence,
        });
        Frame::Event("error", body)
    }
}
