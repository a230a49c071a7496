//! Faults that other servers had, each with its number in the list of known faults.

mod common;

use common::scripted::bytes;
use common::*;
use puna_server::Options;
use serde_json::{Value, json};

fn hello() -> Scripted {
    scripted(300, 2).script("hello", bytes("Hi there"))
}

#[test]
fn a08_prompts_that_are_in_the_cache_already() {
    let client = start(hello(), options());
    let ask = |prompt: Value| {
        let found = client.post("/completion", json!({"prompt": prompt, "n_predict": 8, "id_slot": 0})).ok();
        let cached = found["timings"]["cache_n"].as_u64().unwrap();
        (found["content"].as_str().unwrap().to_owned(), cached)
    };
    let first = ask(json!("abc@hello:"));
    assert_eq!(first, ("Hi there".into(), 0));
    // All but the last token, whose logits are needed.
    assert_eq!(ask(json!("abc@hello:")), ("Hi there".into(), 10));
    let prefix = ask(json!("abc"));
    assert_eq!(prefix.1, 3);
    client.post("/slots/0?action=erase", json!({})).ok();
    assert_eq!(ask(json!("abc")), (prefix.0, 0));
    // One token, again and again.
    let one = ask(json!([100]));
    assert_eq!(one.0.len(), 8);
    assert_eq!(ask(json!([100])), one);
}

#[test]
fn a15_no_finish_reason_before_the_end() {
    let client = start(hello(), options());
    let messages = json!([{"role": "user", "content": "@hello:"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages, "stream": true})),
        ("/v1/completions", json!({"prompt": "@hello:", "stream": true})),
    ] {
        let events = client.post(path, body).events();
        let chunks: Vec<&Value> = events.iter().filter(|event| !event.is_null()).collect();
        let reasons: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
        let (last, before) = reasons.split_last().unwrap();
        assert_eq!(**last, json!("stop"), "{path}");
        assert!(before.iter().all(|reason| reason.is_null()), "{path}: {reasons:?}");
        assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none_or(Value::is_null)), "{path}");
    }
}

#[test]
fn a16_counts_are_complete() {
    let client = start(hello(), options());
    let body = json!({"input": "@hello:"});
    let check = |usage: &Value| {
        for place in [
            "/input_tokens",
            "/output_tokens",
            "/total_tokens",
            "/input_tokens_details/cached_tokens",
            "/output_tokens_details/reasoning_tokens",
        ] {
            assert!(usage.pointer(place).is_some_and(Value::is_u64), "{place} in {usage}");
        }
    };
    check(&client.post("/v1/responses", body.clone()).ok()["usage"]);
    let mut stream = body;
    stream["stream"] = json!(true);
    let events = client.post("/v1/responses", stream).events();
    let last = events.iter().rfind(|event| event["type"] == "response.completed").unwrap();
    check(&last["response"]["usage"]);
    let messages = json!([{"role": "user", "content": "@hello:"}]);
    let message = json!({"messages": messages, "max_tokens": 20});
    let usage = &client.post("/v1/messages", message.clone()).ok()["usage"];
    assert!(usage["input_tokens"].is_u64() && usage["output_tokens"].is_u64(), "{usage}");
    let mut stream = message;
    stream["stream"] = json!(true);
    let events = client.post("/v1/messages", stream).events();
    assert!(events[0]["message"]["usage"]["input_tokens"].is_u64(), "{}", events[0]);
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert!(delta["usage"]["output_tokens"].is_u64(), "{delta}");
}

#[test]
fn k02_k04_a_full_context_ends_an_answer_and_nothing_else() {
    let client = start(scripted(200, 1).script("hello", bytes("Hi there")), options());
    for _ in 0..2 {
        let messages = json!([{"role": "user", "content": "tell me everything"}]);
        let full =
            client.post("/v1/chat/completions", json!({"messages": messages, "max_tokens": 100_000})).ok();
        assert_eq!(full["choices"][0]["finish_reason"], "length");
        assert_eq!(full["usage"]["total_tokens"], 201);
        let messages = json!([{"role": "user", "content": "@hello:"}]);
        let fresh = client.post("/v1/chat/completions", json!({"messages": messages})).ok();
        assert_eq!(fresh["choices"][0]["message"]["content"], "Hi there");
    }
}

#[test]
fn k08_what_was_restored_is_used_by_another_server() {
    let folder = tempfile::tempdir().unwrap();
    // Without a blank, which the model writes as a byte and the tokenizer as a token of its own.
    let model = || scripted(300, 2).script("answer", bytes("Hi,you"));
    let options = || Options { slot_folder: Some(folder.path().into()), ..options() };
    let first = start(model(), options());
    first.post("/completion", json!({"prompt": "some words @answer:", "id_slot": 1})).ok();
    let saved = first.post("/slots/1?action=save", json!({"filename": "s"})).ok();
    drop(first);
    let second = start(model(), options());
    let restored = second.post("/slots/0?action=restore", json!({"filename": "s"})).ok();
    assert_eq!((&restored["n_restored"], &restored["n_read"]), (&saved["n_saved"], &saved["n_written"]));
    // A longer prompt goes on from all that was saved.
    let prompt = "some words @answer:Hi,you and more @answer:";
    let found = second.post("/completion", json!({"prompt": prompt})).ok();
    assert_eq!(found["timings"]["cache_n"], saved["n_saved"], "{found}");
    assert_eq!((&found["content"], &found["id_slot"]), (&json!("Hi,you"), &json!(0)));
}
