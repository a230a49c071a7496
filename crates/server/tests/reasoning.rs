//! How long answers may reason, where their reasoning goes, and what a limit leaves of calls.

mod common;

use common::{Client, TEMPLATE, options, scripted::bytes, scripted::scripted, served, tokenizer};
use puna_server::{Reasoning, Served};
use serde_json::{Value, json};

/// A server of a model that reasons and follows this script.
fn client(script: &str, change: impl FnOnce(&mut Served)) -> Client {
    let template = format!("{TEMPLATE}{{# <think></think><tool_call> #}}");
    let model = scripted(2000, 2).script("call", bytes(script));
    let mut served = served(model, 16, tokenizer(), &template);
    change(&mut served);
    Client::new(puna_server::Server::start(served, options()).unwrap())
}

fn body(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "@call:"}]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Reasoning and content of an answer.
fn told_apart(client: &Client, more: Value) -> (String, String) {
    let answer = client.post("/v1/chat/completions", body(more)).ok();
    let message = &answer["choices"][0]["message"];
    let text = |name: &str| message[name].as_str().unwrap_or("").to_owned();
    (text("reasoning_content"), text("content"))
}

/// The model goes on in its script wherever that is; a closing mark of eight tokens takes the place of eight of them.
const LONG: &str = "<think>abcdefghijkdone";

#[test]
fn reasoning_ends_when_its_tokens_are_used_up() {
    let model = client(LONG, |_| ());
    let apart = |reasoning: &str, content: &str| (reasoning.to_owned(), content.to_owned());
    assert_eq!(told_apart(&model, json!({})), apart("abcdefghijkdone", ""));
    assert_eq!(told_apart(&model, json!({"reasoning_budget_tokens": -1})), apart("abcdefghijkdone", ""));
    assert_eq!(told_apart(&model, json!({"reasoning_budget_tokens": 3})), apart("abc", "done"));
    assert_eq!(told_apart(&model, json!({"thinking_budget_tokens": 0})), apart("", "ijkdone"));
    let told = json!({"reasoning_budget_tokens": 1, "reasoning_budget_message": "..."});
    assert_eq!(told_apart(&model, told), apart("a...", "one"));
    // In blocks of Anthropic's protocol, where the limit is called so.
    let asked = json!({"max_tokens": 90, "thinking": {"type": "enabled", "budget_tokens": 3}});
    let blocks = model.post("/v1/messages", body(asked)).ok()["content"].clone();
    assert_eq!((&blocks[0]["thinking"], &blocks[1]["text"]), (&json!("abc"), &json!("done")));
    for (field, value) in [("reasoning_budget_tokens", json!(-2)), ("reasoning_budget_message", json!(7))] {
        let mut refused = body(json!({"reasoning_budget_tokens": 1}));
        refused[field] = value;
        let error = model.post("/v1/chat/completions", refused).json();
        assert!(error["error"]["message"].as_str().unwrap().contains(field), "{error}");
    }
}

#[test]
fn flags_limit_reasoning_unless_the_request_says_more() {
    let model = client(LONG, |served| {
        served.defaults.reasoning_budget = Some(3);
        served.defaults.reasoning_budget_message = "!".into();
    });
    let (reasoning, content) = told_apart(&model, json!({}));
    assert_eq!((reasoning.as_str(), content.as_str()), ("abc!", "one"));
    let (reasoning, _) = told_apart(&model, json!({"reasoning_budget_tokens": -1}));
    assert_eq!(reasoning, "abcdefghijkdone");
}

#[test]
fn a_limit_and_a_grammar_do_not_fight() {
    // The grammar wins where it forbids what the limit wants.
    let model = client("<think>ab", |_| ());
    let asked = json!({"reasoning_budget_tokens": 1, "grammar": "root ::= \"<think>ab\""});
    assert_eq!(told_apart(&model, asked), ("ab".to_owned(), String::new()));
}

#[test]
fn deepseek_legacy_keeps_reasoning_in_the_content_of_streams() {
    let model = client("<think>\nhm\n</think>\n\nSo.", |served| {
        served.defaults.reasoning = Reasoning::Legacy;
    });
    assert_eq!(told_apart(&model, json!({})), ("hm".to_owned(), "So.".to_owned()));
    let deltas = |more: Value, name: &str| -> String {
        let events = model.post("/v1/chat/completions", body(more)).events();
        let place = format!("/choices/0/delta/{name}");
        events.iter().filter_map(|event| event.pointer(&place)?.as_str()).collect()
    };
    assert_eq!(deltas(json!({"stream": true}), "content"), "<think>hm</think>So.");
    assert_eq!(deltas(json!({"stream": true}), "reasoning_content"), "");
    let asked = json!({"stream": true, "reasoning_format": "deepseek"});
    assert_eq!(deltas(asked.clone(), "content"), "So.");
    assert_eq!(deltas(asked, "reasoning_content"), "hm");
    let error = model.post("/v1/chat/completions", body(json!({"reasoning_format": "deepsea"}))).json();
    assert!(error["error"]["message"].as_str().unwrap().contains("deepseek-legacy"), "{error}");
}

