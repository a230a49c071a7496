//! Conversations: checking messages and rendering them with the model's template.

use puna_chat::{Conversation, LocalTime};
use puna_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::app::{App, now};
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::speech::tools_as_text;

/// Most messages of one conversation.
const MOST_MESSAGES: usize = 10_000;
const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];

/// The prompt text of a chat request.
pub fn render(app: &App, fields: &Fields) -> ApiResult<String> {
    let list = fields.list(&["messages"])?.ok_or_else(|| missing("messages"))?;
    if list.is_empty() || list.len() > MOST_MESSAGES {
        let message = format!("field 'messages': {} messages, expected 1 to {MOST_MESSAGES}", list.len());
        return Err(ApiError::invalid(message));
    }
    let mut messages =
        list.iter().enumerate().map(|(index, value)| message(index, value)).collect::<ApiResult<Vec<_>>>()?;
    let defaults = &app.served.defaults;
    let assistant = |message: &Value| message["role"] == "assistant";
    let continued = match fields.get(&["continue_final_message"]) {
        None => defaults.prefill,
        Some((_, Value::String(_))) => true,
        Some(_) => fields.boolean(&["continue_final_message"])?.unwrap_or(defaults.prefill),
    };
    let mut begun = String::new();
    if let [.., before, last] = messages.as_slice()
        && continued
        && assistant(last)
        && assistant(before)
    {
        return Err(ApiError::invalid("field 'messages': two messages of the assistant at the end"));
    }
    let plain = |message: &Value| message.get("tool_calls").is_none();
    if continued && messages.len() > 1 && messages.last().is_some_and(|last| assistant(last) && plain(last)) {
        let last = messages.pop().unwrap_or_default();
        begun = last["content"].as_str().unwrap_or("").to_owned();
    }
    let mut extra = defaults.template_values.clone();
    if let Some(effort) = fields.text(&["reasoning_effort"])? {
        match effort {
            "none" => extra.insert("enable_thinking".into(), json!(false)),
            other => extra.insert("reasoning_effort".into(), json!(other)),
        };
    }
    extra.extend(fields.object(&["chat_template_kwargs"])?.cloned().unwrap_or_default());
    let tools = fields.list(&["tools"])?.filter(|tools| !tools.is_empty()).cloned().map(Value::Array);
    let none = fields.get(&["tool_choice"]).is_some_and(|(_, choice)| choice == "none");
    let mut tools = tools.filter(|_| !none);
    if let Some(Value::Array(list)) = tools.take_if(|_| !app.speech.template_has_tools) {
        messages = tools_as_text(messages, &list);
    }
    let conversation = Conversation {
        messages,
        tools,
        add_generation_prompt: fields.boolean(&["add_generation_prompt"])?.unwrap_or(true),
        extra,
        now: Some(LocalTime::from_seconds(i64::try_from(now()).unwrap_or(0))),
    };
    let mut text = with_system(app, conversation)?;
    text.push_str(&begun);
    Ok(text)
}

/// The tokens of a rendered conversation. The tokenizer puts the beginning token in front itself.
pub fn tokens(app: &App, text: &str) -> Vec<u32> {
    let tokenizer: &Tokenizer = &app.served.tokenizer;
    let bos = app.served.template.bos();
    let own = tokenizer.vocabulary().add_bos() && !bos.is_empty();
    let text = text.strip_prefix(bos).filter(|_| own).unwrap_or(text);
    tokenizer.encode(text, true, true)
}

/// Some templates refuse a system message, others drop it silently: then it becomes part of the next one.
fn with_system(app: &App, conversation: Conversation) -> ApiResult<String> {
    let template = &app.served.template;
    let plain = template.render(&conversation);
    let first = |index: usize| conversation.messages.get(index);
    let (Some(system), Some(next)) = (first(0), first(1)) else { return Ok(plain?) };
    let text = |message: &Value| message["content"].as_str().unwrap_or("").to_owned();
    if system["role"] != "system" || next["role"] != "user" {
        return Ok(plain?);
    }
    let (system_text, next_text) = (text(system), text(next));
    if plain.as_ref().is_ok_and(|text| text.contains(system_text.trim())) {
        return Ok(plain?);
    }
    let mut merged = conversation.clone();
    merged.messages.remove(0);
    if let Some(Value::Object(members)) = merged.messages.first_mut() {
        members.insert("content".into(), json!(format!("{system_text}\n\n{next_text}")));
    }
    Ok(template.render(&merged).or(plain)?)
}

