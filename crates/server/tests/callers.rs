//! Keys with names and limits, and the log of what they were used for.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::scripted::bytes;
use common::*;
use puna_server::{AuditOptions, Options, Server, ServerError, Warnings};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

fn hello() -> Scripted {
    scripted(300, 2).script("hello", bytes("Hi there"))
}

fn write_keys(path: &Path, keys: Value) {
    std::fs::write(path, json!({ "keys": keys }).to_string()).unwrap();
}

/// Warnings that were said.
fn hearing() -> (Arc<Mutex<Vec<String>>>, Warnings) {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let list = heard.clone();
    (heard, Warnings::to(move |message| list.lock().unwrap().push(message.to_owned())))
}

fn ask(client: &Client, key: &str, body: Value) -> Reply {
    client.post_with("/completion", ("authorization", &format!("Bearer {key}")), body)
}

#[test]
fn keys_end_and_open_some_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    write_keys(
        &path,
        json!([
            {"name": "ann", "key": "a1"},
            {"name": "old", "key": "o1", "expires": "2020-01-01T00:00:00Z"},
            {"name": "new", "key": "n1", "expires": "2999-01-01T00:00:00+01:00"},
            {"name": "this", "key": "t1", "models": ["other", "scripted"]},
            {"name": "else", "key": "e1", "models": ["other"]},
            {"name": "none", "key": "x1", "models": []},
        ]),
    );
    let options = Options { api_keys: vec!["plain".into()], key_file: Some(path), ..options() };
    let client = start(hello(), options);
    let body = || json!({"prompt": "@hello:"});
    for key in ["a1", "n1", "t1", "plain"] {
        assert_eq!(ask(&client, key, body()).ok()["content"], "Hi there", "{key}");
    }
    for key in ["", "a", "a11", "A1"] {
        assert_eq!(ask(&client, key, body()).error(401, "authentication_error"), "Invalid API Key");
    }
    let message = ask(&client, "o1", body()).error(401, "authentication_error");
    assert!(message.contains("'old' has expired"), "{message}");
    for key in ["e1", "x1"] {
        let message = ask(&client, key, body()).error(403, "permission_error");
        assert!(message.contains("'scripted'"), "{message}");
        // Asking what there is runs no model.
        client.get_with("/v1/models", ("x-api-key", key)).ok();
    }
    // Each protocol has its own form of errors.
    let anthropic = client.post_with("/v1/messages", ("x-api-key", "e1"), json!({}));
    assert_eq!((anthropic.status, &anthropic.json()["type"]), (403, &json!("error")));
}

#[test]
fn limits_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    write_keys(
        &path,
        json!([
            {"name": "few", "key": "f1", "requests_per_minute": 2},
            {"name": "short", "key": "s1", "tokens_per_minute": 20},
            {"name": "free", "key": "r1"},
        ]),
    );
    let client = start(hello(), Options { key_file: Some(path), ..options() });
    let body = || json!({"prompt": "@hello:"});
    ask(&client, "f1", body()).ok();
    ask(&client, "f1", body()).ok();
    let refused = ask(&client, "f1", body());
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((25..=30).contains(&wait), "{wait}");
    let message = refused.error(429, "rate_limit_error");
    assert!(message.contains("'few'") && message.contains("2 requests"), "{message}");
    // 8 tokens of the prompt and 8 of the answer leave 4; the next answer is paid by waiting.
    ask(&client, "s1", body()).ok();
    ask(&client, "s1", body()).ok();
    let refused = ask(&client, "s1", body());
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((30..=40).contains(&wait), "{wait}");
    let message = refused.error(429, "rate_limit_error");
    assert!(message.contains("20 tokens"), "{message}");
    ask(&client, "r1", body()).ok();
    // Health needs no key and has no limit.
    client.get("/health").ok();
}

#[test]
fn priorities_are_the_keys_and_deadlines_the_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    write_keys(&path, json!([{"name": "batch", "key": "b1", "priority": 10}, {"name": "ann", "key": "a1"}]));
    let model = scripted(4000, 1).script("hello", bytes("Hi")).delay(Duration::from_millis(10));
    let client = start(model, Options { key_file: Some(path), ..options() });
    let body = |more: Value| {
        let mut body = json!({"prompt": "@hello:"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let open = client.leave_open_with(
        "/completion",
        "x-api-key: a1\r\n",
        json!({"prompt": "abc", "n_predict": 3000}),
    );
    eventually("it runs", 5 * SECOND, || client.busy_with("a1") == 1);
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let ask_for = |name, key, more: Value| {
            let (client, ended, body) = (&client, &ended, body(more));
            scope.spawn(move || {
                ask(client, key, body).ok();
                ended.lock().unwrap().push(name);
            });
            // They come one after another.
            std::thread::sleep(Duration::from_millis(100));
        };
        ask_for("batch", "b1", json!({"priority": -1000}));
        ask_for("ann", "a1", json!({}));
        ask_for("urgent", "a1", json!({"priority": -1}));
        let message = ask(&client, "a1", body(json!({"deadline_ms": 50}))).error(408, "timeout_error");
        assert!(message.contains("deadline"), "{message}");
        drop(open);
    });
    assert_eq!(*ended.lock().unwrap(), ["urgent", "ann", "batch"]);
    let long = json!({"prompt": "abc", "n_predict": 3000, "deadline_ms": 200});
    let answer = ask(&client, "a1", long).ok();
    assert_eq!(answer["stop_type"], "limit", "{answer}");
    for wrong in [json!({"priority": "high"}), json!({"deadline_ms": 0}), json!({"priority": 5_000_000})] {
        ask(&client, "a1", body(wrong)).error(400, "invalid_request_error");
    }
}

