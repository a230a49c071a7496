//! What models write: reasoning, text and tool calls told apart while the text comes.
//!
//! How a model marks its reasoning and its calls is seen from its template. [`REASONING`] and [`DIALECTS`] are the
//! ways that are known; a new one is a row, and a file if its calls have a form of their own. Most calls have one
//! of three shapes: JSON objects ([`json_calls`]), a name and a JSON object ([`named`]), tags ([`tagged`]).

mod apertus;
mod apriel;
mod command_r;
mod deepseek;
mod demand;
mod dsml;
mod firefunction;
mod form;
mod functionary;
mod gemma;
mod gigachat;
mod glm;
mod gpt_oss;
mod granite;
mod hermes;
mod hunyuan;
mod json_calls;
mod json_object;
mod kimi;
mod lark;
mod lfm;
mod llama;
mod minicpm;
mod minimax;
mod mistral;
mod muse;
mod named;
mod nemotron;
mod parser;
mod partial_json;
mod qwen_coder;
mod reasoning;
mod solar;
mod tagged;

use serde_json::Value;

use form::{Calls, Form};

pub use demand::{Demand, Start, demand, reasoning_of};
pub use parser::OutputParser;
pub use reasoning::{REASONING, ReasoningMarks};

/// How a kind of model writes tool calls.
#[derive(Debug)]
pub struct Dialect {
    /// Its name.
    pub name: &'static str,
    /// Whether a template belongs to such a model.
    pub detect: fn(&str) -> bool,
    /// Texts that a call begins with.
    pub begin: &'static [&'static str],
    /// Texts that only frame calls or answers; they are dropped.
    pub frame: &'static [&'static str],
    /// What the prompt may end with so that the answer begins inside of a call's beginning, which it then leaves out.
    pub opened: Option<&'static str>,
    /// Whether the marks frame answers too, so that they count also without functions.
    pub always: bool,
    /// Whether an answer that begins with a JSON object, without any mark, can be a call of a declared function.
    pub bare: bool,
    /// What calls look like in full.
    form: fn(&Calls<'_>) -> Form,
    /// What may stand between the end of the reasoning and calls.
    between: Option<&'static str>,
    /// Reads what follows a beginning.
    read: fn(&mut Body<'_>) -> Reading,
}

/// Every known way to write tool calls; the first that knows a template counts.
pub const DIALECTS: &[Dialect] = &[
    gpt_oss::DIALECT,
    muse::DIALECT,
    kimi::K2,
    kimi::K3,
    deepseek::DIALECT,
    dsml::DIALECT,
    mistral::DIALECT,
    command_r::DIALECT,
    command_r::PLUS,
    gemma::DIALECT,
    lfm::DIALECT,
    solar::DIALECT,
    hunyuan::DIALECT,
    minimax::M3,
    minimax::M2,
    functionary::RECIPIENTS,
    minicpm::DIALECT,
    glm::DIALECT,
    qwen_coder::DIALECT,
    functionary::TAGS,
    apertus::DIALECT,
    apriel::DIALECT,
    nemotron::DIALECT,
    gigachat::DIALECT,
    firefunction::DIALECT,
    granite::DIALECT,
    hermes::DIALECT,
    llama::DIALECT,
];

/// The dialect of a template. Models whose template knows no tools are told to write [`generic`].
pub fn detect(template: &str) -> Option<&'static Dialect> {
    DIALECTS.iter().find(|dialect| (dialect.detect)(template))
}

/// The dialect of models that are told in the prompt how to call.
pub fn generic() -> &'static Dialect {
    const { &hermes::DIALECT }
}

/// A function that may be called.
#[derive(Clone, PartialEq, Debug)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments.
    pub parameters: Value,
}

/// The functions that may be called.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Tools(pub Vec<Tool>);

