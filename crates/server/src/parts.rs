//! An answer of a chat in OpenAI's members: content, reasoning, tool calls.

use std::collections::HashSet;
use std::sync::Arc;

use puna_chat::dialects::{Delta, OutputParser, Tools};
use serde_json::{Map, Value, json};

use crate::api::identifier;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;
use crate::speech::Speech;

/// Tells the parts of one answer apart.
pub struct Parts {
    parser: OutputParser,
    calls: usize,
}

/// What is looked for in answers.
#[derive(Clone, Debug)]
pub struct Wanted {
    reasoning: bool,
    tools: Tools,
}

impl Wanted {
    /// As a request says: reasoning unless `reasoning_format` is `none` (without the field `reasoning` decides), calls
    /// if there are tools.
    pub fn new(fields: &Fields, reasoning: bool) -> ApiResult<Self> {
        let reasoning = match fields.text(&["reasoning_format"])? {
            None => reasoning,
            Some("auto" | "deepseek") => true,
            Some("none") => false,
            Some(other) => {
                let message = format!("field 'reasoning_format': '{other}', expected none, auto or deepseek");
                return Err(ApiError::invalid(message));
            }
        };
        let none = fields.get(&["tool_choice"]).is_some_and(|(_, choice)| choice == "none");
        let tools = fields.list(&["tools"])?.filter(|_| !none).map_or(&[][..], Vec::as_slice);
        Ok(Self { reasoning, tools: Tools::from_json(tools) })
    }

    /// For one answer to this prompt.
    pub fn parts(&self, app: &App, prompt: &str) -> Parts {
        Parts { parser: app.speech.parser(prompt, self.reasoning, self.tools.clone()), calls: 0 }
    }
}

impl Wanted {
    /// The control tokens that must be seen to tell the parts of an answer to this prompt apart.
    pub fn shown(&self, app: &App, prompt: &str) -> Arc<HashSet<u32>> {
        Speech::shown(&self.parts(app, prompt).parser, &app.served.tokenizer)
    }
}

impl Parts {
    /// Whether there was a call.
    pub fn called(&self) -> bool {
        self.calls > 0
    }

    /// New text as `delta` members of a stream.
    pub fn push(&mut self, text: &str) -> Vec<Value> {
        let deltas = self.parser.push(text);
        self.members(deltas)
    }

    /// The rest of the answer.
    pub fn finish(&mut self) -> Vec<Value> {
        let deltas = self.parser.finish();
        self.members(deltas)
    }

    /// New text, told apart.
    pub fn deltas(&mut self, text: &str) -> Vec<Delta> {
        self.parser.push(text)
    }

    /// The rest of the answer, told apart.
    pub fn last_deltas(&mut self) -> Vec<Delta> {
        self.parser.finish()
    }

    fn members(&mut self, deltas: Vec<Delta>) -> Vec<Value> {
        deltas.into_iter().map(|delta| self.member(delta)).collect()
    }

    fn member(&mut self, delta: Delta) -> Value {
        match delta {
            Delta::Content(text) => json!({ "content": text }),
            Delta::Reasoning(text) => json!({ "reasoning_content": text }),
            Delta::Call(name) => {
                let index = self.calls;
                self.calls += 1;
                let function = json!({ "name": name, "arguments": "" });
                let call = json!({ "index": index, "id": identifier("call_"), "type": "function", "function": function });
                json!({ "tool_calls": [call] })
            }
            Delta::Arguments(text) => {
                let index = self.calls.saturating_sub(1);
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
            }
        }
    }

    /// A whole answer as a `message`.
    pub fn message(&mut self, text: &str) -> Value {
        let mut deltas = self.push(text);
        deltas.extend(self.finish());
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut calls: Vec<Value> = Vec::new();
        for mut delta in deltas {
            content.push_str(delta["content"].as_str().unwrap_or(""));
            reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or(""));
            if let Some(Value::Array(found)) = delta.get_mut("tool_calls") {
                found.drain(..).for_each(|call| merge(&mut calls, call));
            }
        }
        let mut message = Map::new();
        message.insert("role".into(), json!("assistant"));
        let silent = content.is_empty() && !calls.is_empty();
        message.insert("content".into(), if silent { Value::Null } else { json!(content) });
        if !reasoning.is_empty() {
            message.insert("reasoning_content".into(), json!(reasoning));
        }
        if !calls.is_empty() {
            message.insert("tool_calls".into(), Value::Array(calls));
        }
        Value::Object(message)
    }
}

/// Adds a call of a stream to the whole calls: a new one, or more of the last one's arguments.
fn merge(calls: &mut Vec<Value>, mut call: Value) {
    if let Value::Object(members) = &mut call {
        members.remove("index");
    }
    match (call.get("id"), calls.last_mut()) {
        (None, Some(last)) => {
            if let Value::String(arguments) = &mut last["function"]["arguments"] {
                arguments.push_str(call["function"]["arguments"].as_str().unwrap_or(""));
            }
        }
        _ => calls.push(call),
    }
}
