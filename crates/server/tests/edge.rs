//! What must not go wrong: keys, origins, limits, nonsense, files of slots, information.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::scripted::bytes;
use common::*;
use puna_server::{ERRORS, METRICS, OWN_ROUTES, Options, ROUTES, Server, ServerError};
use serde_json::{Value, json};

fn hello() -> Scripted {
    scripted(300, 2).script("hello", bytes("Hi there"))
}

#[test]
fn information_of_the_server() {
    let client = start(hello(), options());
    assert_eq!(client.get("/health").ok(), json!({"status": "ok"}));
    let models = client.get("/v1/models").ok();
    assert_eq!(
        (models["data"][0]["id"].as_str(), &models["data"][0]["meta"]["n_ctx"]),
        (Some("scripted"), &json!(300))
    );
    let properties = client.get("/props").ok();
    assert_eq!(properties["total_slots"], 2);
    assert!(properties["chat_template"].as_str().unwrap().contains("messages"));
    let slots = client.get("/slots").ok();
    assert_eq!(slots.as_array().unwrap().len(), 2);
    client.post("/completion", json!({"prompt": "@hello:"})).ok();
    assert_eq!(client.metric("tokens_predicted_total"), 8.0);
    assert_eq!(client.metric("prompt_tokens_total"), 8.0);
    assert_eq!((client.metric("requests_processing"), client.metric("requests_deferred")), (0.0, 0.0));
    let text = client.get("/metrics").text;
    for row in METRICS {
        assert!(text.contains(&format!("# TYPE llamacpp:{} {}\n", row.name, row.kind)));
    }
    client.post("/props", json!({})).error(403, "feature_disabled");
    let message = client.get("/nothing").error(404, "not_found_error");
    assert!(message.contains("GET /nothing"));
    client.post("/health", json!({})).error(404, "not_found_error");
    client.post("/v1/embeddings", json!({"input": "x"})).error(501, "not_supported_error");
}

#[test]
fn keys_and_origins() {
    let client =
        start(hello(), Options { api_keys: vec!["secret".into()], prefix: "/llm".into(), ..options() });
    client.get("/llm/health").ok();
    for route in ROUTES.iter().filter(|route| route.key) {
        let path = format!("/llm{}", route.paths[0].replace("{id}", "0"));
        let reply = if route.method == "GET" { client.get(&path) } else { client.post(&path, json!({})) };
        assert!(reply.header("www-authenticate").is_some(), "{path}");
        assert_eq!((reply.status, reply.message().as_str()), (401, "Invalid API Key"), "{path}");
    }
    client.get_with("/llm/props", ("authorization", "Bearer secret")).ok();
    client.get_with("/llm/props", ("x-api-key", "secret")).ok();
    client.get_with("/llm/props", ("x-api-key", "Secret")).error(401, "authentication_error");
    let near = client.get_with("/llm/health", ("origin", "http://localhost:5173"));
    assert_eq!(near.header("access-control-allow-origin"), Some("http://localhost:5173"));
    let far = client.get_with("/llm/health", ("origin", "http://example.org"));
    assert_eq!(far.header("access-control-allow-origin"), None);
    let asked = client.raw(b"OPTIONS /llm/v1/models HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n");
    assert!(asked.contains(" 204 ") && asked.contains("access-control-allow-methods"), "{asked}");
}

#[test]
fn other_machines_need_a_key() {
    let serve = |options| Server::start(served(hello(), 16, tokenizer(), ""), options);
    let open = Options { host: "0.0.0.0".into(), ..options() };
    assert!(matches!(serve(open.clone()), Err(ServerError::Open { .. })));
    serve(Options { api_keys: vec!["k".into()], ..open }).unwrap().stop().unwrap();
    let first = serve(options()).unwrap();
    let taken = Options { port: first.address().port(), ..options() };
    assert!(matches!(serve(taken), Err(ServerError::Bind { .. })));
}