#[test]
fn a_call_that_a_limit_cuts_off_keeps_the_arguments_so_far() {
    let model =
        client("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"one two\"}}</tool_call>", |_| ());
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    // Up to `{"name": "f", "arguments": `, within the text, all of it.
    for (most, expected) in [(38, ""), (48, "{\"x\": \"one"), (90, "{\"x\": \"one two\"}")] {
        let asked = json!({"tools": tools, "max_tokens": most});
        let choice = model.post("/v1/chat/completions", body(asked.clone())).ok()["choices"][0].clone();
        let function = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(function, &json!({"name": "f", "arguments": expected}), "{most}");
        assert_eq!(choice["finish_reason"], if most < 90 { "length" } else { "tool_calls" });
        let mut stream = asked;
        stream["stream"] = json!(true);
        let events = model.post("/v1/chat/completions", body(stream)).events();
        let place = "/choices/0/delta/tool_calls/0/function/arguments";
        let streamed: String = events.iter().filter_map(|event| event.pointer(place)?.as_str()).collect();
        assert_eq!(streamed, expected);
    }
}

#[test]
fn json_comes_after_reasoning_that_the_prompt_has_begun() {
    let template = format!("{TEMPLATE}<think>{{# </think><tool_call> #}}");
    // The first seven tokens stand in the prompt.
    let model = scripted(2000, 2).script("call", bytes("<think>hm {</think>\n{\"a\": 1}"));
    let served = served(model, 16, tokenizer(), &template);
    let model = Client::new(puna_server::Server::start(served, options()).unwrap());
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let apart = told_apart(&model, json!({"response_format": format}));
    assert_eq!(apart, ("hm {".to_owned(), "{\"a\": 1}".to_owned()));
}

#[test]
fn reasoning_is_counted_wherever_it_goes() {
    // Each character is a token: both marks and what is between them.
    let model = client("<think>abc</think>\ndone", |_| ());
    let counted = "<think>".len().min(1) + "abc".len() + "</think>".len();
    for more in [json!({}), json!({"stream": true}), json!({"reasoning_format": "none"})] {
        let mut asked = json!({"input": "@call:"});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = model.post("/v1/responses", asked.clone());
        let usage = match more.get("stream") {
            Some(_) => reply.events().last().unwrap()["response"]["usage"].clone(),
            None => reply.ok()["usage"].clone(),
        };
        assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], counted, "{more}");
    }
    let usage = model.post("/v1/chat/completions", body(json!({"n": 2}))).ok()["usage"].clone();
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 2 * counted);
    let plain = client("no thoughts", |_| ()).post("/v1/chat/completions", body(json!({}))).ok();
    assert_eq!(plain["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

#[test]
fn half_a_mark_at_the_end_of_a_cut_answer_is_no_text() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let call = "So.<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let thinks = "<think>ab</think>cd";
    for (script, most, reasoning, content) in [
        (call, 5, "", "So."),
        (call, 12, "", "So."),
        // A call without a name yet.
        (call, 25, "", "So."),
        (thinks, 3, "", ""),
        (thinks, 11, "ab", ""),
        (thinks, 16, "ab", ""),
        (thinks, 18, "ab", "c"),
    ] {
        let model = client(script, |_| ());
        for path in ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"] {
            let mut asked = body(json!({"max_tokens": most}));
            match path {
                "/v1/messages" => asked["tools"] = json!([{"name": "f", "input_schema": {"type": "object"}}]),
                "/v1/responses" => {
                    asked = json!({"input": "@call:", "max_output_tokens": most});
                    asked["tools"] = json!([{"type": "function", "name": "f", "parameters": {}}]);
                }
                _ => asked["tools"] = tools.clone(),
            }
            if path == "/api/chat" {
                (asked["stream"], asked["options"]) = (json!(false), json!({"num_predict": most}));
            }
            let text = model.post(path, asked).ok().to_string();
            assert!(!text.contains("<t") && !text.contains("</"), "{path} {most}: {text}");
        }
        let apart = told_apart(&model, json!({"max_tokens": most, "tools": tools}));
        assert_eq!((apart.0.as_str(), apart.1.as_str()), (reasoning, content), "{script} {most}");
    }
}
