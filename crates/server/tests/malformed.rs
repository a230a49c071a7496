//! Ten thousand malformed requests, the same ones in every run: each gets an answer that is documented, and none changes
//! what later ones get.

mod common;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::scripted::bytes;
use common::*;
use puna_server::{Defaults, ERRORS, Options, Served, Server};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
/// Bodies of every endpoint that are changed.
const BODIES: usize = 9_000;
/// Requests whose heads, lengths or ends are wrong.
const HEADS: usize = 1_000;
const THREADS: usize = 4;

/// SplitMix64: good enough to spread changes, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// A good body for every endpoint that is posted to.
fn good() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "@hello:"}]}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]);
    let sampling = json!({"temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "seed": 1, "stop": ["x"], "n": 2,
        "logit_bias": [[5, 1.5], ["a", false]], "repeat_penalty": 1.1, "dry_multiplier": 0.5, "dry_sequence_breakers": ["q"],
        "samplers": ["top_k", "temperature"], "mirostat": 0, "n_predict": 3, "stream": false, "n_probs": 2,
        "grammar": "root ::= [a-z]+", "cache_prompt": true, "id_slot": -1, "t_max_predict_ms": 1000});
    let with = |mut body: Value| {
        let Value::Object(members) = &mut body else { unreachable!() };
        members.extend(sampling.as_object().unwrap().clone());
        body
    };
    vec![
        (
            "/completion",
            with(
                json!({"prompt": ["a", [4, 5], "b"], "return_tokens": true, "response_fields": ["content"]}),
            ),
        ),
        ("/v1/completions", with(json!({"prompt": "ab", "max_tokens": 3, "logprobs": 1}))),
        (
            "/v1/chat/completions",
            with(json!({"messages": messages, "max_tokens": 3, "stream_options": {"include_usage": true}})),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "tools": tools, "tool_choice": "auto", "max_tokens": 3, "stream": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}}}),
        ),
        ("/v1/chat/completions/input_tokens", json!({"messages": messages})),
        (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "instructions": "i", "max_output_tokens": 3, "tools": [], "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}}),
        ),
        ("/v1/responses/input_tokens", json!({"input": "a"})),
        (
            "/v1/messages",
            json!({"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "c"}]}], "max_tokens": 3, "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
        ),
        ("/v1/messages/count_tokens", json!({"messages": [{"role": "user", "content": "a"}]})),
        (
            "/api/chat",
            json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": false, "options": {"num_predict": 3, "temperature": 0.5, "stop": ["x"]}, "format": "json", "think": false}),
        ),
        (
            "/api/generate",
            json!({"model": "m", "prompt": "a", "system": "s", "raw": false, "options": {"num_predict": 3}}),
        ),
        ("/api/show", json!({"model": "m"})),
        ("/api/embed", json!({"model": "m", "input": ["a", "b"]})),
        (
            "/tokenize",
            json!({"content": ["a", 5, "b"], "add_special": true, "parse_special": false, "with_pieces": true}),
        ),
        ("/detokenize", json!({"tokens": [5, 6, 7]})),
        ("/apply-template", json!({"messages": messages, "chat_template_kwargs": {"x": 1}})),
        ("/v1/embeddings", json!({"input": ["a"], "encoding_format": "float", "dimensions": 3})),
        ("/rerank", json!({"query": "a", "documents": ["b"], "top_n": 1})),
        (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}], "prompt": "p", "n_predict": 2}),
        ),
        ("/props", json!({"x": 1})),
        ("/lora-adapters", json!([{"id": 0, "scale": 0.5}])),
        ("/slots/0?action=save", json!({"filename": "f"})),
        ("/slots/0?action=restore", json!({"filename": "f"})),
        ("/slots/1?action=erase", json!({})),
    ]
}

/// Something that belongs nowhere.
fn odd(random: &mut Random) -> Value {
    match random.below(18) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(i64::MIN),
        4 => json!(u64::MAX),
        5 => json!(1e308),
        6 => json!(-1e-308),
        7 => json!(0.5),
        8 => json!(""),
        9 => json!("\u{0}\u{7f}\u{202e}\u{ffff}"),
        10 => json!("é漢🦙".repeat(random.below(300))),
        11 => json!([]),
        12 => json!([[[[[[]]]]]]),
        13 => json!({}),
        14 => json!({"a": {"b": [1, "c", null]}}),
        15 => Value::Array(vec![json!(7); random.below(3000)]),
        16 => json!("root ::= root root"),
        _ => json!({"$ref": "#/$defs/x", "type": ["string", 5]}),
    }
}