#[test]
fn a19_prompts_that_do_not_fit() {
    let client = start(hello(), options());
    for tokens in [300, 301, 900] {
        let reply = client.post("/completion", json!({"prompt": vec![100; tokens]}));
        let body = reply.json();
        assert_eq!(
            (&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]),
            (&json!(tokens), &json!(300))
        );
        let message = reply.error(400, "exceed_context_size_error");
        assert!(message.contains("n_prompt") && message.contains("n_ctx"));
    }
    let long = "x".repeat(500);
    let messages = json!([{"role": "user", "content": long}]);
    client
        .post("/v1/chat/completions", json!({"messages": messages}))
        .error(400, "exceed_context_size_error");
    let full = client.post("/completion", json!({"prompt": vec![100; 299]})).ok();
    assert_eq!((&full["stop_type"], &full["truncated"]), (&json!("limit"), &json!(true)));
    let limited = client.post("/completion", json!({"prompt": vec![100; 20], "n_predict": 3})).ok();
    assert_eq!((&limited["stop_type"], &limited["truncated"]), (&json!("limit"), &json!(false)));
    // K04: a fresh request after a full context.
    let fresh = client.post("/completion", json!({"prompt": "@hello:"})).ok();
    assert_eq!(fresh["content"], "Hi there");
}

#[test]
fn a09_g19_hostile_bodies() {
    let client = start(hello(), Options { body_bytes: 100_000, ..options() });
    let alive =
        || assert_eq!(client.post("/completion", json!({"prompt": "@hello:"})).ok()["content"], "Hi there");
    let posts: Vec<&str> =
        ROUTES.iter().filter(|route| route.method == "POST").map(|route| route.paths[0]).collect();
    let deep = format!("{{\"prompt\":{}", "[".repeat(50_000));
    let nonsense: &[&[u8]] = &[
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b"\"x\"",
        b"\xff\xfe",
        b"{\"prompt\":\"\xed\xa0\x80\"}",
        b"{\"prompt\":\"\\ud800\"}",
        b"{\"prompt\":1e999}",
        b"{\"messages\":{}}",
        b"{\"a\":\0}",
        deep.as_bytes(),
    ];
    for path in &posts {
        let path = path.replace("{id}", "0");
        for body in nonsense {
            if path == "/lora-adapters" && *body == b"[]" {
                // A list of no adapters is one.
                continue;
            }
            let reply = client.post_bytes(&path, body);
            assert!([400, 403, 501].contains(&reply.status), "{path} {body:?}: {reply:?}");
            assert!(!reply.message().is_empty(), "{reply:?}");
        }
        assert_eq!(client.post_bytes(&path, &vec![b' '; 300_000]).status, 413, "{path}");
    }
    alive();
    for prompt in [
        json!(""),
        json!([]),
        json!([[]]),
        Value::Null,
        json!([null]),
        json!([["a", {}]]),
        json!([-1]),
        json!([1e9]),
        json!({}),
        json!(true),
    ] {
        let reply = client.post("/completion", json!({"prompt": prompt, "n_predict": 1}));
        // The beginning token makes a prompt of an empty text.
        let fine = prompt == json!("");
        assert_eq!(reply.status, if fine { 200 } else { 400 }, "{prompt}: {reply:?}");
    }
    client.post("/completion", json!({"prompt": [""], "n_predict": 1})).ok();
    client.post("/v1/chat/completions", json!({"messages": []})).error(400, "invalid_request_error");
    for message in [
        json!({}),
        json!(5),
        json!({"role": "x", "content": "a"}),
        json!({"role": "user"}),
        json!({"role": "user", "content": 5}),
        json!({"role": "user", "content": [{"type": "image_url"}]}),
        json!({"role": "assistant", "tool_calls": [5]}),
    ] {
        let reply = client.post("/v1/chat/completions", json!({"messages": [message]}));
        let text = reply.error(400, "invalid_request_error");
        assert!(text.contains("messages[0]"), "{text}");
    }
    let values = [
        json!(-1),
        json!(-2147483648i64),
        json!(2147483647),
        json!(1e300),
        json!(-1e300),
        json!("5"),
        json!([]),
        json!({}),
        Value::Null,
        json!(true),
        json!(0.5),
        json!(u64::MAX),
        json!(i64::MIN),
    ];
    for name in [
        "n_predict",
        "max_tokens",
        "n_keep",
        "n_discard",
        "n_probs",
        "n",
        "id_slot",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "temperature",
        "seed",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_keep",
        "stop",
        "samplers",
        "logit_bias",
        "stream",
        "stream_options",
        "cache_prompt",
        "ignore_eos",
        "t_max_predict_ms",
        "response_fields",
        "grammar",
        "json_schema",
        "response_format",
        "mirostat",
        "dry_multiplier",
        "xtc_probability",
        "sse_ping_interval",
        "n_cache_reuse",
        "lora",
    ] {
        for value in &values {
            let mut body = json!({"prompt": "@hello:", "n_predict": 4});
            body[name] = value.clone();
            let reply = client.post("/completion", body);
            match reply.status {
                200 => {}
                400 => {
                    let message = reply.error(400, "invalid_request_error");
                    assert!(message.contains(name), "{name} {value}: {message}");
                }
                _ => panic!("{name} {value}: {reply:?}"),
            }
        }
    }
    alive();
}