#[test]
fn the_file_of_keys_may_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    write_keys(&path, json!([{"name": "ann", "key": "a1", "requests_per_minute": 30}]));
    let (heard, warnings) = hearing();
    let client = start(hello(), Options { key_file: Some(path.clone()), warnings, ..options() });
    let status = |key: &str| client.get_with("/v1/models", ("x-api-key", key)).status;
    assert_eq!((status("a1"), status("b1")), (200, 401));
    write_keys(
        &path,
        json!([{"name": "ann", "key": "a1", "requests_per_minute": 1}, {"name": "bob", "key": "b1"}]),
    );
    eventually("the new key is known", 10 * SECOND, || status("b1") == 200);
    assert_eq!(heard.lock().unwrap().len(), 0);
    // A broken file changes nothing and is told once.
    std::fs::write(&path, "{\"keys\": [{").unwrap();
    eventually("the broken file is noticed", 10 * SECOND, || heard.lock().unwrap().len() == 1);
    assert_eq!(status("b1"), 200);
    std::thread::sleep(Duration::from_millis(1500));
    {
        let heard = heard.lock().unwrap();
        assert!(
            heard.len() == 1 && heard[0].contains("keys.json") && heard[0].contains("old keys stay"),
            "{heard:?}"
        );
    }
    std::fs::remove_file(&path).unwrap();
    eventually("the lost file is noticed", 10 * SECOND, || heard.lock().unwrap().len() == 2);
    assert_eq!(status("b1"), 200);
    write_keys(&path, json!([{"name": "cid", "key": "c1"}]));
    eventually("the old key is gone", 10 * SECOND, || status("b1") == 401);
    assert_eq!((status("a1"), status("c1")), (401, 200));
}

#[test]
fn files_that_cannot_be_used_are_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let serve = |options| Server::start(served(hello(), 16, tokenizer(), ""), options).map(drop);
    let keys = Options { host: "0.0.0.0".into(), key_file: Some(path.clone()), ..options() };
    let error = serve(keys.clone()).unwrap_err();
    assert!(matches!(error, ServerError::Keys { .. }) && error.to_string().contains("keys.json"), "{error}");
    // A file without keys opens nothing, but it is no reason to refuse other machines.
    write_keys(&path, json!([]));
    serve(keys).unwrap();
    let audit = |file: &Path, rules: Option<&Path>| Options {
        audit: Some(AuditOptions { file: file.into(), rules: rules.map(Into::into), prompts: false }),
        ..options()
    };
    assert!(matches!(serve(audit(folder.path(), None)), Err(ServerError::Audit { .. })));
    let log = folder.path().join("log");
    assert!(matches!(serve(audit(&log, Some(&path))), Err(ServerError::Audit { .. })));
    serve(audit(&log, None)).unwrap();
}