impl Tools {
    /// From `tools` as OpenAI's protocol has them; what is no function is left out.
    pub fn from_json(tools: &[Value]) -> Self {
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some(Tool { name, parameters: function.get("parameters").cloned().unwrap_or(Value::Null) })
        };
        Self(tools.iter().filter_map(tool).collect())
    }

    fn declares(&self, name: &str) -> bool {
        self.0.iter().any(|tool| tool.name == name)
    }

    /// Whether an argument is a text; nothing if nothing says so.
    fn is_text(&self, function: &str, key: &str) -> Option<bool> {
        let tool = self.0.iter().find(|tool| tool.name == function)?;
        match tool.parameters.get("properties")?.get(key)?.get("type")? {
            Value::String(kind) => Some(kind == "string"),
            Value::Array(kinds) if !kinds.iter().any(|kind| kind == "string") => Some(false),
            _ => None,
        }
    }
}

/// A tool call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Name of the function.
    pub name: String,
    /// Its arguments as JSON text, as the model wrote it.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delta {
    /// Text for the user.
    Content(String),
    /// Text of the reasoning.
    Reasoning(String),
    /// A call of this function begins.
    Call(String),
    /// Text of the last call's arguments, JSON.
    Arguments(String),
}

/// What follows a call's beginning, so far.
struct Body<'a> {
    /// The text after the beginning.
    text: &'a str,
    /// No more text comes.
    done: bool,
    /// The functions that there are.
    tools: &'a Tools,
    /// There was no beginning: only a declared function can be called.
    bare: bool,
    /// What was read of this text before.
    memory: &'a mut Memory,
}

/// What was read of a body. A reader goes on from here when there is more text, so that all readings of a body together
/// look at each of its bytes a few times only.
#[derive(Default, Debug)]
struct Memory {
    /// The calls so far, the last perhaps in part. Names stay, arguments only grow.
    calls: Vec<Call>,
    /// Calls that were handed over, and bytes of the last one's arguments.
    handed: (usize, usize),
    /// Where blanks were skipped from, and up to where.
    skipped: (usize, usize),
    /// Where a mark was looked for from, and up to where.
    searched: (usize, usize),
    /// How many kinds of what may follow the calls were looked for, and where those end.
    closed: (usize, usize),
    /// Bytes that were looked at.
    work: u64,
    json: json_calls::State,
    named: named::State,
    tagged: tagged::State,
    gemma: gemma::State,
}

/// What a dialect reads from a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// More text is needed.
    Partial,
    /// The calls in memory are all; they took this many bytes.
    Complete(usize),
    /// It is no call.
    Nothing,
}

impl<'a> Body<'a> {
    /// The same body from this byte on. It has to be the same one each time.
    fn from(&mut self, start: usize) -> Body<'_> {
        Body { text: self.text.get(start..).unwrap_or_default(), memory: &mut *self.memory, ..*self }
    }

    /// The text from this byte on.
    fn rest(&self, at: usize) -> &'a str {
        self.text.get(at..).unwrap_or_default()
    }

    /// Where blanks from `at` on end.
    fn skip_blanks(&mut self, at: usize) -> usize {
        let memory = &mut *self.memory;
        let known = if memory.skipped.0 == at { memory.skipped.1.max(at) } else { at };
        let end = partial_json::skip_blanks(self.text, known);
        memory.work += (end - known) as u64;
        memory.skipped = (at, end);
        end
    }

    /// Bytes from `at` up to this mark.
    fn find(&mut self, at: usize, mark: &str) -> Option<usize> {
        self.search(at, mark.len(), |rest| rest.find(mark))
    }

    /// Bytes from `at` up to what `find` finds, which is at most `longest` bytes long.
    fn search(&mut self, at: usize, longest: usize, find: impl Fn(&str) -> Option<usize>) -> Option<usize> {
        let text = self.text;
        let memory = &mut *self.memory;
        let known = if memory.searched.0 == at { memory.searched.1.max(at) } else { at };
        let rest = text.get(known..).unwrap_or_default();
        let found = find(rest).map(|place| known + place - at);
        memory.work += (found.map_or(text.len(), |length| at + length) - known) as u64;
        // What is found later may have begun already.
        let mut sure = text.len().saturating_sub(longest.saturating_sub(1)).max(known);
        while !text.is_char_boundary(sure) {
            sure -= 1;
        }
        memory.searched = (at, if found.is_some() { known } else { sure.max(at) });
        found
    }
}