#[test]
fn hostile_connections() {
    let client = start(hello(), Options { body_time: Duration::from_millis(200), ..options() });
    for bytes in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ] {
        client.raw(bytes);
    }
    let slow = client.raw(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{");
    assert!(slow.contains(" 408 ") && slow.contains("timeout_error"), "{slow}");
    client.get("/health").ok();
}

#[test]
fn bodies_that_are_too_large_are_refused_at_once() {
    let client = start(hello(), Options { body_bytes: 1000, ..options() });
    let begin = Instant::now();
    let head = "POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    for length in ["1001", "9999999999999"] {
        let answer = client.raw(format!("{head}Content-Length: {length}\r\n\r\n{{").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("request_too_large"), "{answer}");
    }
    // Who asks first is told no, and not to go on.
    let answer = client.raw(format!("{head}Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // A length that nobody knows before.
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    let answer = client.raw(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // The time for a body is a minute.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    // Who sends it all sees the answer, too.
    assert_eq!(client.post_bytes("/completion", &[b' '; 3500]).status, 413);
    assert_eq!(client.post("/completion", json!({"prompt": "@hello:"})).ok()["content"], "Hi there");
}

#[test]
fn g21_files_of_slots() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("slots");
    std::fs::create_dir(&inside).unwrap();
    let client = start(hello(), Options { slot_folder: Some(inside.clone()), ..options() });
    let first = client.post("/completion", json!({"prompt": "@hello:", "id_slot": 0})).ok();
    let saved = client.post("/slots/0?action=save", json!({"filename": "one.bin"})).ok();
    // The last token was generated but not evaluated: the end of the text came instead.
    assert_eq!(saved["n_saved"], first["tokens_cached"]);
    let erased = client.post("/slots/0?action=erase", json!({})).ok();
    assert_eq!(erased["n_erased"], saved["n_saved"]);
    let restored = client.post("/slots/1?action=restore", json!({"filename": "one.bin"})).ok();
    assert_eq!(restored["n_restored"], saved["n_saved"]);
    // K08: what was restored is used.
    let again = client.post("/completion", json!({"prompt": "@hello:", "id_slot": 1})).ok();
    assert_eq!((&again["content"], &again["timings"]["cache_n"]), (&json!("Hi there"), &json!(7)));
    for name in ["../one.bin", "/etc/passwd", "a/b", "..", "", "..%2fx", "a\\b", ".x"] {
        for action in ["save", "restore"] {
            client
                .post(&format!("/slots/0?action={action}"), json!({"filename": name}))
                .error(400, "invalid_request_error");
        }
    }
    client.post("/slots/0?action=restore", json!({"filename": "none"})).error(404, "not_found_error");
    client.post("/slots/9?action=erase", json!({})).error(400, "invalid_request_error");
    client.post("/slots/x?action=erase", json!({})).error(400, "invalid_request_error");
    client.post("/slots/0?action=fly", json!({})).error(400, "invalid_request_error");
    // K07: a damaged file changes nothing.
    std::fs::write(inside.join("bad"), [255; 40]).unwrap();
    client.post("/slots/1?action=restore", json!({"filename": "bad"})).error(400, "invalid_request_error");
    assert_eq!(client.post("/completion", json!({"prompt": "@hello:"})).ok()["content"], "Hi there");
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["slots"]);
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 2);
    // What cannot be written or read is said with what helps, and leaves nothing behind.
    std::fs::create_dir(inside.join("folder")).unwrap();
    for (action, part) in [("save", "another filename"), ("restore", "another filename")] {
        let reply = client.post(&format!("/slots/0?action={action}"), json!({"filename": "folder"}));
        let message = reply.error(400, "invalid_request_error");
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 3);
    std::fs::remove_dir_all(&inside).unwrap();
    for action in ["save", "restore"] {
        let reply = client.post(&format!("/slots/0?action={action}"), json!({"filename": "one.bin"}));
        let message = reply.error(400, "invalid_request_error");
        assert!(message.contains("--slot-save-path"), "{message}");
    }
    assert_eq!(client.post("/completion", json!({"prompt": "@hello:"})).ok()["content"], "Hi there");
    let without = start(hello(), options());
    without.post("/slots/0?action=save", json!({"filename": "x"})).error(403, "feature_disabled");
}

