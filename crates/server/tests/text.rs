//! What comes out: text, stops, characters, seeds, probabilities, counts.

mod common;

use common::scripted::{QUESTION, YAB, bytes};
use common::*;
use serde_json::{Value, json};

/// Text of all parts of a native stream.
fn streamed(client: &Client, body: Value) -> (String, Value) {
    let mut body = body;
    body["stream"] = json!(true);
    let events = client.post("/completion", body).events();
    let text = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    (text, events.last().unwrap().clone())
}

/// The same request with and without a stream.
#[track_caller]
fn both(client: &Client, body: &Value) -> Value {
    let whole = client.post("/completion", body.clone()).ok();
    let (text, last) = streamed(client, body.clone());
    assert_eq!(whole["content"], text, "{body}");
    for name in ["stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated"] {
        assert_eq!(whole[name], last[name], "{name} of {body}");
    }
    whole
}

#[test]
fn a01_a02_stops_cut_exactly() {
    let alphabet = "A B C D E F G H I J K L M N O P Q R S T";
    let model = Scripted::new(2000, 2)
        .script("abc", bytes(alphabet))
        .script("tail", [bytes("x"), vec![YAB], bytes("more")].concat())
        .script("ask", [bytes("why"), vec![QUESTION], bytes("no")].concat());
    let client = start(model, options());
    for (prompt, stop, text, word) in [
        ("@abc:", json!(["O P Q"]), "A B C D E F G H I J K L M N ", "O P Q"),
        ("@abc:", json!("T"), "A B C D E F G H I J K L M N O P Q R S ", "T"),
        ("@abc:", json!(["none", "C D", "D"]), "A B ", "C D"),
        ("@tail:", json!("ab"), "xy", "ab"),
        ("@ask:", json!("\n"), "whyz?", "\n"),
        ("@ask:", json!("?\n"), "whyz", "?\n"),
    ] {
        let found = both(&client, &json!({"prompt": prompt, "stop": stop}));
        assert_eq!(
            (found["content"].as_str(), found["stop_type"].as_str()),
            (Some(text), Some("word")),
            "{stop}"
        );
        assert_eq!(found["stopping_word"], word);
    }
    let found = both(&client, &json!({"prompt": "@abc:", "stop": ["X", ""]}));
    assert_eq!((found["content"].as_str(), found["stop_type"].as_str()), (Some(alphabet), Some("eos")));
    let found = both(&client, &json!({"prompt": "@abc:", "n_predict": 3}));
    assert_eq!((found["content"].as_str(), found["stop_type"].as_str()), (Some("A B"), Some("limit")));
}

#[test]
fn a04_a05_characters_are_whole() {
    let good = "é漢🦙👩‍👩‍👧";
    let bad: &[u8] = b"\xed\xa0\x80|\xf0\x80\x80A|\xe2\x80A|\x80|\xf0\x9f";
    let client =
        start(Scripted::new(2000, 2).script("good", bytes(good)).script("bad", bytes(bad)), options());
    let found = both(&client, &json!({"prompt": "@good:"}));
    assert_eq!(found["content"], good);
    let found = both(&client, &json!({"prompt": "@bad:"}));
    assert_eq!(found["content"], String::from_utf8_lossy(bad).as_ref());
    // Everything of a stream is UTF-8 (the client checks it), and no part is empty.
    let parts = client.post("/completion", json!({"prompt": "@good:", "stream": true})).events();
    let texts: Vec<&str> = parts
        .iter()
        .filter(|part| part["stop"] == false)
        .map(|part| part["content"].as_str().unwrap())
        .collect();
    assert!(texts.iter().all(|text| !text.is_empty() && !text.contains('\u{fffd}')), "{texts:?}");
}

