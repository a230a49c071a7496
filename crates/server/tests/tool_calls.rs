//! `tool_choice` and `parallel_tool_calls`, and histories with calls.

mod common;

use common::scripted::bytes;
use common::*;
use puna_server::Server;
use serde_json::{Value, json};

/// Two functions.
fn tools() -> Value {
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    json!([
        function(
            "paint",
            json!({"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "times": {"type": "integer", "minimum": 1, "maximum": 3}}, "required": ["colour", "times"]})
        ),
        function("rest", json!({"type": "object", "properties": {}})),
    ])
}

fn calls(client: &Client, choice: Value, extra: Value) -> Reply {
    let mut body = json!({
        "messages": [{"role": "user", "content": "@random:"}], "tools": tools(), "tool_choice": choice,
        "max_tokens": 600, "temperature": 1.0, "seed": 3,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    client.post("/v1/chat/completions", body)
}

/// The calls of an answer: names and arguments.
#[track_caller]
fn read(found: &Value) -> Vec<(String, Value)> {
    let message = &found["choices"][0]["message"];
    assert_eq!(found["choices"][0]["finish_reason"], "tool_calls", "{found}");
    assert_eq!(message["content"], Value::Null, "{found}");
    let list = message["tool_calls"].as_array().unwrap();
    let call = |call: &Value| {
        let arguments = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        (call["function"]["name"].as_str().unwrap().to_owned(), arguments)
    };
    list.iter().map(call).collect()
}

#[track_caller]
fn check_paint(arguments: &Value) {
    assert!(["red", "blue"].contains(&arguments["colour"].as_str().unwrap_or("")), "{arguments}");
    assert!((1..=3).contains(&arguments["times"].as_u64().unwrap_or(0)), "{arguments}");
}

#[test]
fn a_call_that_is_required_comes() {
    // The model writes random letters and would never call.
    let client = start(scripted(8000, 2), options());
    for seed in 0..6 {
        let found =
            calls(&client, json!("required"), json!({"seed": seed, "parallel_tool_calls": false})).ok();
        let calls = read(&found);
        assert_eq!(calls.len(), 1);
        match calls[0].0.as_str() {
            "paint" => check_paint(&calls[0].1),
            name => assert_eq!((name, &calls[0].1), ("rest", &json!({}))),
        }
        let named = json!({"type": "function", "function": {"name": "paint"}});
        let found = self::calls(&client, named, json!({"seed": seed, "parallel_tool_calls": false})).ok();
        let calls = read(&found);
        assert_eq!((calls.len(), calls[0].0.as_str()), (1, "paint"));
        check_paint(&calls[0].1);
    }
    // In a stream, and in the other protocols.
    let events =
        calls(&client, json!("required"), json!({"stream": true, "parallel_tool_calls": false})).events();
    let names =
        events.iter().filter_map(|event| event.pointer("/choices/0/delta/tool_calls/0/function/name"));
    assert_eq!(names.count(), 1);
    let messages = json!([{"role": "user", "content": "@random:"}]);
    let list: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| json!({"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}))
        .collect();
    for (choice, name) in [
        (json!({"type": "any", "disable_parallel_tool_use": true}), None),
        (json!({"type": "tool", "name": "paint", "disable_parallel_tool_use": true}), Some("paint")),
    ] {
        let body =
            json!({"messages": messages, "tools": list, "tool_choice": choice, "max_tokens": 600, "seed": 5});
        let found = client.post("/v1/messages", body).ok();
        assert_eq!(found["stop_reason"], "tool_use", "{found}");
        let blocks = found["content"].as_array().unwrap();
        assert_eq!(blocks.len(), 1, "{found}");
        assert!(name.is_none_or(|name| blocks[0]["name"] == name), "{found}");
    }
    let flat: Vec<Value> = list
        .iter()
        .map(|tool| json!({"type": "function", "name": tool["name"], "parameters": tool["input_schema"]}))
        .collect();
    let body = json!({"input": "@random:", "tools": flat, "tool_choice": {"type": "function", "name": "rest"}, "parallel_tool_calls": false, "max_output_tokens": 600, "seed": 5});
    let found = client.post("/v1/responses", body).ok();
    let call = &found["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["arguments"]),
        (&json!("function_call"), &json!("rest"), &json!("{}")),
        "{found}"
    );
    assert_eq!(found["parallel_tool_calls"], false);
}

#[test]
fn where_the_model_decides_a_call_follows_its_schema_once_it_begins() {
    let wrong = "I call. <tool_call>\n{\"name\": \"paint\", \"arguments\": {\"colour\": \"green\", \"times\": 9}}\n</tool_call>";
    let aloud = "<tool_call> is how I would begin";
    let two = "<tool_call>{\"name\": \"rest\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"rest\", \"arguments\": {}}</tool_call>";
    let model = scripted(8000, 2)
        .script("wrong", bytes(wrong))
        .script("plain", bytes("no call at all"))
        .script("aloud", bytes(format!("<think>{aloud}</think>done")))
        .script("two", bytes(two));
    let template = format!("{TEMPLATE}{{# <think></think> #}}");
    let client = Client::new(Server::start(served(model, 16, tokenizer(), &template), options()).unwrap());
    let ask = |prompt: &str, extra: Value| {
        let mut extra = extra;
        extra["messages"] = json!([{"role": "user", "content": prompt}]);
        extra["temperature"] = json!(0);
        calls(&client, json!("auto"), extra).ok()
    };
    let found = ask("@wrong:", json!({}));
    let message = &found["choices"][0]["message"];
    assert_eq!(message["content"], "I call.", "{found}");
    let call = &message["tool_calls"][0]["function"];
    assert_eq!(call["name"], "paint");
    check_paint(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap());
    let found = ask("@plain:", json!({}));
    assert_eq!(found["choices"][0]["message"]["content"], "no call at all");
    // Reasoning may speak of calls.
    let found = ask("@aloud:", json!({}));
    assert_eq!(found["choices"][0]["message"]["reasoning_content"], aloud, "{found}");
    assert_eq!(found["choices"][0]["message"]["content"], "done");
    // One call only if the request says so.
    let count = |found: &Value| found["choices"][0]["message"]["tool_calls"].as_array().unwrap().len();
    assert_eq!(count(&ask("@two:", json!({}))), 2);
    assert_eq!(count(&ask("@two:", json!({"parallel_tool_calls": false}))), 1);
}

#[test]
fn choices_that_make_no_sense_are_refused() {
    let client = start(scripted(2000, 1).script("hi", bytes("hi")), options());
    let message =
        |choice: Value, extra: Value| calls(&client, choice, extra).error(400, "invalid_request_error");
    assert!(message(json!("required"), json!({"tools": []})).contains("there are no tools"));
    assert!(message(json!({"type": "function", "function": {"name": "swim"}}), json!({})).contains("'swim'"));
    assert!(message(json!("sometimes"), json!({})).contains("tool_choice"));
    assert!(message(json!(7), json!({})).contains("tool_choice"));
    // A schema that cannot be enforced: named if the function is strict, any arguments else.
    let odd = |strict: bool| json!({"tools": [{"type": "function", "function": {"name": "odd", "strict": strict, "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}}], "messages": [{"role": "user", "content": "@hi:"}]});
    assert!(message(json!("auto"), odd(true)).contains("#/properties/a/not"));
    assert_eq!(calls(&client, json!("auto"), odd(false)).ok()["choices"][0]["message"]["content"], "hi");
}

/// Of a schema that cannot be enforced as a whole everything else is, unless the function is strict.
#[test]
fn what_of_a_schema_can_be_enforced_is() {
    let client = start(scripted(2000, 1), options());
    // The first is seen in the schema, the second only when the whole is compiled.
    let overlapping = json!([{"type": "boolean"}, {"enum": [true, null]}]);
    for odd in [json!({"type": "boolean", "not": {"const": true}}), json!({"oneOf": overlapping})] {
        let parameters = json!({
            "type": "object", "required": ["sure", "odd"], "additionalProperties": false,
            "properties": {"sure": {"type": "boolean"}, "odd": odd},
        });
        let ask = |strict: bool| {
            let function = json!({"name": "odd", "strict": strict, "parameters": parameters});
            let tools = json!([{"type": "function", "function": function}]);
            let messages = json!([{"role": "user", "content": "@random:"}]);
            calls(
                &client,
                json!("required"),
                json!({"tools": tools, "messages": messages, "max_tokens": 400}),
            )
        };
        for _ in 0..3 {
            let found = ask(false).ok();
            let call = &found["choices"][0]["message"]["tool_calls"][0]["function"];
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["sure"].is_boolean(), "{found}");
            assert_eq!(arguments.as_object().unwrap().len(), 2, "{found}");
        }
        let message = ask(true).error(400, "invalid_request_error");
        assert!(message.contains("'tools'"), "{message}");
    }
}

#[test]
fn c10_arguments_in_a_history_that_are_no_object() {
    let client = start(scripted(2000, 1).script("hi", bytes("hi")), options());
    for arguments in
        [json!("{"), json!(""), json!("null"), json!("[]"), json!({"a": 1}), json!(7), json!(null)]
    {
        let call =
            json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
        let messages = json!([
            {"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": call},
            {"role": "tool", "tool_call_id": "1", "content": "y"}, {"role": "user", "content": "@hi:"},
        ]);
        let reply = client.post("/v1/chat/completions", json!({"messages": messages}));
        assert!([200, 400].contains(&reply.status), "{arguments}: {reply:?}");
        // Never an empty body.
        reply.json();
    }
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]);
    let message = client
        .post("/v1/chat/completions", json!({"messages": messages}))
        .error(400, "invalid_request_error");
    assert!(message.contains("messages[1]"), "{message}");
}

#[test]
fn c11_c14_turns_with_text_and_calls_and_ids_that_are_null() {
    let client = start(scripted(2000, 1).script("hi", bytes("hi")), options());
    let call = json!([{"id": null, "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    for result in [
        json!({"role": "tool", "content": "y"}),
        json!({"role": "tool", "tool_call_id": null, "content": "y"}),
        json!({"role": "tool", "tool_call_id": "", "content": "y"}),
    ] {
        let messages = json!([
            {"role": "user", "content": "x"}, {"role": "assistant", "content": "I look.", "tool_calls": call},
            result, {"role": "user", "content": "@hi:"},
        ]);
        let found = client.post("/v1/chat/completions", json!({"messages": messages})).ok();
        assert_eq!(found["choices"][0]["message"]["content"], "hi");
    }
    // C14: ids of calls are there and differ.
    let found = calls(&start(scripted(8000, 1), options()), json!("required"), json!({"seed": 1})).ok();
    let ids: Vec<&str> = found["choices"][0]["message"]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].as_str().unwrap())
        .collect();
    assert!(ids.iter().all(|id| !id.is_empty()));
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len());
}

#[test]
fn t10_a_tool_result_of_one_letter() {
    let client = start(scripted(1000, 1), options());
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let messages = json!([
        {"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": call},
        {"role": "tool", "tool_call_id": "1", "content": "Z".repeat(131_072)},
    ]);
    client
        .post("/v1/chat/completions", json!({"messages": messages}))
        .error(400, "exceed_context_size_error");
}

#[test]
fn t19_one_beginning_token() {
    let heard: std::sync::Arc<std::sync::Mutex<Vec<String>>> = Default::default();
    let list = heard.clone();
    let warnings = puna_server::Warnings::to(move |message| list.lock().unwrap().push(message.to_owned()));
    let template = "{{ bos_token }}{{ messages[0].content }}";
    let model = scripted(500, 1).script("hi", bytes("hi"));
    let options = puna_server::Options { warnings, ..options() };
    let client = Client::new(Server::start(served(model, 16, tokenizer(), template), options).unwrap());
    let body = json!({"messages": [{"role": "user", "content": "@hi:"}]});
    let found = client.post("/v1/chat/completions", body).ok();
    assert_eq!(found["usage"]["prompt_tokens"], 1 + "@hi:".len());
    assert!(heard.lock().unwrap().is_empty());
    // In a plain prompt it is the client's own affair, and said.
    let found = client.post("/completion", json!({"prompt": "<s>@hi:"})).ok();
    assert_eq!(found["tokens_evaluated"], 2 + "@hi:".len());
    assert!(heard.lock().unwrap().iter().any(|warning| warning.contains("<s>")), "{heard:?}");
}

#[test]
fn c03_c06_c07_what_a_template_refuses_is_a_400_in_its_words() {
    let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% if loop.first and m.role == 'assistant' %}{{ raise_exception('no user') }}{% endif %}{{ m.content }}{% if m.content == 'odd' %}{{ m | nosuchfilter }}{% endif %}{% endfor %}";
    let model = scripted(500, 1).script("hi", bytes("hi"));
    let client = Client::new(Server::start(served(model, 16, tokenizer(), strict), options()).unwrap());
    let ask = |messages: Value| client.post("/v1/chat/completions", json!({"messages": messages}));
    let plain = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "@hi:"}]);
    assert_eq!(ask(plain).ok()["choices"][0]["message"]["content"], "hi");
    let late = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "system", "content": "t"}, {"role": "user", "content": "@hi:"}]);
    let message = ask(late).error(400, "invalid_request_error");
    assert!(message.contains("System message must be at the beginning."), "{message}");
    let message = ask(json!([{"role": "user", "content": "odd"}])).error(400, "invalid_request_error");
    assert!(message.contains("nosuchfilter") && message.contains("line 1"), "{message}");
}