#[test]
fn every_row_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server.md");
    let page = std::fs::read_to_string(path).unwrap();
    for route in ROUTES {
        let paths: Vec<String> = route.paths.iter().map(|path| format!("`{path}`")).collect();
        let line = format!(
            "| {} | {} | {} | {} |\n",
            route.method,
            paths.join(" "),
            if route.key { "yes" } else { "no" },
            route.summary
        );
        assert!(page.contains(&line), "docs/server.md lacks {line}");
    }
    for route in OWN_ROUTES {
        let paths: Vec<String> = route.paths.iter().map(|path| format!("`{path}`")).collect();
        let line = format!("| {} | {} | {} |\n", route.method, paths.join(" "), route.summary);
        assert!(page.contains(&line), "docs/server.md lacks {line}");
    }
    for row in ERRORS {
        let line = format!("| {} | `{}` | {} |\n", row.status, row.name, row.meaning);
        assert!(page.contains(&line), "docs/server.md lacks {line}");
    }
    for row in METRICS {
        let line = format!("| `llamacpp:{}` | {} | {} |\n", row.name, row.kind, row.help);
        assert!(page.contains(&line), "docs/server.md lacks {line}");
    }
}

#[test]
fn heads_have_limits_in_size_and_time() {
    let client = start(scripted(64, 1), Options { head_time: Duration::from_millis(500), ..options() });
    let header = |count: usize, length: usize| {
        format!(
            "GET /health HTTP/1.1\r\n{}Connection: close\r\n\r\n",
            format!("X: {}\r\n", "y".repeat(length)).repeat(count)
        )
    };
    assert!(client.raw(header(90, 10).as_bytes()).starts_with("HTTP/1.1 200"));
    for (count, length) in [(101, 10), (1, 40_000), (90, 1000)] {
        let answer = client.raw(header(count, length).as_bytes());
        assert!(answer.starts_with("HTTP/1.1 431"), "{count} {length}: {answer}");
    }
    // One that sends a byte now and then, and ones that send nothing, are left; others are served meanwhile.
    let begin = Instant::now();
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(client.address()).unwrap()).collect();
    let mut slow = TcpStream::connect(client.address()).unwrap();
    let mut sent = 0;
    while slow.write_all(b"G").is_ok() && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
        sent += 1;
    }
    assert!((5..60).contains(&sent), "{sent}");
    client.get("/health").ok();
    for mut stream in idle {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(stream.read(&mut [0; 64]), Ok(_) | Err(_)));
        let closed = stream.read(&mut [0; 64]);
        assert!(
            matches!(closed, Ok(0))
                || closed.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        );
    }
    // A connection that is kept for the next request ends, too.
    let mut kept = TcpStream::connect(client.address()).unwrap();
    kept.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    kept.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut all = String::new();
    kept.read_to_string(&mut all).unwrap();
    assert!(all.starts_with("HTTP/1.1 200"), "{all}");
}

#[test]
fn running_answers_are_finished_at_the_end() {
    let model = scripted(300, 2).delay(Duration::from_millis(5));
    let client = start(model, Options { grace: Duration::from_secs(10), ..options() });
    let body = json!({"prompt": "abc", "n_predict": 100, "stream": true});
    let mut open = client.leave_open_with("/completion", "Connection: close\r\n", body);
    eventually("it runs", Duration::from_secs(5), || client.busy() == 1);
    // A connection that nobody uses does not delay the end.
    let idle = TcpStream::connect(client.address()).unwrap();
    let (address, begin) = (client.address(), Instant::now());
    let reader = std::thread::spawn(move || {
        let mut all = String::new();
        open.read_to_string(&mut all).unwrap();
        all
    });
    client.server.stop().unwrap();
    let all = reader.join().unwrap();
    assert!(all.contains("\"stop_type\":\"limit\"") && all.contains("\"tokens_predicted\":100"), "{all}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(TcpStream::connect(address).is_err());
    drop(idle);
}
