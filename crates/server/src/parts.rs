//! An answer of a chat in OpenAI's members: content, reasoning, tool calls.

use std::collections::HashSet;
use std::sync::Arc;

use puna_chat::dialects::{Delta, OutputParser, Tools};
use puna_grammar::Passage;
use puna_tokenizer::Decoder;
use serde_json::{Map, Value, json};

use crate::api::identifier;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;
use crate::generate::Reason;
use crate::speech::Speech;

/// Tells the parts of one answer apart.
pub struct Parts {
    parser: OutputParser,
    counter: Counter,
    calls: usize,
    /// The marks of reasoning that goes into the content.
    inline: Option<Passage>,
    /// Such reasoning has begun and not ended.
    inside: bool,
}

/// Counts tokens of the reasoning, wherever that goes.
struct Counter {
    parser: OutputParser,
    decoder: Decoder,
}

/// Where reasoning goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reasoning {
    /// It stays in the content, as it comes.
    Content,
    /// Into a member of its own.
    Apart,
    /// Into a member of its own; in streams into the content, between its marks.
    Legacy,
}

impl Reasoning {
    /// By the name that flags and requests have for it.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::Content),
            "auto" | "deepseek" => Some(Self::Apart),
            "deepseek-legacy" => Some(Self::Legacy),
            _ => None,
        }
    }
}

/// What is looked for in answers.
#[derive(Clone, Debug)]
pub struct Wanted {
    reasoning: Reasoning,
    stream: bool,
    tools: Tools,
}

impl Wanted {
    /// As a request says: reasoning as its `reasoning_format` (without the field as `reasoning`), calls if there are tools.
    pub fn new(fields: &Fields, reasoning: Reasoning) -> ApiResult<Self> {
        let reasoning = match fields.text(&["reasoning_format"])? {
            None => reasoning,
            Some(name) => Reasoning::from_name(name).ok_or_else(|| {
                ApiError::invalid(format!(
                    "field 'reasoning_format': '{name}', expected none, auto, deepseek or deepseek-legacy"
                ))
            })?,
        };
        let none = fields.get(&["tool_choice"]).is_some_and(|(_, choice)| choice == "none");
        let tools = fields.list(&["tools"])?.filter(|_| !none).map_or(&[][..], Vec::as_slice);
        let stream = fields.boolean(&["stream"])?.unwrap_or(false);
        Ok(Self { reasoning, stream, tools: Tools::from_json(tools) })
    }

    /// For one answer to this prompt.
    pub fn parts(&self, app: &App, prompt: &str) -> Parts {
        let apart = self.reasoning != Reasoning::Content;
        let counter = app.speech.parser(prompt, true, self.tools.clone());
        let shown = Speech::shown(&counter, &app.served.tokenizer);
        let decoder = Decoder::new(&app.served.tokenizer, false).showing(shown);
        let inline = (self.reasoning == Reasoning::Legacy && self.stream).then(|| app.speech.passage(prompt));
        Parts {
            parser: app.speech.parser(prompt, apart, self.tools.clone()),
            counter: Counter { parser: counter, decoder },
            calls: 0,
            inline: inline.flatten(),
            inside: false,
        }
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

    /// How many of an answer's tokens are its reasoning, its marks included. To be asked once, of all tokens.
    pub fn reasoning_tokens(&mut self, tokens: &[u32]) -> usize {
        let Counter { parser, decoder } = &mut self.counter;
        let reasons = |token: &&u32| {
            let before = parser.reasons();
            parser.push(&decoder.push(**token));
            before || parser.reasons()
        };
        tokens.iter().filter(reasons).count()
    }

    /// New text as `delta` members of a stream.
    pub fn push(&mut self, text: &str) -> Vec<Value> {
        let deltas = self.deltas(text);
        self.members(deltas)
    }

    /// The rest of an answer that ended for this reason.
    pub fn finish(&mut self, reason: &Reason) -> Vec<Value> {
        let deltas = self.last_deltas(reason);
        self.members(deltas)
    }

    /// New text, told apart.
    pub fn deltas(&mut self, text: &str) -> Vec<Delta> {
        self.parser.push(text)
    }

    /// The rest of an answer that ended for this reason, told apart.
    pub fn last_deltas(&mut self, reason: &Reason) -> Vec<Delta> {
        match reason {
            // A stop text may be what calls end with.
            Reason::EndOfGeneration | Reason::Stop(_) => self.parser.finish(),
            Reason::Limit => self.parser.cut(),
        }
    }

    /// The same with reasoning as content between its marks, if that was asked for.
    fn inlined(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        let Some(Passage { begin, end, .. }) = &self.inline else { return deltas };
        let mut all = Vec::with_capacity(deltas.len());
        for delta in deltas {
            let reasons = matches!(delta, Delta::Reasoning(_));
            match std::mem::replace(&mut self.inside, reasons) {
                false if reasons => all.push(Delta::Content(begin.clone())),
                true if !reasons => all.push(Delta::Content(end.clone())),
                _ => {}
            }
            all.push(match delta {
                Delta::Reasoning(text) => Delta::Content(text),
                other => other,
            });
        }
        all
    }

    fn members(&mut self, deltas: Vec<Delta>) -> Vec<Value> {
        self.inlined(deltas).into_iter().map(|delta| self.member(delta)).collect()
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

    /// A whole answer, which ended for this reason, as a `message`.
    pub fn message(&mut self, text: &str, reason: &Reason) -> Value {
        let mut deltas = self.push(text);
        deltas.extend(self.finish(reason));
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
