//! What a server serves and how: plain data that the program fills in.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use puna_chat::Template;
use puna_engine::UNLIMITED;
use puna_grammar::Grammar;
use puna_sampling::{DEFAULT_BREAKERS, Parameters};
use puna_tokenizer::Tokenizer;
use serde_json::{Map, Value};

use crate::parts::Reasoning;
use crate::report::Reports;
use crate::residence::Residence;

/// The model that is served.
pub struct Served {
    /// Runs it; each of its sequences is a slot.
    pub engine: Arc<Residence>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template.
    pub template: Template,
    /// What clients are told about it.
    pub facts: Facts,
    /// What requests get that say nothing else.
    pub defaults: Defaults,
    /// What its embeddings are like, if it makes them instead of text.
    pub embeds: Option<Embeds>,
    /// Its adapters.
    pub adapters: Vec<AdapterFacts>,
    /// Requests may change how strongly the adapters count.
    pub switchable: bool,
}

/// One of a model's adapters.
#[derive(Clone, PartialEq, Debug)]
pub struct AdapterFacts {
    /// Its file.
    pub path: String,
    /// How strongly it counts at first.
    pub scale: f32,
}

/// What a model's embeddings are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Embeds {
    /// Numbers in one.
    pub width: usize,
    /// Every token has its own.
    pub per_token: bool,
    /// They are scores of a classifier.
    pub ranks: bool,
    /// Norm that they are divided by if a request says nothing else, as [`puna_engine::normalize`] takes it.
    pub normalize: i32,
}

/// What clients are told about the model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Facts {
    /// Its name in answers.
    pub name: String,
    /// Its file.
    pub path: String,
    /// Number format of most weights, in words.
    pub file_type: String,
    /// Value of `general.architecture`.
    pub architecture: String,
    /// Context that it was trained with, in tokens.
    pub context_train: u32,
    /// Width of the residual stream.
    pub embedding: u32,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Name and version of the program.
    pub build: String,
}

/// What requests get that say nothing else.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Sampling. Without a seed in the request each answer draws a new one, unless [`Defaults::seed`] is set.
    pub sampling: Parameters,
    /// Texts that end a repetition for DRY.
    pub dry_breakers: Vec<String>,
    /// What answers have to follow.
    pub grammar: Option<Grammar>,
    /// Seed of all answers.
    pub seed: Option<u32>,
    /// Tokens to generate at most.
    pub predict: i32,
    /// Tokens at the beginning that a context shift keeps; below 0 the whole prompt.
    pub keep: i32,
    /// Never end by the model's own choice.
    pub ignore_end: bool,
    /// Reuse what a slot holds of the same beginning.
    pub reuse: bool,
    /// Later parts of a prompt of at least so many tokens are moved to where they are needed; 0 for none.
    pub move_parts: usize,
    /// More variables of the chat template.
    pub template_values: Map<String, Value>,
    /// Where reasoning in chats goes if a request has no `reasoning_format`.
    pub reasoning: Reasoning,
    /// Tokens of reasoning in chats at most.
    pub reasoning_budget: Option<usize>,
    /// What the reasoning says when its tokens are used up.
    pub reasoning_budget_message: String,
    /// Continue a conversation's last message if it is the assistant's.
    pub prefill: bool,
    /// Tokens of the text around a gap that are read: three quarters before it, a quarter after it.
    pub infill: usize,
    /// The text after a gap comes first.
    pub suffix_first: bool,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            sampling: Parameters::default(),
            dry_breakers: DEFAULT_BREAKERS.map(str::to_owned).to_vec(),
            grammar: None,
            seed: None,
            predict: UNLIMITED,
            keep: 0,
            ignore_end: false,
            reuse: true,
            move_parts: 0,
            template_values: Map::new(),
            reasoning: Reasoning::Apart,
            reasoning_budget: None,
            reasoning_budget_message: String::new(),
            prefill: true,
            infill: 2048,
            suffix_first: false,
        }
    }
}

/// Private key and certificate chain, both PEM.
#[derive(Clone, PartialEq, Debug)]
pub struct Tls {
    /// File of the private key.
    pub key: PathBuf,
    /// File of the certificate chain, the server's own first.
    pub certificate: PathBuf,
}

/// What is written about each request.
#[derive(Clone, PartialEq, Debug)]
pub struct AuditOptions {
    /// The log; lines are appended.
    pub file: PathBuf,
    /// Rules that tell how risky a prompt is.
    pub rules: Option<PathBuf>,
    /// Write prompts, too.
    pub prompts: bool,
}

/// Where warnings for the person who runs the server go.
#[derive(Clone)]
pub struct Warnings(Arc<dyn Fn(&str) + Send + Sync>);

impl Warnings {
    /// To this function, from any thread.
    pub fn to(hear: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    /// Says something.
    pub fn say(&self, message: &str) {
        (self.0)(message);
    }
}

impl Default for Warnings {
    fn default() -> Self {
        Self::to(|_| ())
    }
}

impl fmt::Debug for Warnings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Warnings")
    }
}

/// How it is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Host name or address to listen on.
    pub host: String,
    /// Port to listen on; 0 for any that is free.
    pub port: u16,
    /// Text before every path, without a slash at its end.
    pub prefix: String,
    /// Keys that open the endpoints which need one; empty for none.
    pub api_keys: Vec<String>,
    /// File of keys with names, models, ends and limits; read again when it changes.
    pub key_file: Option<PathBuf>,
    /// Write a line for each request.
    pub audit: Option<AuditOptions>,
    /// Where warnings go.
    pub warnings: Warnings,
    /// Where the router that started this server is told of it; it also says whose requests are.
    pub routed: Option<Reports>,
    /// Serve other machines without a key.
    pub allow_unauthenticated: bool,
    /// Web pages that may use the server: `*` for all, `localhost` for those of this machine, or origins.
    pub origins: Vec<String>,
    /// Answer `/metrics`.
    pub metrics: bool,
    /// Answer `/slots`.
    pub slots: bool,
    /// Answer `POST /props`.
    pub properties: bool,
    /// Answer with the web page at `/`.
    pub page: bool,
    /// Speak TLS.
    pub tls: Option<Tls>,
    /// Folder for saved slots; without one they cannot be saved.
    pub slot_folder: Option<PathBuf>,
    /// Largest file of a saved slot in bytes.
    pub slot_bytes: u64,
    /// Requests that may wait for a slot; more are told to come back.
    pub queue: usize,
    /// Largest body of a request in bytes.
    pub body_bytes: usize,
    /// How long a client may take to send what comes before a body, and how long a connection may be idle.
    pub head_time: Duration,
    /// How long a client may take to send a body.
    pub body_time: Duration,
    /// How long what is sent may wait for a client that does not take it.
    pub write_time: Duration,
    /// Silence in a stream after which a comment is sent; `None` for never.
    pub ping: Option<Duration>,
    /// How long running answers may go on when the server ends.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            prefix: String::new(),
            api_keys: Vec::new(),
            key_file: None,
            audit: None,
            warnings: Warnings::default(),
            routed: None,
            allow_unauthenticated: false,
            origins: vec!["localhost".into()],
            metrics: false,
            slots: true,
            properties: false,
            page: true,
            tls: None,
            slot_folder: None,
            slot_bytes: 1 << 30,
            queue: 512,
            body_bytes: 16 << 20,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(60),
            ping: Some(Duration::from_secs(30)),
            grace: Duration::from_secs(10),
        }
    }
}
