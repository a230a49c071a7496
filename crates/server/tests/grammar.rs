//! Grammars and schemas of requests.

mod common;

use common::scripted::bytes;
use common::*;
use serde_json::{Value, json};

/// A request that is answered greedily.
fn ask(client: &Client, prompt: &str, extra: Value) -> Reply {
    let mut body = json!({"prompt": prompt, "n_predict": 400, "temperature": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    client.post("/completion", body)
}

#[test]
fn answers_follow_the_grammar() {
    let client = start(scripted(4000, 4).script("no", bytes("no no no")), options());
    let yes = "root ::= \"yes\" | \"yab\"";
    for prompt in ["anything", "@no:", "@random:"] {
        let found = ask(&client, prompt, json!({"grammar": yes})).ok();
        let text = found["content"].as_str().unwrap();
        assert!(text == "yes" || text == "yab", "{found}");
        assert_eq!(found["stop_type"], "eos");
        assert_eq!(found["generation_settings"]["grammar"], yes);
    }
    // Where the model follows it anyway nothing changes.
    let found = ask(&client, "@no:", json!({"grammar": "root ::= (\"no\" \" \"?)*"})).ok();
    assert_eq!(found["content"], "no no no");
    // Without the end among the tokens the answer ends where the grammar does.
    let found = ask(&client, "@no:", json!({"grammar": yes, "ignore_eos": true})).ok();
    assert_eq!(found["content"].as_str().unwrap().len(), 3);
    // Streams, several answers, other protocols.
    let body = json!({"prompt": "@random:", "grammar": yes, "stream": true, "seed": 3});
    let text: String = client
        .post("/completion", body)
        .events()
        .iter()
        .map(|event| event["content"].as_str().unwrap())
        .collect();
    assert!(text == "yes" || text == "yab", "{text}");
    let several = client.post("/v1/completions", json!({"prompt": "@random:", "grammar": yes, "n": 3})).ok();
    for choice in several["choices"].as_array().unwrap() {
        assert!(["yes", "yab"].contains(&choice["text"].as_str().unwrap()), "{several}");
    }
}

#[test]
fn answers_follow_the_schema() {
    let client = start(scripted(4000, 4).script("x", bytes("xyz")), options());
    let messages = json!([{"role": "user", "content": "@x:"}]);
    let schema = json!({"type": "object", "properties": {"a": {"const": [1, "b"]}}, "required": ["a"]});
    let exact = json!({"a": [1, "b"]});
    let parse = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    assert_eq!(parse(&ask(&client, "@x:", json!({"json_schema": schema})).ok()["content"]), exact);
    for format in [
        json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}}),
        json!({"type": "json_object", "schema": schema}),
        json!({"type": "json_schema", "schema": schema}),
    ] {
        let body =
            json!({"messages": messages, "response_format": format, "temperature": 0, "max_tokens": 400});
        let found = client.post("/v1/chat/completions", body).ok();
        assert_eq!(parse(&found["choices"][0]["message"]["content"]), exact, "{format}");
    }
    let body = json!({"input": "@x:", "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}, "temperature": 0});
    let found = client.post("/v1/responses", body).ok();
    assert_eq!(parse(&found["output"][0]["content"][0]["text"]), exact);
    let free = json!({"messages": messages, "response_format": {"type": "text"}, "temperature": 0});
    assert_eq!(client.post("/v1/chat/completions", free).ok()["choices"][0]["message"]["content"], "xyz");
    let object = json!({"messages": messages, "response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 5});
    let found = client.post("/v1/chat/completions", object).ok();
    assert!(found["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'), "{found}");
    // An empty grammar is none.
    let empty = json!({"grammar": " ", "json_schema": schema});
    assert_eq!(parse(&ask(&client, "@x:", empty).ok()["content"]), exact);
}

#[test]
fn of_two_things_to_follow_none_is_dropped() {
    let client = start(scripted(4000, 4), options());
    let (grammar, schema) = ("root ::= \"q\"", json!({"type": "object"}));
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let messages = json!([{"role": "user", "content": "x"}]);
    for (path, body, both) in [
        (
            "/completion",
            json!({"prompt": "x", "grammar": grammar, "json_schema": schema}),
            ["grammar", "json_schema"],
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "grammar": grammar, "response_format": format}),
            ["grammar", "response_format"],
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "json_schema": schema, "response_format": format}),
            ["json_schema", "response_format"],
        ),
        (
            "/v1/responses",
            json!({"input": "x", "grammar": grammar, "text": {"format": {"type": "json_schema", "schema": schema}}}),
            ["grammar", "text.format"],
        ),
        (
            "/api/chat",
            json!({"messages": messages, "format": "json", "options": {"grammar": grammar}}),
            ["options.grammar", "format"],
        ),
        (
            "/api/generate",
            json!({"prompt": "x", "format": schema, "options": {"json_schema": schema}}),
            ["format", "options"],
        ),
    ] {
        let reply = client.post(path, body);
        let message = reply.message();
        assert_eq!(reply.status, 400, "{path}: {message}");
        assert!(both.iter().all(|name| message.contains(&format!("'{name}'"))), "{path}: {message}");
    }
    // Text is no format, so nothing is dropped.
    let text = json!({"messages": messages, "grammar": grammar, "response_format": {"type": "text"}});
    assert_eq!(client.post("/v1/chat/completions", text).ok()["choices"][0]["message"]["content"], "q");
}

#[test]
fn j01_j03_j05_j06_what_is_wrong_is_refused_and_nothing_else_suffers() {
    let client = start(scripted(4000, 4), options());
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    let pattern = |pattern: &str| json!({"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}}});
    let many = "(".repeat(50_000);
    for (wrong, says) in [
        (json!({"grammar": "root := x"}), "line 1, column 6"),
        (json!({"grammar": deep}), "groups within each other"),
        (json!({"grammar": 3}), "'grammar'"),
        (json!({"grammar": "%llguidance {}\nstart: nothing"}), "Lark"),
        (json!({"json_schema": pattern("*")}), "#/properties/p/pattern"),
        (json!({"json_schema": pattern("(?<=x)*")}), "#/properties/p/pattern"),
        (json!({"json_schema": pattern(&many)}), "#/properties/p/pattern"),
        (json!({"json_schema": {"not": {}}}), "#/not"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}}),
            "#/type",
        ),
        (json!({"response_format": {"type": "json_schema"}}), "'response_format.json_schema' is missing"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": 5}}),
            "'response_format.json_schema': expected",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            "'response_format.json_schema.schema' is missing",
        ),
        (json!({"response_format": {"type": "xml"}}), "response_format"),
        (json!({"grammar": "root ::= \"a\"", "grammar_lazy": true}), "grammar_triggers"),
        (
            json!({"grammar": "root ::= \"a\"", "grammar_lazy": true, "grammar_triggers": [{"type": 9, "value": "x"}]}),
            "type",
        ),
        (
            json!({"grammar": "root ::= \"a\"", "grammar_lazy": true, "grammar_triggers": [{"type": 2, "value": "("}]}),
            "trigger 0",
        ),
        (
            json!({"grammar": "root ::= \"a\"", "tools": [{"type": "function", "function": {"name": "f"}}]}),
            "tools",
        ),
    ] {
        let message = ask(&client, "a", wrong.clone()).error(400, "invalid_request_error");
        assert!(message.contains(says), "{message}");
        ask(&client, "a", json!({"n_predict": 1})).ok();
    }
}

#[test]
fn j17_lazy_grammars() {
    let client = start(scripted(4000, 4).script("call", bytes("so: <call>12x</call> then")), options());
    let lazy = |trigger: Value| json!({"grammar": "root ::= \"<call>\" [0-9]* \"</call>\"", "grammar_lazy": true, "grammar_triggers": [trigger]});
    let found = ask(&client, "@call:", lazy(json!({"type": 1, "value": "<call>"}))).ok();
    // Free before the trigger, then digits only: where the script says x, another byte that fits.
    let text = found["content"].as_str().unwrap();
    assert!(text.starts_with("so: <call>12") && !text.contains('x'), "{text}");
    let found = ask(&client, "@call:", lazy(json!({"type": 1, "value": "never"}))).ok();
    assert_eq!(found["content"], "so: <call>12x</call> then");
    // The grammar does not begin as the text goes on: an error of this request.
    let pattern = lazy(json!({"type": 2, "value": "(o: <call>1)"}));
    ask(&client, "@call:", pattern).error(400, "invalid_request_error");
    ask(&client, "a", json!({"n_predict": 1})).ok();
}
