//! A server in this process, over a model that follows scripts, and a plain client.
#![allow(dead_code, unused_imports)] // each test file uses a part

// One model by arithmetic for all tests without a real one.
#[path = "../../../engine/tests/arithmetic/mod.rs"]
pub mod arithmetic;
pub mod scripted;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use puna_chat::Template;
use puna_engine::{Engine, EngineOptions, Runner};
use puna_gguf::{Array, Metadata, Value as Stored};
use puna_server::{Defaults, Facts, Options, Residence, Served, Server};
use puna_tokenizer::Tokenizer;
use serde_json::Value;

pub use scripted::{Scripted, scripted};

/// Options for tests: any free port.
pub fn options() -> Options {
    Options { port: 0, metrics: true, grace: Duration::from_millis(500), ..Options::default() }
}

/// A vocabulary of single bytes, a blank, and a few longer tokens.
pub fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// The same with these tokens for parts of gaps.
pub fn tokenizer_with(roles: &[(&str, u32)]) -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["\u{2581}", "yab", "z?\n"].map(str::to_owned));
    assert_eq!(tokens.len(), scripted::VOCABULARY as usize);
    let mut kinds = vec![6; tokens.len()];
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    kinds[259..].fill(1);
    let scores = vec![0.0; tokens.len()];
    let mut metadata = Metadata::new();
    for (key, value) in [
        ("general.architecture", Stored::String("llama".into())),
        ("tokenizer.ggml.model", Stored::String("llama".into())),
        ("tokenizer.ggml.tokens", Stored::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores", Stored::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type", Stored::Array(Array::I32(kinds))),
        ("tokenizer.ggml.bos_token_id", Stored::U32(1)),
        ("tokenizer.ggml.eos_token_id", Stored::U32(2)),
        ("tokenizer.ggml.unknown_token_id", Stored::U32(0)),
        ("tokenizer.ggml.add_bos_token", Stored::Bool(true)),
        ("tokenizer.ggml.add_space_prefix", Stored::Bool(false)),
    ] {
        metadata.set(key, value);
    }
    for (key, token) in roles {
        metadata.set(*key, Stored::U32(*token));
    }
    Tokenizer::from_metadata(&metadata).unwrap().unwrap()
}

/// Ends with the last message, so that scripts know where the answer begins.
pub const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}|{{ m.content }}{% endfor %}";

/// A model with this tokenizer and the tests' template.
pub fn served(
    model: impl Runner + 'static,
    step_tokens: u32,
    tokenizer: Tokenizer,
    template: &str,
) -> Served {
    let engine =
        Engine::start(model, EngineOptions { step_tokens, context_shift: false, ..EngineOptions::default() })
            .expect("the engine starts");
    let facts = Facts { name: "scripted".into(), build: "test".into(), ..Facts::default() };
    let template = Template::parse(template, "<s>", "</s>").unwrap();
    Served {
        engine: Residence::new(engine),
        tokenizer,
        template,
        facts,
        defaults: Defaults::default(),
        embeds: None,
        adapters: Vec::new(),
        switchable: false,
    }
}

/// A server of the scripted model.
pub fn start(model: Scripted, options: Options) -> Client {
    let server = Server::start(served(model, 16, tokenizer(), TEMPLATE), options).unwrap();
    Client::new(server)
}

/// Asks a server.
pub struct Client {
    pub server: Server,
    agent: ureq::Agent,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body if the status is 200.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The message of an error of any protocol; Ollama's is a plain text.
    #[track_caller]
    pub fn message(&self) -> String {
        let error = &self.json()["error"];
        error.as_str().or(error["message"].as_str()).unwrap().to_owned()
    }

    /// The message if it is an error with this status and type.
    #[track_caller]
    pub fn error(self, status: u16, kind: &str) -> String {
        let body = self.json();
        assert_eq!((self.status, body["error"]["type"].as_str()), (status, Some(kind)), "{self:?}");
        assert_eq!(body["error"]["code"], status);
        body["error"]["message"].as_str().unwrap().to_owned()
    }

    /// The values of a stream of events; `[DONE]` becomes null.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines
            .map(|line| match line {
                "[DONE]" => Value::Null,
                json => serde_json::from_str(json).unwrap(),
            })
            .collect()
    }
}

impl Client {
    pub fn new(server: Server) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build();
        Self { server, agent: config.into() }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    fn reply(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Reply {
        let mut response = response.unwrap();
        let headers = response.headers().iter();
        let headers = headers.map(|(key, value)| (key.to_string(), value.to_str().unwrap().to_owned()));
        Reply {
            status: response.status().as_u16(),
            headers: headers.collect(),
            text: response.body_mut().read_to_string().unwrap(),
        }
    }

    pub fn get(&self, path: &str) -> Reply {
        Self::reply(self.agent.get(self.url(path)).call())
    }

    pub fn get_with(&self, path: &str, header: (&str, &str)) -> Reply {
        Self::reply(self.agent.get(self.url(path)).header(header.0, header.1).call())
    }

    pub fn post(&self, path: &str, body: Value) -> Reply {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Reply {
        Self::reply(self.agent.post(self.url(path)).content_type("application/json").send(body))
    }

    pub fn post_with(&self, path: &str, header: (&str, &str), body: Value) -> Reply {
        let request = self.agent.post(self.url(path)).header(header.0, header.1);
        Self::reply(request.content_type("application/json").send(body.to_string()))
    }

    /// Sends a request and does not read the answer.
    pub fn leave_open(&self, path: &str, body: Value) -> TcpStream {
        self.leave_open_with(path, "", body)
    }

    /// The same with more headers, each with its line break.
    pub fn leave_open_with(&self, path: &str, headers: &str, body: Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        let body = body.to_string();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    /// Sends bytes and reads until the end.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // The server may close hard after an answer to nonsense.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Slots that are busy now.
    pub fn busy(&self) -> usize {
        let slots = self.get("/slots").ok();
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    }

    /// The same with a key.
    pub fn busy_with(&self, key: &str) -> usize {
        let slots = self.get_with("/slots", ("x-api-key", key)).ok();
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    }

    /// A value of `/metrics`.
    pub fn metric(&self, name: &str) -> f64 {
        let reply = self.get("/metrics");
        let line = reply.text.lines().find_map(|line| line.strip_prefix(&format!("llamacpp:{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {}", reply.text)).parse().unwrap()
    }
}

/// Waits until something is so; the time that it took.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, check: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < limit, "{what}: not after {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}
