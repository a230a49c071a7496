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

#[test]
fn responses_say_what_held() {
    let client = with_tools();
    let asked = json!({
        "input": "@hello:", "instructions": "be kind", "temperature": 0.8, "top_p": 0.9, "max_output_tokens": 20,
        "metadata": {"a": "b"}, "reasoning": {"effort": "low"}, "parallel_tool_calls": false,
    });
    let whole = client.post("/v1/responses", asked.clone()).ok();
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let events = client.post("/v1/responses", streamed).events();
    for found in [&whole, &events[0]["response"], &events.last().unwrap()["response"]] {
        for name in [
            "instructions",
            "temperature",
            "top_p",
            "max_output_tokens",
            "metadata",
            "reasoning",
            "parallel_tool_calls",
        ] {
            assert_eq!(found[name], asked[name], "{name}");
        }
    }
    // What holds where nothing was said.
    let plain = client.post("/v1/responses", json!({"input": "@hello:"})).ok();
    let defaults = puna_sampling::Parameters::default();
    for (name, expected) in [
        ("temperature", json!(defaults.temperature.to_string().parse::<f64>().unwrap())),
        ("top_p", json!(defaults.top_p.to_string().parse::<f64>().unwrap())),
        ("max_output_tokens", Value::Null),
        ("instructions", Value::Null),
        ("metadata", json!({})),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
    ] {
        assert_eq!(plain[name], expected, "{name}");
    }
}

/// Errors speak of the fields that the client sent, under the names that these have there.
#[test]
fn errors_name_the_fields_of_their_protocol() {
    let client = with_tools();
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let hello = user(json!("hello"));
    let claude = |more: Value| {
        let mut body = json!({"max_tokens": 5, "system": "s", "messages": hello});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/messages", body)
    };
    let responses = |more: Value| {
        let mut body = json!({"instructions": "i", "input": "x"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/responses", body)
    };
    let ollama = |more: Value| {
        let mut body = json!({"messages": hello});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/api/chat", body)
    };
    let generate = |more: Value| {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/api/generate", body)
    };
    let chat = |more: Value| {
        let mut body = json!({"messages": hello});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/chat/completions", body)
    };
    let schema = json!({"type": "wrong"});
    for ((path, body), field) in [
        (claude(json!({"thinking": {"type": "enabled", "budget_tokens": "x"}})), "thinking.budget_tokens"),
        (claude(json!({"thinking": {"type": "on"}})), "thinking.type"),
        (claude(json!({"thinking": 5})), "thinking"),
        (claude(json!({"tool_choice": {"type": "required"}})), "tool_choice.type"),
        (claude(json!({"tool_choice": {"type": "tool"}})), "tool_choice.name"),
        (
            claude(json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}})),
            "tool_choice.disable_parallel_tool_use",
        ),
        (claude(json!({"tools": [{"name": "f", "input_schema": 5}]})), "tools[0].input_schema"),
        (
            claude(json!({"tools": [{"name": "f"}, {"type": "bash_20250124", "name": "bash"}]})),
            "tools[1].type",
        ),
        (claude(json!({"tools": [{"input_schema": {}}]})), "tools[0].name"),
        // The system text is no message, so it does not count.
        (claude(json!({"messages": user(json!([{"type": "image"}]))})), "messages[0].content[0]"),
        (claude(json!({"messages": user(json!(5))})), "messages[0].content"),
        (claude(json!({"messages": user(Value::Null)})), "messages[0].content"),
        (
            claude(
                json!({"messages": user(json!([{"type": "tool_use", "id": "1", "name": "f", "input": 5}]))}),
            ),
            "messages[0].content[0].input",
        ),
        (
            claude(json!({"messages": user(json!([{"type": "tool_result"}]))})),
            "messages[0].content[0].tool_use_id",
        ),
        (claude(json!({"stop_sequences": 5})), "stop_sequences"),
        (responses(json!({"text": {"format": {"type": "xml"}}})), "text.format"),
        (responses(json!({"text": {"format": {"type": "json_schema", "name": "n"}}})), "text.format.schema"),
        (
            responses(json!({"text": {"format": {"type": "json_schema", "schema": schema}}})),
            "text.format.schema",
        ),
        (responses(json!({"reasoning": {"effort": 5}})), "reasoning.effort"),
        (responses(json!({"input": []})), "input"),
        (
            responses(json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})),
            "input[0].content[0]",
        ),
        (responses(json!({"input": [{"role": "nobody", "content": "x"}]})), "input[0].role"),
        (
            responses(json!({"input": [{"type": "function_call", "call_id": "1", "arguments": "{}"}]})),
            "input[0].name",
        ),
        (responses(json!({"input": [5]})), "input[0]"),
        (
            responses(json!({"tools": [{"type": "function", "name": "f", "parameters": 5}]})),
            "tools[0].parameters",
        ),
        (responses(json!({"top_logprobs": 3})), "top_logprobs"),
        (ollama(json!({"format": schema})), "format"),
        (ollama(json!({"options": {"temperature": "hot"}})), "options.temperature"),
        (ollama(json!({"options": {"num_predict": "x"}})), "options.num_predict"),
        (ollama(json!({"options": {"num_ctx": "x"}})), "options.num_ctx"),
        (ollama(json!({"think": 5})), "think"),
        (ollama(json!({"deadline_ms": "x"})), "deadline_ms"),
        (
            ollama(json!({"messages": [{"role": "user", "content": "x", "images": "AA"}]})),
            "messages[0].images",
        ),
        (generate(json!({"images": ["AA"]})), "images"),
        (generate(json!({"suffix": "x"})), "suffix"),
        (generate(json!({"template": "x"})), "template"),
        (chat(json!({"tools": [5]})), "tools[0]"),
        (chat(json!({"tools": [{"type": "web_search"}]})), "tools[0].type"),
        (chat(json!({"tools": [{"type": "function", "function": {}}]})), "tools[0].function.name"),
        (
            chat(json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]})),
            "tools[0].function.parameters",
        ),
        (
            chat(
                json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]}),
            ),
            "messages[1].tool_calls[0].function.name",
        ),
        (chat(json!({"model": 5})), "model"),
        (chat(json!({"stop": vec!["x"; 300]})), "stop"),
    ] {
        let reply = client.post(path, body.clone());
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        let message = reply.message();
        assert!(message.contains(&format!("field '{field}'")), "{body}: {message}");
    }
}

#[test]
fn ollama_takes_what_is_this_servers_own() {
    let client = with_tools();
    let messages = json!([{"role": "user", "content": "@call:"}]);
    let told = |more: Value| {
        let mut body = json!({"messages": messages, "stream": false, "think": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.post("/api/chat", body)
    };
    assert_eq!(told(json!({})).ok()["message"]["thinking"], "hm");
    let cut = told(json!({"reasoning_budget_tokens": 1})).ok()["message"]["thinking"].clone();
    assert_eq!(cut, "h");
    let none = told(json!({"reasoning_format": "none"})).ok()["message"].clone();
    assert!(none["thinking"].is_null() && none["content"].as_str().unwrap().starts_with("<think>"), "{none}");
    // They are checked as elsewhere, so they are heard.
    for (name, value) in
        [("priority", json!(2_000_000)), ("deadline_ms", json!(0)), ("reasoning_budget_tokens", json!(-2))]
    {
        let mut asked = json!({"prompt": "x", "stream": false});
        asked[name] = value;
        for reply in [told(asked.clone()), client.post("/api/generate", asked)] {
            assert_eq!(reply.status, 400, "{reply:?}");
            assert!(reply.message().contains(&format!("'{name}'")), "{reply:?}");
        }
    }
}
