//! How the served model writes reasoning and tool calls, found out once from its template.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use puna_chat::dialects::{self, Demand, Dialect, OutputParser, Start, Tools};
use puna_chat::{Conversation, Template};
use puna_grammar::Passage;
use puna_tokenizer::{Kind, Tokenizer};
use serde_json::{Map, Value, json};

/// A function that no template knows by itself.
const PROBE: &str = "puna_probe_function";

/// How the served model writes reasoning and tool calls.
pub struct Speech {
    template: String,
    dialect: &'static Dialect,
    /// Whether the template tells the model of tools; else the prompt does.
    pub template_has_tools: bool,
    /// Names and ids of control tokens, once they were asked for.
    control: OnceLock<Vec<(String, u32)>>,
}

/// Names and ids of the tokens that no text can be made of.
fn control_tokens(tokenizer: &Tokenizer) -> Vec<(String, u32)> {
    let tokens =
        tokenizer.vocabulary().iter().filter(|(_, text, kind)| *kind == Kind::Control && !text.is_empty());
    tokens.map(|(id, text, _)| (text.to_owned(), id)).collect()
}

impl Speech {
    /// From the model's template.
    pub fn new(template: &Template) -> Self {
        let tool = json!({ "type": "function", "function": {
            "name": PROBE, "description": "a probe", "parameters": { "type": "object", "properties": {} },
        } });
        let conversation = Conversation {
            messages: vec![json!({ "role": "user", "content": "hello" })],
            tools: Some(json!([tool])),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        // A template that refuses the probe may still take real tools.
        let template_has_tools = match template.render(&conversation) {
            Ok(text) => text.contains(PROBE),
            Err(_) => template.source().contains("tools"),
        };
        let source = template.source().to_owned();
        let known = dialects::detect(&source).filter(|_| template_has_tools);
        let dialect = known.unwrap_or_else(dialects::generic);
        Self { template: source, dialect, template_has_tools, control: OnceLock::new() }
    }

    /// The grammar of calls in answers to this prompt, and what calls begin with.
    pub fn demand(&self, prompt: &str, asked: &Demand<'_>, tokenizer: &Tokenizer) -> (String, Vec<Start>) {
        let control = self.control.get_or_init(|| control_tokens(tokenizer));
        dialects::demand(&self.template, prompt, self.dialect, asked, control)
    }

    /// The part of an answer to this prompt in which the model reasons.
    pub fn passage(&self, prompt: &str) -> Option<Passage> {
        let (begin, end, open) = dialects::reasoning_of(&self.template, prompt)?;
        Some(Passage { begin: begin.to_owned(), end: end.to_owned(), open })
    }

    /// A parser for one answer to this prompt.
    pub fn parser(&self, prompt: &str, reasoning: bool, tools: Tools) -> OutputParser {
        OutputParser::new(&self.template, prompt, reasoning, Some(self.dialect), tools)
    }

    /// The control tokens that a parser needs to see. Of a mark that is several tokens only these would be missing.
    pub fn shown(parser: &OutputParser, tokenizer: &Tokenizer) -> Arc<HashSet<u32>> {
        let tokens = parser.marks().flat_map(|mark| tokenizer.encode(mark, false, true));
        Arc::new(tokens.filter(|token| tokenizer.piece(*token, false).is_empty()).collect())
    }
}

/// For a template that knows no tools: the conversation with the functions, their calls and their results as text.
pub fn tools_as_text(messages: Vec<Value>, tools: &[Value]) -> Vec<Value> {
    let mut plain: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        let content = message["content"].as_str().unwrap_or("");
        let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else {
            if message["role"] == "tool" {
                let text = format!("<tool_response>\n{content}\n</tool_response>");
                // Several results are one turn.
                match plain.last_mut() {
                    Some(last) if last["role"] == "user" && last.get("results").is_some() => {
                        last["content"] =
                            json!(format!("{}\n{text}", last["content"].as_str().unwrap_or("")));
                    }
                    _ => plain.push(json!({ "role": "user", "content": text, "results": true })),
                }
                continue;
            }
            plain.push(message);
            continue;
        };
        let mut text = content.to_owned();
        for call in calls {
            if !text.is_empty() {
                text.push('\n');
            }
            let function = &call["function"];
            let call = json!({ "name": function["name"], "arguments": function["arguments"] });
            text.push_str(&format!("<tool_call>\n{call}\n</tool_call>"));
        }
        plain.push(json!({ "role": "assistant", "content": text }));
    }
    for message in &mut plain {
        message.as_object_mut().map(|members: &mut Map<String, Value>| members.remove("results"));
    }
    let mut told =
        String::from("You may call functions. They are described in these JSON objects, one on a line:\n");
    for tool in tools {
        told.push_str(&format!("{}\n", tool.get("function").unwrap_or(tool)));
    }
    told.push_str(
        "To call one, write only this, with its name and its arguments:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"KEY\": VALUE}}\n</tool_call>\nThe result comes between <tool_response> and </tool_response>.",
    );
    match plain.first_mut() {
        Some(first) if first["role"] == "system" => {
            first["content"] = json!(format!("{}\n\n{told}", first["content"].as_str().unwrap_or("")));
        }
        _ => plain.insert(0, json!({ "role": "system", "content": told })),
    }
    plain
}
