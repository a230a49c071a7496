//! `/api/…`: Ollama's protocol, so that its clients work unchanged. Streams are lines of JSON.

use std::sync::Arc;

use axum::response::Response;
use puna_chat::LocalTime;
use puna_chat::dialects::Delta;
use serde_json::{Map, Value, json};

use crate::api::openai;
use crate::app::{App, now};
use crate::edge::Call;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::generate::{Ending, Output, Reason};
use crate::parts::Parts;
use crate::plan::{Plan, members};
use crate::prompt;
use crate::stream::{Frame, Protocol, answer, json_response};

/// `POST /api/chat`.
pub async fn chat(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let loaded =
        call.prepare(&app, |_, fields| only_loads(fields, is_empty(fields.list(&["messages"])?), "messages"));
    let loaded = loaded.await?;
    if loaded {
        return Ok(json_response(&Ollama::new(&app, Style::Chat, None).loaded()));
    }
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let names = names(fields)?;
            let planned = to_chat(fields).and_then(|chat| openai::chat_plan(app, &chat, &["stop"]));
            let (plan, mut parts) = planned.map_err(|error| error.in_terms_of(&names))?;
            Ok((plan, Ollama::new(app, Style::Chat, parts.pop())))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// `POST /api/generate`.
pub async fn generate(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let loaded = call.prepare(&app, |_, fields| {
        only_loads(fields, fields.text(&["prompt"])?.is_none_or(str::is_empty), "prompt")
    });
    let loaded = loaded.await?;
    if loaded {
        return Ok(json_response(&Ollama::new(&app, Style::Text, None).loaded()));
    }
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let names = names(fields)?;
            continued(app, fields).map_err(|error| error.in_terms_of(&names))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// The plan for a prompt, as it is or as a message.
fn continued(app: &App, fields: &Fields) -> ApiResult<(Plan, Ollama)> {
    for name in ["suffix", "template", "images"] {
        let Some((_, value)) = fields.get(&[name]) else { continue };
        if value.as_str().is_none_or(|text| !text.is_empty()) && *value != json!([]) {
            let reason = match name {
                "suffix" => "is not supported here, /infill fills gaps",
                "template" => "is the server's (--chat-template); with 'raw' the prompt is taken as it is",
                _ => "this model takes text only",
            };
            return Err(ApiError::invalid(format!("field '{name}': {reason}")));
        }
    }
    let mut all = common(fields)?;
    let text = fields.text(&["prompt"])?.unwrap_or("");
    if fields.boolean(&["raw"])?.unwrap_or(false) {
        let prompts = prompt::prompts("prompt", &json!(text), &app.served.tokenizer)?;
        let plan = Plan::new(app, &Fields(all), prompts, None, &["stop"])?;
        return Ok((plan, Ollama::new(app, Style::Text, None)));
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.text(&["system"])?.filter(|text| !text.is_empty()) {
        messages.push(json!({ "role": "system", "content": system }));
    }
    messages.push(json!({ "role": "user", "content": text }));
    all.insert("messages".into(), Value::Array(messages));
    let (plan, mut parts) = openai::chat_plan(app, &Fields(all), &["stop"])?;
    Ok((plan, Ollama::new(app, Style::Text, parts.pop())))
}

/// `GET /api/tags`.
pub async fn tags(app: Arc<App>, _: Call) -> ApiResult<Response> {
    Ok(json_response(&json!({ "models": [model(&app)] })))
}

/// `GET /api/ps`.
pub async fn running(app: Arc<App>, _: Call) -> ApiResult<Response> {
    let mut model = members(model(&app));
    model.insert("expires_at".into(), json!("9999-12-31T23:59:59Z"));
    model.insert("size_vram".into(), json!(0));
    model.insert("context_length".into(), json!(app.served.engine.context()));
    Ok(json_response(&json!({ "models": [model] })))
}

/// `GET /api/version`.
pub async fn version(_: Arc<App>, _: Call) -> ApiResult<Response> {
    Ok(json_response(&program_version()))
}

/// The program's version.
pub fn program_version() -> Value {
    json!({ "version": env!("CARGO_PKG_VERSION") })
}

/// `POST /api/show`.
pub async fn show(app: Arc<App>, call: Call) -> ApiResult<Response> {
    // There is one model, whatever the name; the body is checked all the same.
    call.prepare(&app, |_, fields| {
        fields.text(&["model", "name"])?.map(drop).ok_or_else(|| missing("model"))
    })
    .await?;
    let facts = &app.served.facts;
    let architecture = &facts.architecture;
    let information = json!({
        "general.architecture": architecture,
        "general.parameter_count": facts.parameters,
        format!("{architecture}.context_length"): facts.context_train,
        format!("{architecture}.embedding_length"): facts.embedding,
    });
    Ok(json_response(&json!({
        "modelfile": format!("FROM {}\n", facts.path),
        "parameters": "",
        "template": app.served.template.source(),
        "details": details(&app),
        "model_info": information,
        "capabilities": ["completion", "tools"],
        "modified_at": time(app.front.started),
    })))
}

fn model(app: &App) -> Value {
    let facts = &app.served.facts;
    json!({
        "name": facts.name, "model": facts.name, "modified_at": time(app.front.started), "size": facts.bytes,
        "digest": "", "details": details(app),
    })
}

fn details(app: &App) -> Value {
    let facts = &app.served.facts;
    let millions = facts.parameters as f64 / 1e6;
    let size = if millions < 1000.0 { format!("{millions:.2}M") } else { format!("{:.1}B", millions / 1e3) };
    json!({
        "parent_model": "", "format": "gguf", "family": facts.architecture, "families": [facts.architecture],
        "parameter_size": size, "quantization_level": facts.file_type,
    })
}

/// Seconds since 1970 as RFC 3339 has them.
pub fn time(seconds: u64) -> String {
    LocalTime::from_seconds(i64::try_from(seconds).unwrap_or(i64::MAX)).format("%Y-%m-%dT%H:%M:%SZ")
}

/// Whether a request only wants the model loaded: it names the model and asks nothing.
fn only_loads(fields: &Fields, empty: bool, name: &str) -> ApiResult<bool> {
    match empty && fields.text(&["model", "name"])?.is_none() {
        true => Err(missing(name)),
        false => Ok(empty),
    }
}

fn is_empty(list: Option<&Vec<Value>>) -> bool {
    list.is_none_or(Vec::is_empty)
}

/// Fields of this server that are none of Ollama's: they stand beside its own, or among the options.
const EXTENSIONS: &[&str] = &[
    "deadline_ms",
    "priority",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "reasoning_budget_message",
    "reasoning_format",
    "tool_choice",
    "parallel_tool_calls",
    "cache_prompt",
    "id_slot",
    "lora",
];

/// Options that do not change an answer; the context is the server's.
const IDLE: &[&str] = &["num_ctx", "num_batch", "num_gpu", "num_thread", "main_gpu"];

/// Fields of the native protocol, and what they are called in this request.
fn names(fields: &Fields) -> ApiResult<Vec<(String, String)>> {
    let options = fields.object(&["options"])?.into_iter().flatten();
    let option = |name: &str| (name.to_owned(), format!("options.{name}"));
    let options = options.map(|(name, _)| name.as_str()).filter(|name| fields.get(&[*name]).is_none());
    let own = [("json_schema", "format"), ("response_format", "format"), ("reasoning_effort", "think")];
    let own = own.map(|(name, theirs)| (name.to_owned(), theirs.to_owned()));
    Ok(options.map(option).chain(own).collect())
}

/// Fields that both endpoints share, as the native protocol has them.
fn common(fields: &Fields) -> ApiResult<Map<String, Value>> {
    let mut all = fields.object(&["options"])?.cloned().unwrap_or_default();
    let options = Fields(all.clone());
    let int = i64::from(i32::MIN)..=i64::from(i32::MAX);
    for name in IDLE {
        options.integer(&[name], int.clone())?;
    }
    options.boolean(&["use_mmap"])?;
    for name in ["use_mmap", "num_predict", "num_keep"].iter().chain(IDLE) {
        all.remove(*name);
    }
    // Below -1 it means to fill the context, which is the same here.
    if let Some(predict) = options.integer(&["num_predict"], int)? {
        all.insert("n_predict".into(), json!(predict.max(-1)));
    }
    if let Some(keep) = options.integer(&["num_keep"], -1..=i64::from(i32::MAX))? {
        all.insert("n_keep".into(), json!(keep));
    }
    for name in EXTENSIONS {
        if let Some((_, value)) = fields.get(&[name]) {
            all.insert((*name).into(), value.clone());
        }
    }
    all.insert("stream".into(), json!(fields.boolean(&["stream"])?.unwrap_or(true)));
    match fields.get(&["format"]) {
        None => {}
        Some((_, Value::String(text))) if text.is_empty() => {}
        Some((_, Value::String(text))) if text == "json" => {
            only(all.insert("response_format".into(), json!({ "type": "json_object" })))?;
        }
        Some((_, schema @ Value::Object(_))) => only(all.insert("json_schema".into(), schema.clone()))?,
        Some((name, other)) => return Err(wrong(name, other, "\"json\" or a JSON schema")),
    }
    match fields.get(&["think"]) {
        None => {}
        Some((_, Value::Bool(on))) => {
            all.insert("chat_template_kwargs".into(), json!({ "enable_thinking": on }));
        }
        Some((_, Value::String(effort))) => {
            all.insert("reasoning_effort".into(), json!(effort));
        }
        Some((name, other)) => return Err(wrong(name, other, "true, false, or an effort in words")),
    }
    Ok(all)
}

/// Refuses a format beside one that the options had in its place.
fn only(replaced: Option<Value>) -> ApiResult<()> {
    match replaced {
        None | Some(Value::Null) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            "fields 'format' and 'options' both say what the answer has to follow: give one of them",
        )),
    }
}

/// The request as one of OpenAI's.
fn to_chat(fields: &Fields) -> ApiResult<Fields> {
    let mut all = common(fields)?;
    let list = fields.list(&["messages"])?.ok_or_else(|| missing("messages"))?;
    let mut messages = list.clone();
    for (index, message) in messages.iter_mut().enumerate() {
        let Some(message) = message.as_object_mut() else { continue };
        match message.remove("images") {
            None | Some(Value::Null) => {}
            Some(Value::Array(images)) if images.is_empty() => {}
            Some(_) => {
                let message = format!("field 'messages[{index}].images': this model takes text only");
                return Err(ApiError::invalid(message));
            }
        }
        if let Some(thinking) = message.remove("thinking") {
            message.insert("reasoning_content".into(), thinking);
        }
        if let Some(name) = message.remove("tool_name") {
            message.insert("name".into(), name);
        }
    }
    all.insert("messages".into(), Value::Array(messages));
    if let Some((_, tools)) = fields.get(&["tools"]) {
        all.insert("tools".into(), tools.clone());
    }
    Ok(Fields(all))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Text,
    Chat,
}

struct Ollama {
    model: String,
    style: Style,
    /// Nothing is told apart in a raw answer.
    parts: Option<Parts>,
    /// A call that may get more arguments.
    call: Option<(String, String)>,
}

impl Ollama {
    fn new(app: &App, style: Style, parts: Option<Parts>) -> Self {
        Self { model: app.served.facts.name.clone(), style, parts, call: None }
    }

    /// The answer to a request that only wants the model loaded, which it is.
    fn loaded(&self) -> Value {
        let mut all = self.chunk("", "", Vec::new());
        all.insert("done".into(), json!(true));
        all.insert("done_reason".into(), json!("load"));
        Value::Object(all)
    }

    fn chunk(&self, content: &str, thinking: &str, calls: Vec<Value>) -> Map<String, Value> {
        let mut all = members(json!({ "model": self.model, "created_at": time(now()) }));
        let mut message = Map::new();
        let (place, name) = match self.style {
            Style::Text => (&mut all, "response"),
            Style::Chat => {
                message.insert("role".into(), json!("assistant"));
                (&mut message, "content")
            }
        };
        place.insert(name.into(), json!(content));
        if !thinking.is_empty() {
            place.insert("thinking".into(), json!(thinking));
        }
        if !calls.is_empty() {
            place.insert("tool_calls".into(), Value::Array(calls));
        }
        if self.style == Style::Chat {
            all.insert("message".into(), Value::Object(message));
        }
        all.insert("done".into(), json!(false));
        all
    }

    /// Content, reasoning and whole calls of these parts; a call is whole once something else follows it.
    fn gather(&mut self, deltas: Vec<Delta>, last: bool) -> (String, String, Vec<Value>) {
        let (mut content, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
        for delta in deltas {
            match delta {
                Delta::Arguments(text) => {
                    if let Some((_, arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                    continue;
                }
                Delta::Content(text) => content.push_str(&text),
                Delta::Reasoning(text) => thinking.push_str(&text),
                Delta::Call(name) => {
                    calls.extend(self.call.replace((name, String::new())).map(call_json));
                    continue;
                }
            }
            calls.extend(self.call.take().map(call_json));
        }
        if last {
            calls.extend(self.call.take().map(call_json));
        }
        (content, thinking, calls)
    }

    fn deltas(&mut self, text: &str, last: Option<&Reason>) -> Vec<Delta> {
        match &mut self.parts {
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Content(text.to_owned())],
            Some(parts) => {
                let mut deltas = parts.deltas(text);
                if let Some(reason) = last {
                    deltas.extend(parts.last_deltas(reason));
                }
                deltas
            }
        }
    }

    fn last(&self, chunk: &mut Map<String, Value>, ending: &Ending) {
        let reason = if ending.reason == Reason::Limit { "length" } else { "stop" };
        let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let timings = &ending.timings;
        chunk.extend(members(json!({
            "done": true,
            "done_reason": reason,
            "total_duration": nanoseconds(timings.prompt + timings.generation),
            "load_duration": 0,
            "prompt_eval_count": ending.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.prompt),
            "eval_count": ending.tokens.len(),
            "eval_duration": nanoseconds(timings.generation),
        })));
    }
}

fn call_json((name, arguments): (String, String)) -> Value {
    // Clients expect an object; arguments that are none stay the text that they are.
    let arguments = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
    json!({ "function": { "name": name, "arguments": arguments } })
}

impl Protocol for Ollama {
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn output(&mut self, _: usize, output: &Output) -> Vec<Frame> {
        match output {
            Output::Progress { .. } => Vec::new(),
            Output::Piece(piece) => {
                let deltas = self.deltas(&piece.text, None);
                let (content, thinking, calls) = self.gather(deltas, false);
                if content.is_empty() && thinking.is_empty() && calls.is_empty() {
                    return Vec::new();
                }
                vec![Frame::Line(Value::Object(self.chunk(&content, &thinking, calls)))]
            }
            Output::Ending(ending) => {
                let deltas = self.deltas("", Some(&ending.reason));
                let (content, thinking, calls) = self.gather(deltas, true);
                let mut frames = Vec::new();
                if !calls.is_empty() || !content.is_empty() || !thinking.is_empty() {
                    frames.push(Frame::Line(Value::Object(self.chunk(&content, &thinking, calls))));
                }
                let mut chunk = self.chunk("", "", Vec::new());
                self.last(&mut chunk, ending);
                frames.push(Frame::Line(Value::Object(chunk)));
                frames
            }
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn whole(&mut self, endings: Vec<Ending>) -> Value {
        let Some(ending) = endings.first() else { return Value::Null };
        let deltas = self.deltas(&ending.text, Some(&ending.reason));
        let (content, thinking, calls) = self.gather(deltas, true);
        let mut chunk = self.chunk(&content, &thinking, calls);
        self.last(&mut chunk, ending);
        Value::Object(chunk)
    }

    fn failure(&self, error: &ApiError) -> Frame {
        Frame::Line(error.plain())
    }
}
