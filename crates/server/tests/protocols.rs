//! Ollama's protocol, and tools in OpenAI's newer one.

mod common;

use common::scripted::bytes;
use common::{Client, TEMPLATE, options, scripted, served, start, tokenizer};
use serde_json::{Value, json};

const ANSWER: &str =
    "<think>hm</think>\nI look.\n<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>";

fn with_tools() -> Client {
    let template = format!("{TEMPLATE}{{# <think></think><tool_call> #}}");
    let model = scripted(3000, 2).script("call", bytes(ANSWER)).script("hello", bytes("Hi there"));
    Client::new(puna_server::Server::start(served(model, 16, tokenizer(), &template), options()).unwrap())
}

fn lines(client: &Client, path: &str, body: Value) -> Vec<Value> {
    let reply = client.post(path, body);
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("application/x-ndjson")),
        "{reply:?}"
    );
    reply.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn ollama() {
    let client = with_tools();
    let messages = json!([{"role": "user", "content": "@hello:"}]);
    let stream = lines(&client, "/api/chat", json!({"model": "m", "messages": messages}));
    let text: String = stream.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "Hi there");
    let last = stream.last().unwrap();
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["eval_count"]),
        (&json!(true), &json!("stop"), &json!(8))
    );
    assert!(stream[..stream.len() - 1].iter().all(|line| line["done"] == false));
    assert!(last["created_at"].as_str().unwrap().ends_with('Z'));
    let limited =
        json!({"messages": messages, "stream": false, "options": {"num_predict": 2, "temperature": 0}});
    let whole = client.post("/api/chat", limited).ok();
    assert_eq!((&whole["message"]["content"], &whole["done_reason"]), (&json!("Hi"), &json!("length")));

    let raw = json!({"prompt": "@hello:", "raw": true, "stream": false});
    assert_eq!(client.post("/api/generate", raw).ok()["response"], "Hi there");
    let with_system = lines(&client, "/api/generate", json!({"prompt": "@hello:", "system": "s"}));
    let text: String = with_system.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(text, "Hi there");
    assert_eq!(client.post("/api/generate", json!({"model": "m"})).ok()["done_reason"], "load");

    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let ask = json!([{"role": "user", "content": "@call:"}]);
    for stream in [true, false] {
        let body = json!({"messages": ask, "tools": [tool], "stream": stream});
        let answers = match stream {
            true => lines(&client, "/api/chat", body),
            false => vec![client.post("/api/chat", body).ok()],
        };
        let join = |name: &str| -> String {
            answers.iter().filter_map(|line| line["message"][name].as_str()).collect()
        };
        assert_eq!((join("content"), join("thinking")), ("I look.".to_owned(), "hm".to_owned()));
        let calls: Vec<&Value> =
            answers.iter().filter_map(|line| line["message"]["tool_calls"].get(0)).collect();
        assert_eq!(calls, [&json!({"function": {"name": "f", "arguments": {"x": 1}}})]);
    }
    assert_eq!(client.get("/api/tags").ok()["models"][0]["name"], "scripted");
    assert_eq!(client.get("/api/ps").ok()["models"][0]["model"], "scripted");
    assert!(client.get("/api/version").ok()["version"].is_string());
    let show = client.post("/api/show", json!({"model": "scripted"})).ok();
    assert!(show["template"].as_str().unwrap().starts_with(TEMPLATE));
    // Its clients expect errors as texts.
    for (body, part) in [
        (json!({"messages": [{"role": "user", "content": "x", "images": ["AA"]}]}), "images"),
        (json!({"messages": [{"role": "nobody", "content": "x"}]}), "role"),
        (json!({"messages": ask, "options": {"num_predict": "x"}}), "num_predict"),
    ] {
        let reply = client.post("/api/chat", body);
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.json()["error"].as_str().unwrap().contains(part), "{reply:?}");
    }
}

#[test]
fn responses_with_tools() {
    let client = with_tools();
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let input = json!([
        {"role": "user", "content": "ask"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "y"},
        {"role": "user", "content": "@call:"},
    ]);
    let body = |stream: bool| json!({"input": input, "tools": [tool], "stream": stream});
    let whole = client.post("/v1/responses", body(false)).ok();
    let kinds = |items: &Value| -> Vec<String> {
        items.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&whole["output"]), ["reasoning", "message", "function_call"]);
    assert_eq!(whole["output"][0]["content"][0]["text"], "hm");
    assert_eq!(whole["output"][1]["content"][0]["text"], "I look.");
    let call = &whole["output"][2];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("f"), &json!("{\"x\":1}")));
    let events = client.post("/v1/responses", body(true)).events();
    let deltas = |name: &str| -> String {
        let found = events.iter().filter(|event| event["type"] == name);
        found.map(|event| event["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(deltas("response.reasoning_text.delta"), "hm");
    assert_eq!(deltas("response.output_text.delta"), "I look.");
    assert_eq!(deltas("response.function_call_arguments.delta"), "{\"x\":1}");
    let done: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    assert_eq!(
        done.iter().map(|event| event["output_index"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    let last = events.last().unwrap();
    assert_eq!((&last["type"], kinds(&last["response"]["output"]).len()), (&json!("response.completed"), 3));
    let refused = json!({"input": "x", "tools": [{"type": "web_search"}]});
    assert!(client.post("/v1/responses", refused).error(400, "invalid_request_error").contains("tools"));
}

/// A template that knows no tools: the prompt tells of them.
#[test]
fn tools_without_a_template_for_them() {
    let client = start(scripted(3000, 1), options());
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "y"},
        {"role": "tool", "tool_call_id": "2", "content": "z"},
    ]);
    let prompt = client.post("/apply-template", json!({"messages": messages, "tools": [tool]})).ok();
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("system|You may call functions."), "{prompt}");
    assert!(prompt.contains("{\"name\":\"f\",\"parameters\":{}}"), "{prompt}");
    let history = "user|xassistant|<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>user|<tool_response>\ny\n</tool_response>\n<tool_response>\nz\n</tool_response>";
    assert!(prompt.ends_with(history), "{prompt}");
}
