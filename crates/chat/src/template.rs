//! One compiled chat template and what it is applied to.

use std::error::Error as _;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Map;

use crate::environment::{self, Refusal, TEMPLATE_NAME};
use crate::{Error, LocalTime, markup, rewrite, stack};

/// What rendering may cost at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps of the template engine, about one per instruction and per 64 bytes of text.
    pub fuel: u64,
    /// Length of the rendered text in bytes, beyond twice that of the conversation.
    pub output: usize,
    /// Length of the template source in bytes.
    pub source: usize,
}

impl Default for Limits {
    /// Two million steps (a second or two), 4 MiB of text, 256 KiB of source (real templates have 20 KiB).
    fn default() -> Limits {
        Limits { fuel: 2_000_000, output: 4 << 20, source: 256 << 10 }
    }
}

/// Everything that a template can see.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// Messages in OpenAI's form: objects with `role`, `content` (text, parts or null), `reasoning_content`,
    /// `tool_calls`, `tool_call_id`, `name` and whatever else the client sent.
    pub messages: Vec<serde_json::Value>,
    /// Function definitions in OpenAI's form, if the request has any.
    pub tools: Option<serde_json::Value>,
    /// Whether the text ends with the header of the assistant's turn.
    pub add_generation_prompt: bool,
    /// More variables (`enable_thinking`, `reasoning_effort`, …); they replace the standard ones of the same name.
    pub extra: Map<String, serde_json::Value>,
    /// What `strftime_now` shows; without it the function is undefined.
    pub now: Option<LocalTime>,
}

/// A chat template, compiled. Rendering is a pure function of the template and the conversation.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    limits: Limits,
    source: String,
    bos: String,
    eos: String,
}

impl Template {
    /// Compiles a Jinja2 source under the default [`Limits`]. `bos` and `eos` are the texts of the model's tokens,
    /// empty if it has none.
    pub fn parse(source: &str, bos: &str, eos: &str) -> Result<Template, Error> {
        Template::parse_with(source, bos, eos, Limits::default())
    }

    /// Like [`Template::parse`] with other limits.
    pub fn parse_with(source: &str, bos: &str, eos: &str, limits: Limits) -> Result<Template, Error> {
        if source.len() > limits.source {
            return Err(Error::SourceTooLong { found: source.len(), limit: limits.source });
        }
        let syntax = |error: minijinja::Error| Error::Syntax {
            line: error.line().unwrap_or(0),
            message: error.detail().map_or_else(|| error.kind().to_string(), str::to_owned),
        };
        let room = source.len().saturating_mul(stack::PER_SOURCE_BYTE);
        let environment = stack::with_room(room, || {
            let mut environment = environment::new().map_err(syntax)?;
            let prepared = rewrite::rewrite(&markup::rewrite(&strip_generation_blocks(source)))?;
            environment.add_template_owned(TEMPLATE_NAME, prepared).map_err(syntax)?;
            Ok(environment)
        })?;
        let (source, bos, eos) = (source.to_owned(), bos.to_owned(), eos.to_owned());
        Ok(Template { environment, limits, source, bos, eos })
    }

    /// The source that was compiled.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of the beginning-of-sequence token that the template sees.
    pub fn bos(&self) -> &str {
        &self.bos
    }

    /// The text of the end-of-sequence token that the template sees.
    pub fn eos(&self) -> &str {
        &self.eos
    }

    /// The prompt text of a conversation.
    pub fn render(&self, conversation: &Conversation) -> Result<String, Error> {
        let fuel = self.fuel(conversation);
        let steps = usize::try_from(fuel).unwrap_or(usize::MAX);
        stack::with_room(steps.saturating_mul(stack::PER_STEP), || self.render_here(conversation, fuel))
    }

    fn render_here(&self, conversation: &Conversation, fuel: u64) -> Result<String, Error> {
        let tools = conversation.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)));
        let mut variables: Vec<(&str, Value)> = vec![
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("messages", Value::from(Serde(&conversation.messages))),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(conversation.add_generation_prompt)),
        ];
        if let Some(now) = conversation.now {
            let format = move |format: &str| now.format(format);
            variables.push(("strftime_now", Value::from_function(format)));
        }
        let extra = conversation.extra.iter().filter(|(key, _)| !rewrite::RESERVED.contains(&key.as_str()));
        variables.extend(extra.map(|(key, value)| (key.as_str(), Value::from(Serde(value)))));

        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let given =
            conversation.tools.iter().chain(conversation.extra.values()).chain(&conversation.messages);
        let given: usize = given.map(text_bytes).sum();
        let limit = self.limits.output.saturating_add(2 * given);
        let mut output = LimitedOutput { bytes: Vec::new(), limit, exceeded: false };
        let rendered = environment.get_template(TEMPLATE_NAME).and_then(|template| {
            template.render_captured_to(Value::from_pairs(variables), &mut output).map(drop)
        });
        if output.exceeded {
            return Err(Error::TooLong { limit });
        }
        rendered.map_err(|error| explain(&error, fuel))?;
        Ok(String::from_utf8_lossy(&output.bytes).into_owned())
    }

    /// Steps for a conversation of this size: several times what real templates take.
    fn fuel(&self, conversation: &Conversation) -> u64 {
        let tools = conversation.tools.as_ref().map_or(0, size);
        let extra: u64 = conversation.extra.values().map(size).sum();
        let messages: u64 = conversation.messages.iter().map(size).sum();
        let needed = 100_000 + 10 * (tools + extra + messages);
        needed.min(self.limits.fuel)
    }
}

fn explain(error: &minijinja::Error, fuel: u64) -> Error {
    let line = error.line().unwrap_or(0);
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::TooMuchWork { fuel, line };
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(inner) = source {
        if let Some(Refusal(message)) = inner.downcast_ref::<Refusal>() {
            return Error::Raised { line, message: message.clone() };
        }
        if let Some(inner) = inner.downcast_ref::<minijinja::Error>()
            && inner.kind() == ErrorKind::OutOfFuel
        {
            return Error::TooMuchWork { fuel, line };
        }
        source = inner.source();
    }
    let kind = error.kind();
    let message = error.detail().map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}"));
    Error::Render { line, message }
}

/// Bytes of text in a value, keys included.
fn text_bytes(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(text_bytes).sum(),
        serde_json::Value::Object(members) => {
            members.iter().map(|(key, value)| key.len() + text_bytes(value)).sum()
        }
        _ => 8,
    }
}

/// Roughly how much a template can do with a value: bytes of text, and a hundred for each member.
fn size(value: &serde_json::Value) -> u64 {
    100 + match value {
        serde_json::Value::String(text) => text.len() as u64 / 20,
        serde_json::Value::Array(items) => items.iter().map(size).sum(),
        serde_json::Value::Object(members) => {
            members.iter().map(|(key, value)| key.len() as u64 / 20 + size(value)).sum()
        }
        _ => 0,
    }
}

/// Collects the rendered text and refuses more than the limit.
struct LimitedOutput {
    bytes: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl std::io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.limit.saturating_sub(self.bytes.len()) {
            self.exceeded = true;
            return Err(std::io::Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Replaces `{% generation %}` blocks, which only mark the assistant's text for training, by blocks without effect
/// that keep the whitespace control and the scope of the original.
fn strip_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_start_matches("{%").trim_start_matches(['-', '+']);
        let word = word.trim_end_matches("%}").trim_end_matches(['-', '+']).trim();
        match word {
            "generation" | "endgeneration" => {
                let replacement = if word == "generation" { "with" } else { "endwith" };
                out.push_str(&tag.replacen(word, replacement, 1));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
