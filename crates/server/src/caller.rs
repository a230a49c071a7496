//! Who asked, and what came of it: passed on from the edge to the answers, and written to the audit log when the
//! last of them is over.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use puna_engine::Event;
use puna_tokenizer::Tokenizer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::app::{App, Front};
use crate::audit::Audit;
use crate::clock;
use crate::error::ApiResult;
use crate::keys::Key;
use crate::plan::Plan;
use crate::report::{Report, Reports};

/// Status of a request whose client left before there was one; the field's custom.
const LEFT: u16 = 499;
/// Generated tokens of which a router is told at once.
const REPORTED: u64 = 32;

/// What is known of a prompt.
#[derive(Default)]
struct Notes {
    hash: Option<String>,
    level: Option<String>,
    rule: Option<String>,
    prompt: Option<String>,
    error: Option<&'static str>,
}

/// One request: whose it is, and what it took so far.
pub struct Caller {
    key: OnceLock<Arc<Key>>,
    audit: Option<Arc<Audit>>,
    /// Who else counts what the key uses.
    reports: Option<Reports>,
    endpoint: String,
    model: OnceLock<String>,
    /// Somebody else writes the line of the log.
    delegated: AtomicBool,
    /// What the router calls it, if it came from there.
    number: OnceLock<u64>,
    time: SystemTime,
    started: Instant,
    /// When its client left, if it did.
    left: OnceLock<Instant>,
    status: AtomicU16,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    notes: Mutex<Notes>,
}