/// Changes one place of a value.
fn change(value: &mut Value, random: &mut Random) {
    let deeper = random.below(4) > 0;
    match value {
        Value::Object(members) if deeper && !members.is_empty() => {
            let index = random.below(members.len());
            if random.below(10) == 0 {
                let key = members.keys().nth(index).cloned().unwrap();
                members.remove(&key);
            } else {
                change(members.values_mut().nth(index).unwrap(), random);
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let index = random.below(items.len());
            change(&mut items[index], random);
        }
        other => *other = odd(random),
    }
}

/// A body that is wrong in some way, mostly.
fn body(good: &Value, random: &mut Random) -> Vec<u8> {
    let mut value = good.clone();
    let rounds = 1 + random.below(3);
    if random.below(3) > 0 {
        (0..rounds).for_each(|_| change(&mut value, random));
        if random.below(3) > 0 {
            return value.to_string().into_bytes();
        }
    }
    let mut text = value.to_string().into_bytes();
    for _ in 0..rounds {
        let place = random.below(text.len());
        match random.below(9) {
            0 => text.truncate(place),
            1 if !text.is_empty() => text[place] ^= 1 << random.below(8),
            2 => text.insert(place, random.next() as u8),
            3 => text = [b"[".repeat(20_000), text].concat(),
            4 => text.extend_from_within(..place),
            5 => drop(text.splice(place..place, *b"\\ud800")),
            6 => drop(text.splice(place..place, *b"NaN")),
            7 => drop(text.splice(place..place, [0xff, 0xfe, 0x00])),
            _ => text.clear(),
        }
    }
    text
}

/// A request that no client should send.
fn head(random: &mut Random) -> Vec<u8> {
    let body = "{\"prompt\":\"@hello:\"}";
    let length = body.len();
    let long = "x".repeat(1 + random.below(50_000));
    let target = *random.choose(&[
        "/completion",
        "/health",
        "/",
        "/%ff",
        "/..//..",
        "/slots/-1",
        "*",
        "http://x/health",
        "/a?%zz=%",
    ]);
    let method =
        *random.choose(&["GET", "POST", "PUT", "DELETE", "get", "", "G\0T", "OPTIONS", "PATCH", "CONNECT"]);
    let more = match random.below(12) {
        0 => format!("Content-Length: {}\r\n\r\n{body}", length + 50),
        1 => format!("Content-Length: -1\r\n\r\n{body}"),
        2 => format!("Content-Length: 99999999999999999999\r\n\r\n{body}"),
        3 => format!("Content-Length: {length}\r\nContent-Length: 1\r\n\r\n{body}"),
        4 => format!("Transfer-Encoding: chunked\r\n\r\nzz\r\n{body}\r\n0\r\n\r\n"),
        5 => format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n5\r\n{body}"),
        6 => format!("X: {long}\r\n\r\n"),
        7 => format!("{}\r\n", "A: b\r\n".repeat(1 + random.below(300))),
        8 => "No colon here\r\n\r\n".to_owned(),
        9 => "X: \u{1}\u{0}\r\n\r\n".to_owned(),
        10 => "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n".to_owned(),
        _ => format!("Authorization: {}\r\nOrigin: \u{ff}\r\n\r\n", &long[..long.len().min(2000)]),
    };
    let version = *random.choose(&["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "http", ""]);
    let mut request = format!("{method} {target} {version}\r\nHost: x\r\n{more}").into_bytes();
    if random.below(4) == 0 {
        request.truncate(random.below(request.len()));
    }
    request
}

/// Sends bytes and the end, and reads all that comes; nothing if the connection was just closed.
fn exchange(client: &Client, bytes: &[u8]) -> Option<u16> {
    let mut stream = TcpStream::connect(client.address()).unwrap();
    stream.set_read_timeout(Some(10 * SECOND)).unwrap();
    // The server may have closed it already.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert!(error.kind() == ErrorKind::ConnectionReset, "{error}: {}", String::from_utf8_lossy(bytes));
    }
    let text = String::from_utf8_lossy(&answer);
    text.strip_prefix("HTTP/1.").map(|rest| rest[2..5].parse().unwrap())
}

#[test]
fn ten_thousand_malformed_requests() {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let model = scripted(200, 2).script("hello", bytes("Hi there"));
    let defaults = Defaults { predict: 3, ..Defaults::default() };
    let served = Served { defaults, ..served(model, 64, tokenizer(), TEMPLATE) };
    let options =
        Options { properties: true, slot_folder: Some(folder.path().into()), body_time: SECOND, ..options() };
    let client = Client::new(Server::start(served, options).unwrap());
    let greeting = json!({"prompt": "@hello:", "n_predict": 50});
    let fresh = client.post("/completion", greeting.clone()).ok()["content"].clone();
    let good = good();
    let documented: Vec<u16> = ERRORS.iter().map(|row| row.status).collect();
    let counts = std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            let (client, good, documented) = (&client, &good, &documented);
            scope.spawn(move || {
                let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
                for index in (thread..BODIES).step_by(THREADS) {
                    let mut random = Random(index as u64);
                    let (path, value) = random.choose(good);
                    let body = body(value, &mut random);
                    let reply = client.post_bytes(path, &body);
                    let context = || format!("{index} {path} {}: {reply:?}", String::from_utf8_lossy(&body));
                    *counts.entry(reply.status).or_default() += 1;
                    if reply.status != 200 {
                        assert!(documented.contains(&reply.status), "{}", context());
                        assert!(!reply.message().is_empty(), "{}", context());
                    }
                    assert!(![500, 503].contains(&reply.status), "{}", context());
                }
                for index in (thread..HEADS).step_by(THREADS) {
                    let request = head(&mut Random(!(index as u64)));
                    let status = exchange(client, &request).unwrap_or(0);
                    *counts.entry(status).or_default() += 1;
                    assert!(status < 500, "{index}: {status} for {}", String::from_utf8_lossy(&request));
                }
                counts
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(BTreeMap::new(), |mut all, counts| {
            counts.into_iter().for_each(|(status, count)| *all.entry(status).or_insert(0) += count);
            all
        })
    });
    println!("{counts:?} in {:?}", start.elapsed());
    assert_eq!(counts.values().sum::<usize>(), BODIES + HEADS);
    assert!(counts[&400] > BODIES / 2, "most are malformed: {counts:?}");
    eventually("all slots are free", 5 * SECOND, || client.busy() == 0);
    for slot in [0, 1] {
        let again = json!({"prompt": "@hello:", "n_predict": 50, "id_slot": slot});
        assert_eq!(client.post("/completion", again).ok()["content"], fresh);
    }
    assert_eq!(client.post("/completion", greeting).ok()["content"], "Hi there");
}
