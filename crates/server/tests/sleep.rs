//! Models that are unloaded while nobody asks.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::scripted::bytes;
use common::*;
use puna_engine::{Engine, EngineOptions};
use puna_server::{Options, Residence, Served, Server};
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);

fn model(name: &str, context: u32) -> Scripted {
    let delay = Duration::from_millis(2);
    scripted(context, 2).delay(delay).script("hello", bytes(name))
}

/// A server whose model sleeps after 300 ms; each time it is loaded it has another text, and how often that was is counted.
fn sleepy(
    reload: impl Fn(usize) -> Result<Scripted, String> + Send + Sync + 'static,
) -> (Client, Arc<AtomicUsize>) {
    let loads = Arc::new(AtomicUsize::new(0));
    let count = loads.clone();
    let start = |model| Engine::start(model, EngineOptions::default()).map_err(|error| error.to_string());
    let again = move || start(reload(count.fetch_add(1, Ordering::SeqCst) + 1)?);
    let first = start(model("first", 2000)).unwrap();
    let engine = Residence::sleeping(first, Duration::from_millis(300), Box::new(again), Box::new(|| ()));
    let served = Served { engine, ..served(model("", 10), 16, tokenizer(), TEMPLATE) };
    (Client::new(Server::start(served, options()).unwrap()), loads)
}

fn asleep(client: &Client) -> bool {
    client.get("/props").ok()["is_sleeping"] == true
}

fn text(client: &Client) -> String {
    client.post("/completion", json!({"prompt": "@hello:"})).ok()["content"].as_str().unwrap().to_owned()
}

#[test]
fn idle_models_sleep_and_the_next_request_loads_them() {
    let (client, loads) = sleepy(|count| {
        std::thread::sleep(Duration::from_millis(100));
        Ok(model(&format!("load {count}"), 2000))
    });
    assert_eq!(text(&client), "first");
    assert!(!asleep(&client));
    eventually("it sleeps", 5 * SECOND, || asleep(&client));
    // None of these needs the model.
    for path in
        ["/health", "/props", "/v1/models", "/metrics", "/slots", "/api/tags", "/api/ps", "/lora-adapters"]
    {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    client.post("/tokenize", json!({"content": "a"})).ok();
    client.post("/completion", json!({"prompt": 5.5})).error(400, "invalid_request_error");
    assert!(asleep(&client));
    assert_eq!(loads.load(Ordering::SeqCst), 0);
    // Many who come at once load it once.
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(text(&client), "load 1"));
        }
    });
    assert!(!asleep(&client));
    // It stays awake through an answer that takes longer than it may be idle.
    let long = client.post("/completion", json!({"prompt": "abc", "n_predict": 400})).ok();
    assert_eq!(long["tokens_predicted"], 400);
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    eventually("it sleeps", 5 * SECOND, || asleep(&client));
    // One who leaves while it is loaded changes nothing for the next.
    drop(client.leave_open("/completion", json!({"prompt": "@hello:"})));
    assert_eq!(text(&client), "load 2");
}

#[test]
fn a_model_that_cannot_be_loaded_again_says_why() {
    let (client, _) = sleepy(|count| match count {
        1 => Err("file not found".into()),
        2 => Ok(model("other", 999)),
        _ => Ok(model("back", 2000)),
    });
    eventually("it sleeps", 5 * SECOND, || asleep(&client));
    for part in ["file not found", "has changed"] {
        let body = json!({"prompt": "@hello:"});
        let message = client.post("/completion", body).error(500, "server_error");
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(text(&client), "back");
}

#[test]
fn without_a_limit_it_stays_awake() {
    let client = start(model("first", 100), Options { ..options() });
    std::thread::sleep(Duration::from_millis(600));
    assert!(!asleep(&client));
    assert_eq!(text(&client), "first");
}