impl Caller {
    /// A request that has just come. It is logged if it is `audited` and there is a log.
    pub fn new(front: &Front, audited: bool, endpoint: String) -> Arc<Self> {
        Arc::new(Self {
            key: OnceLock::new(),
            audit: front.audit.clone().filter(|_| audited),
            reports: front.options.routed.clone(),
            endpoint,
            model: OnceLock::new(),
            delegated: AtomicBool::new(false),
            number: OnceLock::new(),
            time: SystemTime::now(),
            started: Instant::now(),
            left: OnceLock::new(),
            status: AtomicU16::new(LEFT),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            notes: Mutex::default(),
        })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Texts are valid after any panic.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has shown this key. The first one stays.
    pub fn identify(&self, key: Arc<Key>) {
        let _ = self.key.set(key);
    }

    /// The key that it has shown.
    pub fn key(&self) -> Option<&Key> {
        self.key.get().map(|key| &**key)
    }

    /// The priority of its answers: the key's, or what it asks for.
    pub fn priority(&self, asked: i32) -> i32 {
        self.key().and_then(|key| key.priority).unwrap_or(asked)
    }

    /// It is for this model; an error if its key does not open it.
    pub fn choose(&self, model: &str) -> ApiResult<()> {
        // There is one model for a request.
        let _ = self.model.set(model.to_owned());
        self.key.get().map_or(Ok(()), |key| key.permit(model))
    }

    /// Whether somebody else writes the line of the log.
    pub fn delegate(&self, delegated: bool) {
        self.delegated.store(delegated, Ordering::Relaxed);
    }

    /// The router that handed it on knows it by this number, and writes its line.
    pub fn number(&self, number: u64) {
        // It came once.
        let _ = self.number.set(number);
    }

    /// Its client has left, although somebody may still have something to tell.
    pub fn left(&self) {
        // It leaves once.
        let _ = self.left.set(Instant::now());
        self.failed("client_left");
    }

    /// Counts tokens for the key.
    fn spend(&self, tokens: u64) {
        let Some(key) = self.key.get().filter(|_| tokens > 0) else { return };
        key.spend(tokens);
        if let Some(reports) = &self.reports {
            reports.say(&Report::Used { key: key.name.clone(), tokens });
        }
    }

    /// It is answered with this status.
    pub fn answered(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// It came to nothing, or to no end; `error` is the type in the body.
    pub fn failed(&self, error: &'static str) {
        self.notes().error.get_or_insert(error);
    }

    /// Looks at the prompts for the log, aside.
    pub async fn note(self: &Arc<Self>, app: &Arc<App>, plan: &Plan) {
        if self.audit.is_some() {
            let mut prompts: Vec<Vec<u32>> =
                plan.requests.iter().map(|request| request.prompt.clone()).collect();
            // Several answers to one prompt.
            prompts.dedup();
            self.look(app, prompts).await;
        }
    }

    /// The same for texts that become numbers. Their tokens count at once.
    pub async fn note_texts(self: &Arc<Self>, app: &Arc<App>, texts: &[Vec<u32>]) {
        let tokens = texts.iter().map(|text| text.len() as u64).sum();
        self.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
        self.spend(tokens);
        if self.audit.is_some() {
            self.look(app, texts.to_vec()).await;
        }
    }

    async fn look(self: &Arc<Self>, app: &Arc<App>, prompts: Vec<Vec<u32>>) {
        let (caller, app) = (self.clone(), app.clone());
        let looking = tokio::task::spawn_blocking(move || caller.assess(&app.served.tokenizer, &prompts));
        if looking.await.is_err() {
            self.failed("server_error");
        }
    }

    fn assess(&self, tokenizer: &Tokenizer, prompts: &[Vec<u32>]) {
        let Some(audit) = &self.audit else { return };
        let texts: Vec<Vec<u8>> = prompts.iter().map(|prompt| tokenizer.decode(prompt, true)).collect();
        // No text has a zero byte, so two lists of prompts never look alike.
        let text = texts.join(&0);
        let hash = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        let text = String::from_utf8_lossy(&text).into_owned();
        let (level, rule) = audit.rules.assess(&text);
        let mut notes = self.notes();
        (notes.hash, notes.level, notes.rule) = (Some(hash), Some(level), rule);
        notes.prompt = audit.prompts.then_some(text);
    }

    /// Counts what an answer takes. Called on the engine thread.
    pub fn see(&self, event: &Event, prompt: usize) {
        let mut spent = 0;
        match event {
            Event::Started { cached, .. } => {
                spent = prompt as u64;
                self.prompt_tokens.fetch_add(prompt as u64, Ordering::Relaxed);
                self.cached_tokens.fetch_add(*cached as u64, Ordering::Relaxed);
            }
            Event::Token { .. } => {
                let before = self.generated_tokens.fetch_add(1, Ordering::Relaxed);
                // A router hears of some at a time.
                spent = match self.reports {
                    None => 1,
                    Some(_) if (before + 1).is_multiple_of(REPORTED) => REPORTED,
                    Some(_) => 0,
                };
            }
            _ => {}
        }
        self.spend(spent);
    }

    fn line(&self) -> Value {
        let notes = self.notes();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let latency = self.left.get().copied().unwrap_or_else(Instant::now).duration_since(self.started);
        let mut line = json!({
            "time": clock::text(self.time),
            "key": self.key.get().map(|key| key.name.as_str()),
            "endpoint": self.endpoint,
            "model": self.model.get(),
            "status": self.status.load(Ordering::Relaxed),
            "error": notes.error,
            "latency_ms": (latency.as_secs_f64() * 1e6).round() / 1e3,
            "prompt_tokens": count(&self.prompt_tokens),
            "cached_tokens": count(&self.cached_tokens),
            "generated_tokens": count(&self.generated_tokens),
            "prompt_sha256": notes.hash,
            "risk": notes.level,
            "rule": notes.rule,
        });
        if let Some(prompt) = &notes.prompt {
            line["prompt"] = json!(prompt);
        }
        line
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.reports.is_some() {
            self.spend(self.generated_tokens.load(Ordering::Relaxed) % REPORTED);
        }
        if let Some(audit) = self.audit.as_ref().filter(|_| !self.delegated.load(Ordering::Relaxed)) {
            let line = self.line().to_string();
            let told = match (&self.reports, self.number.get()) {
                (Some(reports), Some(request)) => {
                    reports.say(&Report::Over { request: *request, line: line.clone() })
                }
                _ => false,
            };
            // Without a router that hears it, it is written here.
            if !told {
                audit.write(line);
            }
        }
    }
}