/// A checked message as templates expect it: content as text, arguments of tool calls as objects.
fn message(index: usize, value: &Value) -> ApiResult<Value> {
    let place = format!("messages[{index}]");
    let Some(members) = value.as_object() else { return Err(wrong(&place, value, "an object")) };
    let mut members = members.clone();
    let role = match members.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.clone(),
        Some(other) => {
            let message = format!("field '{place}.role': {other}, expected one of {}", ROLES.join(", "));
            return Err(ApiError::invalid(message));
        }
        None => return Err(missing(&format!("{place}.role"))),
    };
    if role == "developer" {
        members.insert("role".into(), json!("system"));
    }
    let calls = match members.get("tool_calls") {
        None | Some(Value::Null) => None,
        Some(Value::Array(calls)) if calls.is_empty() => None,
        Some(Value::Array(calls)) => {
            let call = |(index, call)| tool_call(&format!("{place}.tool_calls[{index}]"), call);
            Some(calls.iter().enumerate().map(call).collect::<ApiResult<Vec<_>>>()?)
        }
        Some(other) => return Err(wrong(&format!("{place}.tool_calls"), other, "a list")),
    };
    members.remove("tool_calls");
    let content = match members.get("content") {
        None | Some(Value::Null) if role == "assistant" && calls.is_some() => String::new(),
        None | Some(Value::Null) => return Err(missing(&format!("{place}.content"))),
        Some(content) => text_of(&format!("{place}.content"), content)?,
    };
    members.insert("content".into(), json!(content));
    if let Some(calls) = calls {
        members.insert("tool_calls".into(), Value::Array(calls));
    }
    // Templates test whether members are there, not whether they are null.
    members.retain(|_, value| !value.is_null());
    Ok(Value::Object(members))
}

/// A text, or the texts of a list of parts.
pub fn text_of(place: &str, content: &Value) -> ApiResult<String> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong(place, other, "a string or a list of parts")),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        texts.extend(part_text(&format!("{place}[{index}]"), part)?);
    }
    Ok(texts.join("\n"))
}

/// The text of a part of content; none if it is reasoning.
pub fn part_text<'a>(place: &str, part: &'a Value) -> ApiResult<Option<&'a str>> {
    if !part.is_object() {
        return Err(wrong(place, part, "an object with type and text"));
    }
    match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => match part.get("text") {
            Some(Value::String(text)) => Ok(Some(text)),
            None | Some(Value::Null) => Err(missing(&format!("{place}.text"))),
            Some(other) => Err(wrong(&format!("{place}.text"), other, "a string")),
        },
        Some("thinking" | "redacted_thinking") => Ok(None),
        Some(kind) => Err(ApiError::invalid(format!(
            "field '{place}': type '{}', but this model takes text only",
            kind.chars().take(64).collect::<String>()
        ))),
        None => Err(missing(&format!("{place}.type"))),
    }
}

/// A tool call whose arguments are an object if they are one; what is none stays the text that it is.
fn tool_call(place: &str, call: &Value) -> ApiResult<Value> {
    let Some(function) = call.get("function").and_then(Value::as_object) else {
        return Err(wrong(place, call, "an object with a 'function'"));
    };
    if let Some(name) = function.get("name").filter(|name| !name.is_string()) {
        return Err(wrong(&format!("{place}.function.name"), name, "a string"));
    }
    let mut function: Map<String, Value> = function.clone();
    match function.get("arguments") {
        None | Some(Value::Null | Value::Object(_)) => {}
        Some(Value::String(text)) => {
            if let Ok(Value::Object(arguments)) = serde_json::from_str(text) {
                function.insert("arguments".into(), Value::Object(arguments));
            }
        }
        Some(other) => {
            return Err(wrong(&format!("{place}.function.arguments"), other, "a string or an object"));
        }
    }
    let mut call = call.as_object().cloned().unwrap_or_default();
    call.insert("function".into(), Value::Object(function));
    Ok(Value::Object(call))
}