#[test]
fn s01_seeds() {
    let client = start(Scripted::new(2000, 4), options());
    let run = |seed: Value| {
        client.post("/completion", json!({"prompt": "@random:", "n_predict": 40, "seed": seed})).ok()
    };
    let (first, second, other) = (run(json!(42)), run(json!(42)), run(json!(43)));
    assert_eq!(first["content"], second["content"]);
    assert_ne!(first["content"], other["content"]);
    assert_eq!(first["generation_settings"]["seed"], 42);
    let (free, again) = (run(json!(-1)), run(Value::Null));
    assert_ne!(free["content"], again["content"]);
    // The seed that was drawn gives the same text.
    assert_eq!(run(free["generation_settings"]["seed"].clone())["content"], free["content"]);
    let body = json!({"prompt": "@random:", "max_tokens": 30, "seed": 7, "n": 3});
    let several = client.post("/v1/completions", body).ok();
    let texts: Vec<&str> = (0..3).map(|index| several["choices"][index]["text"].as_str().unwrap()).collect();
    assert_eq!(texts[0].len(), 30);
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(several["usage"]["completion_tokens"], 90);
}

#[test]
fn s13_s14_probabilities_everywhere() {
    let client = start(Scripted::new(2000, 4).script("abc", bytes("abc")), options());
    let chat = |stream: bool| {
        let messages = json!([{"role": "user", "content": "@abc:"}]);
        json!({"messages": messages, "logprobs": true, "top_logprobs": 2, "stream": stream})
    };
    let text = |stream: bool| json!({"prompt": "@abc:", "logprobs": 2, "stream": stream});
    let native = |stream: bool| json!({"prompt": "@abc:", "n_probs": 2, "stream": stream});
    for (path, body, stream_place, place) in [
        (
            "/completion",
            native as fn(bool) -> Value,
            "/completion_probabilities",
            "/completion_probabilities",
        ),
        ("/v1/completions", text, "/choices/0/logprobs/content", "/choices/0/logprobs/content"),
        ("/v1/chat/completions", chat, "/choices/0/logprobs/content", "/choices/0/logprobs/content"),
    ] {
        let whole = client.post(path, body(false)).ok();
        let entries = whole.pointer(place).unwrap_or(&Value::Null).as_array().cloned().unwrap_or_default();
        let events = client.post(path, body(true)).events();
        let parts = events.iter().filter_map(|event| event.pointer(stream_place)?.as_array());
        let parts: Vec<Value> = parts.flatten().cloned().collect();
        assert_eq!(parts, entries, "{path}");
        assert_eq!(entries.len(), 3, "{path}: {whole}");
        for (entry, letter) in entries.iter().zip(["a", "b", "c"]) {
            assert_eq!(entry["token"], letter);
            assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
            // One logit of 40 and 261 of 0.
            assert!(entry["logprob"].as_f64().unwrap().abs() < 1e-6);
            let second = entry["top_logprobs"][1]["logprob"].as_f64().unwrap();
            assert!((second + 40.0).abs() < 1e-3, "{second}");
        }
    }
    // Temperature does not change them.
    let hot = client
        .post("/completion", json!({"prompt": "@random:", "n_predict": 1, "n_probs": 1, "temperature": 2.0}))
        .ok();
    let value = hot["completion_probabilities"][0]["logprob"].as_f64().unwrap();
    let expected = -(26.0 + 236.0 * (-20f64).exp()).ln();
    assert!((value - expected).abs() < 1e-3, "{value} and {expected}");
    // After the samplers only one candidate is left at temperature 0, and two equal ones with top-k 2.
    for (extra, count, expected) in
        [(json!({"temperature": 0}), 1, 1.0), (json!({"top_k": 2, "temperature": 1}), 2, 0.5)]
    {
        let mut body =
            json!({"prompt": "@random:", "n_predict": 1, "n_probs": 5, "post_sampling_probs": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let found = client.post("/completion", body).ok();
        let entry = &found["completion_probabilities"][0];
        assert!((entry["prob"].as_f64().unwrap() - expected).abs() < 1e-6, "{entry}");
        assert_eq!(entry["top_probs"].as_array().unwrap().len(), count);
        assert!(entry.get("logprob").is_none());
    }
}

#[test]
fn s05_s11_settings_take_effect() {
    let client = start(Scripted::new(2000, 4).script("many", bytes("aaaaaaaa")), options());
    let run = |extra: Value| {
        let mut body = json!({"prompt": "@many:", "n_predict": 6, "temperature": 0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        client.post("/completion", body)
    };
    assert_eq!(run(json!({})).ok()["content"], "aaaaaa");
    for change in [
        json!({"logit_bias": [["a", -100]]}),
        json!({"logit_bias": {"100": -100}}),
        json!({"logit_bias": [[100, false]]}),
        json!({"logit_bias": [[101, 100]]}),
        json!({"presence_penalty": 50}),
        json!({"frequency_penalty": 30.0}),
    ] {
        assert_ne!(run(change.clone()).ok()["content"], "aaaaaa", "{change}");
    }
    let found = run(json!({"logit_bias": [[101, 100]]})).ok();
    assert_eq!(found["content"], "bbbbbb");
    for wrong in [json!([[-1, 1]]), json!([[262, 1]]), json!([[1, 1, 1]]), json!("a"), json!([["a", "b"]])] {
        let message = run(json!({"logit_bias": wrong})).error(400, "invalid_request_error");
        assert!(message.contains("logit_bias"), "{message}");
    }
    for change in [
        json!({"dry_multiplier": 30, "dry_allowed_length": 1}),
        json!({"mirostat": 2, "mirostat_tau": 30, "temperature": 100.0, "seed": 4}),
        json!({"mirostat": 1, "mirostat_tau": 30, "temperature": 100.0, "seed": 4}),
        // Alone: after top-p one candidate is left, and there is no entropy to follow.
        json!({"samplers": ["temperature"], "temperature": 0.2, "dynatemp_range": 500, "dynatemp_exponent": 0.1, "seed": 4}),
        json!({"samplers": ["adaptive_p"], "temperature": 1, "adaptive_target": 0.0, "seed": 4}),
    ] {
        assert_ne!(run(change.clone()).ok()["content"], "aaaaaa", "{change}");
    }
    for wrong in [
        json!({"mirostat": 3}),
        json!({"adaptive_decay": 1.0}),
        json!({"dry_sequence_breakers": []}),
        json!({"dry_sequence_breakers": [1]}),
        json!({"dry_allowed_length": -1}),
        json!({"samplers": ["what"]}),
        json!({"samplers": "kq"}),
    ] {
        run(wrong).error(400, "invalid_request_error");
    }
    // S07: any window of the penalties.
    for window in [0, -1, 1, 1_000_000_000] {
        run(json!({"repeat_last_n": window, "repeat_penalty": 3.0})).ok();
    }
}

#[test]
fn chat_streams_are_as_openai_has_them() {
    let client = start(Scripted::new(2000, 4).script("hello", bytes("Hi there")), options());
    let body = |usage: bool| {
        json!({
            "messages": [{"role": "user", "content": [{"type": "text", "text": "@hello:"}]}],
            "stream": true, "stream_options": {"include_usage": usage},
        })
    };
    let events = client.post("/v1/chat/completions", body(true)).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    assert_eq!(events.last(), Some(&Value::Null));
    let usage = &events[events.len() - 2];
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 8);
    let reasons: Vec<&Value> =
        events.iter().filter_map(|event| event.pointer("/choices/0/finish_reason")).collect();
    assert_eq!(reasons.last(), Some(&&json!("stop")));
    // A15: null until the end.
    assert!(reasons[..reasons.len() - 1].iter().all(|reason| reason.is_null()));
    let text: String =
        events.iter().filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str()).collect();
    assert_eq!(text, "Hi there");
    let without = client.post("/v1/chat/completions", body(false)).events();
    assert!(without.iter().all(|event| event.get("usage").is_none()));

    let mut whole = body(false);
    whole["stream"] = json!(false);
    let found = client.post("/v1/chat/completions", whole).ok();
    assert_eq!(found["object"], "chat.completion");
    assert_eq!(found["choices"][0]["message"], json!({"role": "assistant", "content": "Hi there"}));
    assert_eq!(found["usage"]["total_tokens"], 8 + "user|@hello:".len() + 1);
    // A08: the second and third time the prompt is in the cache, but for its last token.
    assert_eq!(found["usage"]["prompt_tokens_details"]["cached_tokens"], "user|@hello:".len());
}

#[test]
fn other_protocols() {
    let client = start(Scripted::new(2000, 4).script("hello", bytes("Hi there")), options());
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "@hello:"}]}]);
    let body = json!({"messages": messages, "max_tokens": 50, "system": "be brief"});
    let found = client.post("/v1/messages", body.clone()).ok();
    assert_eq!(found["content"], json!([{"type": "text", "text": "Hi there"}]));
    assert_eq!((found["stop_reason"].as_str(), found["type"].as_str()), (Some("end_turn"), Some("message")));
    let count = client.post("/v1/messages/count_tokens", body.clone()).ok()["input_tokens"].as_u64().unwrap();
    assert_eq!(count, "system|be briefuser|@hello:".len() as u64 + 1);
    assert_eq!(found["usage"]["input_tokens"], count);
    let mut stream = body;
    stream["stream"] = json!(true);
    stream["stop_sequences"] = json!(["there"]);
    let events = client.post("/v1/messages", stream).events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let text: String = events.iter().filter_map(|event| event.pointer("/delta/text")?.as_str()).collect();
    assert_eq!(text, "Hi ");
    assert_eq!(
        events[events.len() - 2]["delta"],
        json!({"stop_reason": "stop_sequence", "stop_sequence": "there"})
    );
    let refused = client.post("/v1/messages", json!({"messages": []}));
    assert_eq!(refused.json()["type"], "error");
    refused.error(400, "invalid_request_error");

    let found = client.post("/v1/responses", json!({"input": "@hello:", "max_output_tokens": 2})).ok();
    assert_eq!(found["output"][0]["content"][0]["text"], "Hi");
    assert_eq!((found["status"].as_str(), found["object"].as_str()), (Some("incomplete"), Some("response")));
    let details = json!({"cached_tokens": 0});
    assert!(found["usage"]["input_tokens_details"].is_object(), "{details}");
    let events = client.post("/v1/responses", json!({"input": "@hello:", "stream": true})).events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(kinds.last(), Some(&"response.completed"));
    let sequence: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(sequence, (0..events.len() as u64).collect::<Vec<_>>());
    let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(text, "Hi there");
}

