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
    read: fn(&Body<'_>) -> Reading,
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
}

/// What a dialect reads from a body. Names and arguments only ever grow from one reading to the next.
#[derive(Debug)]
enum Reading {
    /// More text is needed; these calls there are so far, the last perhaps in part.
    Partial(Vec<Call>),
    /// These calls, which took this many bytes.
    Complete(Vec<Call>, usize),
    /// It is no call.
    Nothing,
}