/// The lines of a log once there are so many.
#[track_caller]
fn lines(path: &Path, count: usize) -> Vec<Value> {
    let read = || std::fs::read_to_string(path).unwrap_or_default();
    eventually("the lines are written", 5 * SECOND, || read().lines().count() >= count);
    let text = read();
    assert_eq!(text.lines().count(), count, "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_line_for_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_keys(
        &at("keys"),
        json!([{"name": "ann", "key": "ann-secret"}, {"name": "else", "key": "e1", "models": []}]),
    );
    let rules = json!({
        "rules": [{"name": "greeting", "pattern": "(?i)@HELLO", "level": "high"}], "otherwise": "low",
    });
    std::fs::write(at("rules"), rules.to_string()).unwrap();
    let audit = AuditOptions { file: at("log"), rules: Some(at("rules")), prompts: false };
    let model = hello().script("long", bytes("x".repeat(200))).delay(Duration::from_millis(5));
    let client = start(model, Options { key_file: Some(at("keys")), audit: Some(audit), ..options() });
    ask(&client, "ann-secret", json!({"prompt": "@hello:", "seed": 1})).ok();
    ask(&client, "ann-secret", json!({"prompt": "@hello:", "seed": 2, "stream": true})).events();
    ask(&client, "ann-secret", json!({"prompt": "private"})).ok();
    ask(&client, "e1", json!({"prompt": "@hello:"}));
    ask(&client, "wrong", json!({"prompt": "@hello:"}));
    ask(&client, "ann-secret", json!({"prompt": 5}));
    client.get("/health").ok();
    let mut found = lines(&at("log"), 6);
    // A line is written when the engine has let go of its request, so neighbours may change places.
    found.sort_by_key(|line| line["time"].as_str().unwrap().to_owned());
    let member = |name: &str| found.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(Value::from(member("status")), json!([200, 200, 200, 403, 401, 400]));
    assert_eq!(Value::from(member("key")), json!(["ann", "ann", "ann", null, null, "ann"]));
    assert_eq!(
        Value::from(member("error")),
        json!([null, null, null, "permission_error", "authentication_error", "invalid_request_error"])
    );
    assert_eq!(Value::from(member("risk")), json!(["high", "high", "low", null, null, null]));
    assert_eq!(found[0]["rule"], "greeting");
    assert_eq!(found[0]["endpoint"], "POST /completion");
    assert_eq!(found[0]["model"], "scripted");
    assert_eq!((&found[0]["prompt_tokens"], &found[0]["generated_tokens"]), (&json!(8), &json!(8)));
    assert!(found[1]["cached_tokens"].as_u64().unwrap() > 0);
    assert!(found[0]["latency_ms"].as_f64().unwrap() >= 40.0, "{}", found[0]);
    // The beginning token is part of the prompt: sha256("<s>@hello:").
    assert_eq!(found[0]["prompt_sha256"], "bf03556d473baa02b1b7f31ef060ba345ad0c64e31969d556157154d19db65d9");
    assert_eq!(found[0]["prompt_sha256"], found[1]["prompt_sha256"]);
    assert_ne!(found[0]["prompt_sha256"], found[2]["prompt_sha256"]);
    let time = found[0]["time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 24, "{time}");
    let text = std::fs::read_to_string(at("log")).unwrap();
    assert!(!text.contains("private") && !text.contains("hello") && !text.contains("ann-secret"), "{text}");

    // Moved away: the next line begins a new file. A client that leaves is told from one that stays.
    std::fs::rename(at("log"), at("log.1")).unwrap();
    for stream in [false, true] {
        let body = json!({"prompt": "@long:", "stream": stream});
        let open = client.leave_open_with("/completion", "Authorization: Bearer ann-secret\r\n", body);
        eventually("it runs", 5 * SECOND, || client.busy_with("ann-secret") == 1);
        std::thread::sleep(Duration::from_millis(100));
        drop(open);
        eventually("it is cancelled", 5 * SECOND, || client.busy_with("ann-secret") == 0);
    }
    let left: Vec<Value> = {
        let read = || std::fs::read_to_string(at("log")).unwrap_or_default();
        let of_interest = |text: String| -> Vec<Value> {
            let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            all.filter(|line| line["endpoint"] == "POST /completion").collect()
        };
        eventually("both are written", 5 * SECOND, || of_interest(read()).len() == 2);
        of_interest(read())
    };
    assert_eq!((&left[0]["status"], &left[0]["error"]), (&json!(499), &json!("client_left")));
    assert_eq!((&left[1]["status"], &left[1]["error"]), (&json!(200), &json!("client_left")));
    assert!(left.iter().all(|line| line["generated_tokens"].as_u64().unwrap() > 0), "{left:?}");
    assert_eq!(std::fs::read_to_string(at("log.1")).unwrap(), text);
}

#[test]
fn prompts_are_written_only_if_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let audit = AuditOptions { file: log.clone(), rules: None, prompts: true };
    let client = start(hello(), Options { audit: Some(audit), ..options() });
    client.post("/completion", json!({"prompt": ["@hello:", "b\n\"c"], "n": 1})).ok();
    let messages = json!([{"role": "user", "content": "@hello:"}]);
    client.post("/v1/chat/completions", json!({"messages": messages})).ok();
    let found = lines(&log, 2);
    assert_eq!(found[0]["prompt"], "<s>@hello:\0<s>b\n\"c");
    assert_eq!(found[0]["prompt_tokens"], 8 + 5);
    assert_eq!(found[1]["prompt"], "<s>user|@hello:");
    assert_eq!((&found[1]["key"], &found[1]["risk"]), (&Value::Null, &json!("")));
    // The end writes all that waits.
    for _ in 0..20 {
        client.get("/v1/models").ok();
    }
    client.server.stop().unwrap();
    lines(&log, 22);
}