#[test]
fn tokens_and_templates() {
    let client = start(Scripted::new(200, 1), options());
    let tokens = client.post("/tokenize", json!({"content": "hé", "add_special": true})).ok();
    assert_eq!(tokens["tokens"], json!([1, 3 + 0x68, 3 + 0xc3, 3 + 0xa9]));
    let pieces = client.post("/tokenize", json!({"content": "é", "with_pieces": true})).ok();
    assert_eq!(pieces["tokens"][0], json!({"id": 3 + 0xc3, "piece": [0xc3]}));
    let back = client.post("/detokenize", json!({"tokens": tokens["tokens"]})).ok();
    assert_eq!(back["content"], "<s>hé");
    let mixed = client.post("/tokenize", json!({"content": ["a", 2, "b"]})).ok();
    assert_eq!(mixed["tokens"], json!([100, 2, 101]));
    let prompt = client.post("/apply-template", json!({"messages": [{"role": "user", "content": "x"}]})).ok();
    assert_eq!(prompt["prompt"], "user|x");
    // C09: assistants without text but with calls.
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]);
    for content in [
        json!({"role": "assistant", "content": null, "tool_calls": call}),
        json!({"role": "assistant", "tool_calls": call}),
    ] {
        let messages = json!([{"role": "user", "content": "x"}, content, {"role": "tool", "content": "y"}]);
        client.post("/apply-template", json!({"messages": messages})).ok();
    }
}

#[test]
fn reasoning_goes_where_the_flag_or_the_request_says() {
    let template = format!("{TEMPLATE}{{# <think></think> #}}");
    let model = Scripted::new(2000, 2).script("call", bytes("<think>hm</think>\nI look."));
    let mut served = served(model, 16, tokenizer(), &template);
    served.defaults.reasoning = puna_server::Reasoning::Content;
    let client = Client::new(puna_server::Server::start(served, options()).unwrap());
    let mut body = json!({"messages": [{"role": "user", "content": "@call:"}]});
    let message = |body: &Value| {
        client.post("/v1/chat/completions", body.clone()).ok()["choices"][0]["message"].clone()
    };
    let whole = message(&body);
    assert_eq!(whole["content"], "<think>hm</think>\nI look.");
    assert!(whole.get("reasoning_content").is_none());
    body["reasoning_format"] = json!("deepseek");
    let apart = message(&body);
    assert_eq!((&apart["reasoning_content"], &apart["content"]), (&json!("hm"), &json!("I look.")));
}

#[test]
fn c16_reasoning_and_calls_in_chats() {
    let answer =
        "<think>hm</think>\nI look.\n<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>";
    let template = format!("{TEMPLATE}{{# <think></think><tool_call> #}}");
    let model = Scripted::new(2000, 2).script("call", bytes(answer));
    let client = Client::new(
        puna_server::Server::start(served(model, 16, tokenizer(), &template), options()).unwrap(),
    );
    let chat = |stream: bool, tools: Value, format: &str| {
        let messages = json!([{"role": "user", "content": "@call:"}]);
        json!({"messages": messages, "tools": tools, "stream": stream, "reasoning_format": format})
    };
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let whole = client.post("/v1/chat/completions", chat(false, tools.clone(), "auto")).ok();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("I look.")));
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "f", "arguments": "{\"x\":1}"}));
    assert!(!call["id"].as_str().unwrap().is_empty());
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let events = client.post("/v1/chat/completions", chat(true, tools.clone(), "auto")).events();
    let text = |name: &str| -> String {
        let deltas =
            events.iter().filter_map(|event| event.pointer(&format!("/choices/0/delta/{name}"))?.as_str());
        deltas.collect()
    };
    assert_eq!((text("reasoning_content"), text("content")), ("hm".to_owned(), "I look.".to_owned()));
    let calls: Vec<&Value> =
        events.iter().filter_map(|event| event.pointer("/choices/0/delta/tool_calls/0")).collect();
    assert_eq!((&calls[0]["index"], &calls[0]["function"]["name"]), (&json!(0), &json!("f")));
    let arguments: String =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap_or("")).collect();
    assert_eq!(call["function"]["arguments"], arguments);
    assert!(calls.iter().skip(1).all(|call| call.get("id").is_none()), "{calls:?}");
    // The same in Anthropic's blocks.
    let body = |stream: bool| {
        let messages = json!([
            {"role": "user", "content": "ask"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "y"}, {"type": "text", "text": "@call:"},
            ]},
        ]);
        let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
        json!({"messages": messages, "tools": tools, "max_tokens": 500, "stream": stream})
    };
    let whole = client.post("/v1/messages", body(false)).ok();
    assert_eq!(whole["stop_reason"], "tool_use");
    let kinds: Vec<&str> =
        whole["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"]);
    assert_eq!(whole["content"][2]["input"], json!({"x": 1}));
    let events_of = client.post("/v1/messages", body(true)).events();
    let indices = events_of.iter().filter(|event| event["type"] == "content_block_stop");
    assert_eq!(indices.map(|event| event["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    // C22: the same text in both ways if nothing is to be told apart.
    let whole = client.post("/v1/chat/completions", chat(false, json!([]), "none")).ok();
    assert_eq!(whole["choices"][0]["message"]["content"], answer);
    let events = client.post("/v1/chat/completions", chat(true, json!([]), "none")).events();
    let text: String =
        events.iter().filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str()).collect();
    assert_eq!(text, answer);
}
