//! A server of many models: on demand, at most so many, each in a process whose end is nobody else's.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::scripted::bytes;
use common::*;
use puna_server::{
    AuditOptions, Entry, Offer, Options, Report, Reports, Residence, Served, Server, ServerError, Warnings,
};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

/// Not a test of its own: the process of a model, which the others start.
#[test]
fn serves_as_one_of_many() {
    let Ok(name) = std::env::var("PUNA_TEST_MODEL") else { return };
    let silent = name == "silent";
    let reports = Reports::to(move |report| {
        if silent && matches!(report, Report::Over { .. }) {
            // As if it had been killed before it could tell, but after the answer had left.
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                std::process::abort();
            });
            return true;
        }
        println!("\n{}", report.line());
        true
    });
    if name == "bad" {
        reports.say(&Report::Failed("tensor x has a wrong shape".into()));
        std::process::exit(1);
    }
    if name == "deaf" {
        // It takes connections and answers none.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        reports.say(&Report::Listening(listener.local_addr().unwrap()));
        std::thread::spawn(move || listener.incoming().for_each(std::mem::forget));
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    }
    let model = || {
        let delay = Duration::from_millis(if name.starts_with("slow") { 10 } else { 0 });
        scripted(4000, 2).delay(delay).script("hello", bytes(format!("Hi from {name}")))
    };
    let mut served = served(model(), 16, tokenizer(), TEMPLATE);
    served.facts.name = std::env::var("PUNA_TEST_MODEL").unwrap();
    if name.starts_with("sleepy") {
        let engine = || {
            let model = scripted(4000, 2).script("hello", bytes("Hi again"));
            puna_engine::Engine::start(model, puna_engine::EngineOptions::default())
                .map_err(|error| error.to_string())
        };
        let idle = Duration::from_millis(300);
        let residence = Residence::sleeping(engine().unwrap(), idle, Box::new(engine), Box::new(|| ()));
        served = Served { engine: residence, ..served };
    }
    let audit = std::env::var_os("PUNA_TEST_AUDIT").map(PathBuf::from);
    let audit = audit.map(|file| AuditOptions { file, rules: None, prompts: false });
    let api_keys = vec![std::env::var("PUNA_TEST_KEY").unwrap()];
    let options = Options { api_keys, routed: Some(reports), audit, ..options() };
    let server = Server::start(served, options).unwrap();
    let stopper = server.stopper();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.stop();
    });
    server.serve_until_signal().unwrap();
    std::process::exit(0);
}

fn entry(name: &str) -> Entry {
    Entry {
        name: name.into(),
        aliases: vec![format!("{name}-alias")],
        path: None,
        bytes: 5,
        arguments: vec!["-m".into(), name.into()],
        at_start: false,
        stop_time: 5 * SECOND,
    }
}

/// Tells the processes of an offer the file of an audit log of their own, too.
fn tell_own_lines(offer: &mut Offer, log: &std::path::Path) {
    let (start, log) = (std::mem::replace(&mut offer.start, Box::new(|_, _| unreachable!())), log.to_owned());
    offer.start = Box::new(move |entry, key| {
        let mut command = start(entry, key);
        command.env("PUNA_TEST_AUDIT", &log);
        command
    });
}

fn offer(names: &[&str], most: usize) -> Offer {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Offer {
        list: Box::new(move || Ok(names.iter().map(|name| entry(name)).collect())),
        start: Box::new(|entry, key| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "serves_as_one_of_many", "--nocapture"]);
            command.env("PUNA_TEST_MODEL", &entry.name).env("PUNA_TEST_KEY", key);
            command
        }),
        most,
        autoload: true,
    }
}

fn many(names: &[&str], most: usize) -> Client {
    Client::new(Server::start_many(offer(names, most), options()).unwrap())
}

fn hello(model: &str) -> Value {
    json!({"model": model, "prompt": "@hello:"})
}

/// How a model is, by `/models`.
fn status(client: &Client, name: &str) -> Value {
    let all = client.get("/models").ok();
    let found = all["data"].as_array().unwrap().iter().find(|model| model["id"] == name);
    found.unwrap_or_else(|| panic!("{name} in {all}"))["status"].clone()
}

fn is(client: &Client, name: &str, value: &str) -> bool {
    status(client, name)["value"] == value
}

#[test]
fn models_are_loaded_by_the_requests_that_name_them() {
    let client = many(&["ann", "bob"], 4);
    client.get("/health").ok();
    assert!(is(&client, "ann", "unloaded") && is(&client, "bob", "unloaded"));
    let messages = json!([{"role": "user", "content": "@hello:"}]);
    let chat =
        |model: &str| json!({"model": model, "messages": messages, "max_tokens": 50, "input": "@hello:"});
    let text = |path: &str, pointer: &str| {
        let found = client.post(path, chat("ann")).ok();
        found.pointer(pointer).unwrap_or_else(|| panic!("{pointer} in {found}")).clone()
    };
    assert_eq!(text("/v1/chat/completions", "/choices/0/message/content"), "Hi from ann");
    assert!(is(&client, "ann", "loaded") && is(&client, "bob", "unloaded"));
    assert_eq!(text("/v1/messages", "/content/0/text"), "Hi from ann");
    assert_eq!(text("/v1/responses", "/output/0/content/0/text"), "Hi from ann");
    let ollama =
        client.post("/api/chat", json!({"model": "bob:latest", "messages": messages, "stream": false})).ok();
    assert_eq!((&ollama["message"]["content"], &ollama["model"]), (&json!("Hi from bob"), &json!("bob")));
    assert_eq!(client.post("/completion", hello("bob-alias")).ok()["content"], "Hi from bob");
    assert_eq!(
        client.post("/tokenize?model=ann", json!({"content": "a"})).ok()["tokens"].as_array().unwrap().len(),
        1
    );
    assert_eq!(client.get("/props?model=ann").ok()["model_alias"], "ann");
    assert_eq!(client.get("/props").ok()["role"], "router");
    client.post("/v1/embeddings", chat("ann")).error(501, "not_supported_error");

    let tags = client.get("/api/tags").ok();
    let names: Vec<&Value> = tags["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["ann", "bob"]);
    assert_eq!(client.get("/api/ps").ok()["models"].as_array().unwrap().len(), 2);
    let metrics = client.get("/metrics").text;
    assert!(metrics.contains("llamacpp:prompt_tokens_total{model=\"ann\"} "), "{metrics}");
    assert!(client.get("/metrics?model=bob").text.contains("llamacpp:prompt_tokens_total "), "of one model");

    for (body, part) in [(hello("eve"), "'eve'"), (hello("ann2"), "'ann2'")] {
        let message = client.post("/completion", body).error(404, "not_found_error");
        assert!(message.contains(part), "{message}");
    }
    let message = client.post("/completion", json!({"prompt": "a"})).error(400, "invalid_request_error");
    assert!(message.contains("'model'") && message.contains("several"), "{message}");
    client.post("/completion", json!({"model": 5})).error(400, "invalid_request_error");
    client.post_bytes("/completion", b"{\"model\":").error(400, "invalid_request_error");
    // Errors have the form of their protocol, those of the model come through as they are.
    assert_eq!(client.post("/v1/messages", hello("eve")).json()["type"], "error");
    assert!(client.post("/api/chat", hello("eve")).json()["error"].is_string());
    client.post("/completion", json!({"model": "ann", "prompt": 5.5})).error(400, "invalid_request_error");
    client.get("/nothing").error(404, "not_found_error");
}

#[test]
fn one_model_needs_no_name() {
    let client = many(&["ann"], 4);
    assert_eq!(client.post("/completion", json!({"prompt": "@hello:"})).ok()["content"], "Hi from ann");
}

#[test]
fn the_least_recently_used_leaves_when_it_has_answered() {
    let client = many(&["slow1", "ann", "bob"], 2);
    let ask = |name: &str| client.post("/completion", hello(name)).ok()["content"].clone();
    assert_eq!((ask("ann"), ask("bob")), (json!("Hi from ann"), json!("Hi from bob")));
    assert_eq!(ask("ann"), "Hi from ann");
    // Two are loaded, and bob was used before ann.
    assert_eq!(ask("slow1"), "Hi from slow1");
    assert!(is(&client, "ann", "loaded") && is(&client, "bob", "unloaded") && is(&client, "slow1", "loaded"));
    // An answer that is running is not cut by others that need the room.
    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            client.post("/completion", json!({"model": "slow1", "prompt": "abc", "n_predict": 150})).ok()
        });
        eventually("slow1 answers", 10 * SECOND, || {
            let slots = client.get("/slots?model=slow1").ok();
            slots.as_array().unwrap().iter().any(|slot| slot["is_processing"] == true)
        });
        for round in 0..3 {
            assert_eq!((ask("ann"), ask("bob")), (json!("Hi from ann"), json!("Hi from bob")), "{round}");
        }
        assert_eq!(long.join().unwrap()["tokens_predicted"], 150);
    });
    let loaded = ["slow1", "ann", "bob"].iter().filter(|name| !is(&client, name, "unloaded")).count();
    assert!(loaded <= 2, "{loaded}");
}

#[test]
fn everybody_gets_the_one_place_in_turn() {
    let client = many(&["ann", "bob", "eve"], 1);
    std::thread::scope(|scope| {
        for name in ["ann", "bob", "eve", "ann", "bob", "eve"] {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..2 {
                    let answer = client.post("/completion", hello(name)).ok();
                    assert_eq!(answer["content"], format!("Hi from {name}"));
                }
            });
        }
    });
}

#[test]
fn a_bad_file_or_a_crash_is_nobody_elses() {
    let (heard, warnings) = {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let list = heard.clone();
        (heard, Warnings::to(move |message| list.lock().unwrap().push(message.to_owned())))
    };
    let offer = offer(&["ann", "bad", "slowly"], 3);
    let client = Client::new(Server::start_many(offer, Options { warnings, ..options() }).unwrap());
    client.post("/completion", hello("ann")).ok();
    let start = Instant::now();
    for _ in 0..3 {
        let message = client.post("/completion", hello("bad")).error(500, "server_error");
        assert!(message.contains("'bad'") && message.contains("tensor x"), "{message}");
    }
    assert_eq!(heard.lock().unwrap().len(), 1, "it is not tried again at once: {:?}", start.elapsed());
    let failed = status(&client, "bad");
    assert_eq!((&failed["failed"], &failed["exit_code"]), (&json!(true), &json!(1)));

    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            client.post("/completion", json!({"model": "ann", "prompt": "abc", "n_predict": 2000})).ok()
        });
        // The process ends in the middle of an answer, as memory that is used up would end it.
        let abort = json!({"model": "slowly", "prompt": "@abort:", "n_predict": 5});
        let message = client.post("/completion", abort).error(500, "server_error");
        assert!(message.contains("'slowly'"), "{message}");
        // A request that comes while the process is ending may reach it.
        let gone = || eventually("its end is known", 10 * SECOND, || !is(&client, "slowly", "loaded"));
        gone();
        let messages = json!([{"role": "user", "content": "abc@late:"}]);
        let late = json!({"model": "slowly", "messages": messages, "stream": true, "max_tokens": 500});
        let events = client.post("/v1/chat/completions", late.clone()).events();
        let last = events.last().unwrap();
        assert!(events.len() > 1 && last["error"]["type"] == "server_error", "{last}");
        gone();
        let named = client.post("/v1/messages", late.clone()).text;
        assert!(named.contains("event: error\ndata: {\"error\":"), "{named}");
        gone();
        let lines = client.post("/api/chat", late).text;
        assert!(lines.lines().last().unwrap().starts_with("{\"error\":\""), "{lines}");
        gone();
        assert_eq!(client.post("/completion", hello("slowly")).ok()["content"], "Hi from slowly");
        assert_eq!(long.join().unwrap()["tokens_predicted"], 2000);
    });
}

#[test]
fn answers_stream_and_leaving_ends_them() {
    let client = many(&["slow1"], 1);
    client.post("/completion", hello("slow1")).ok();
    let body = json!({"model": "slow1", "prompt": "abc", "n_predict": 3000, "stream": true});
    let mut stream = BufReader::new(client.leave_open("/completion", body));
    let start = Instant::now();
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "a part comes");
    }
    // All of it takes more than 30 seconds.
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    let busy = || {
        let slots = client.get("/slots?model=slow1").ok();
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!(busy(), 1);
    drop(stream);
    eventually("the slot is free", SECOND, || busy() == 0);
    // Without a stream, too.
    let quiet =
        client.leave_open("/completion", json!({"model": "slow1", "prompt": "abc", "n_predict": 3000}));
    eventually("it runs", 5 * SECOND, || busy() == 1);
    drop(quiet);
    eventually("the slot is free", SECOND, || busy() == 0);
}

#[test]
fn models_are_loaded_and_unloaded_by_hand() {
    let offer = Offer { autoload: false, ..offer(&["ann", "bob"], 1) };
    let client = Client::new(Server::start_many(offer, options()).unwrap());
    let message = client.post("/completion", hello("ann")).error(400, "invalid_request_error");
    assert!(message.contains("/models/load"), "{message}");
    client.post("/models/unload", json!({"model": "ann"})).error(400, "invalid_request_error");
    client.post("/models/load", json!({"model": "eve"})).error(404, "not_found_error");
    client.post("/models/load", json!({})).error(400, "invalid_request_error");
    assert_eq!(client.post("/models/load", json!({"model": "ann"})).ok(), json!({"success": true}));
    eventually("ann is loaded", 10 * SECOND, || is(&client, "ann", "loaded"));
    client.post("/models/load", json!({"model": "ann"})).error(400, "invalid_request_error");
    assert_eq!(client.post("/completion", hello("ann")).ok()["content"], "Hi from ann");
    // The query wins; there is room for one.
    assert_eq!(client.post("/completion?autoload=1", hello("bob")).ok()["content"], "Hi from bob");
    assert!(is(&client, "ann", "unloaded"));
    client.post("/models/unload", json!({"model": "bob"})).ok();
    eventually("bob is unloaded", 10 * SECOND, || is(&client, "bob", "unloaded"));
    assert_eq!(status(&client, "bob").get("failed"), None);
}

#[test]
fn idle_models_sleep_and_wake() {
    let client = many(&["sleepy"], 1);
    assert_eq!(
        client.post("/completion", hello("sleepy")).ok()["content"],
        "Hi from sleepy".replace("from sleepy", "again")
    );
    eventually("it sleeps", 5 * SECOND, || is(&client, "sleepy", "sleeping"));
    // Questions about it do not wake it.
    assert_eq!(client.get("/props?model=sleepy").ok()["is_sleeping"], true);
    client.get("/metrics");
    assert!(is(&client, "sleepy", "sleeping"));
    assert_eq!(client.post("/completion", hello("sleepy")).ok()["content"], "Hi again");
    assert!(is(&client, "sleepy", "loaded"));
}

#[test]
fn keys_limits_and_the_log_are_the_routers() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, log) = (folder.path().join("keys.json"), folder.path().join("log"));
    let rows = json!({"keys": [
        {"name": "ann é", "key": "a1", "models": ["one"]},
        {"name": "short", "key": "s1", "tokens_per_minute": 30},
    ]});
    std::fs::write(&keys, rows.to_string()).unwrap();
    let mut offer = offer(&["one", "two", "bad"], 3);
    tell_own_lines(&mut offer, &log);
    let audit = AuditOptions { file: log.clone(), rules: None, prompts: false };
    let options = Options { key_file: Some(keys), audit: Some(audit), ..options() };
    let client = Client::new(Server::start_many(offer, options).unwrap());
    let ask = |key: &str, model: &str| client.post_with("/completion", ("x-api-key", key), hello(model));
    ask("wrong", "one").error(401, "authentication_error");
    let message = ask("a1", "two").error(403, "permission_error");
    assert!(message.contains("'two'"), "{message}");
    assert_eq!(ask("a1", "one").ok()["content"], "Hi from one");
    ask("s1", "bad").error(500, "server_error");
    // 8 tokens of the prompt and 11 of the answer: the second answer overdraws the limit.
    ask("s1", "one").ok();
    ask("s1", "two").ok();
    // Until the router hears of the tokens there may be more answers.
    let answered = std::cell::Cell::new(1);
    eventually("the router hears of the tokens", 5 * SECOND, || {
        let status = ask("s1", "one").status;
        answered.set(answered.get() + usize::from(status == 200));
        status == 429
    });
    eventually("the models' processes tell their lines", 5 * SECOND, || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.matches("\"status\":200").count() == answered.get() + 2
    });
    drop(client);
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<(&Value, &Value, &Value)> =
        lines.iter().map(|line| (&line["key"], &line["model"], &line["status"])).collect();
    let count = |key: &Value, model: &Value, status: u16| {
        found.iter().filter(|row| row.0 == key && row.1 == model && *row.2 == status).count()
    };
    let (ann, short, one, two) = (json!("ann é"), json!("short"), json!("one"), json!("two"));
    assert_eq!(count(&Value::Null, &Value::Null, 401), 1, "{text}");
    assert_eq!((count(&ann, &two, 403), count(&ann, &one, 200)), (1, 1), "{text}");
    assert_eq!((count(&short, &one, 200), count(&short, &two, 200)), (answered.get(), 1), "{text}");
    assert_eq!(count(&short, &json!("bad"), 500), 1, "{text}");
    let good = lines.iter().find(|line| line["key"] == ann && line["status"] == 200).unwrap();
    assert!(good["prompt_sha256"].is_string() && good["generated_tokens"] == 11, "{good}");
}

#[test]
fn every_request_has_its_line_whatever_its_process_does() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut offer = offer(&["ann", "silent", "slow1"], 3);
    tell_own_lines(&mut offer, &log);
    let audit = AuditOptions { file: log.clone(), rules: None, prompts: false };
    let client = Client::new(Server::start_many(offer, Options { audit: Some(audit), ..options() }).unwrap());
    let lines = |what: &str| std::fs::read_to_string(&log).unwrap().matches(what).count();
    // The answer came as a whole, but the process ended before it could tell its line.
    for _ in 0..2 {
        assert_eq!(client.post("/completion", hello("silent")).ok()["content"], "Hi from silent");
        eventually("the process ends", 10 * SECOND, || is(&client, "silent", "unloaded"));
    }
    // It ends in the middle of an answer, and a client leaves.
    let abort = json!({"model": "ann", "prompt": "@abort:", "n_predict": 5});
    client.post("/completion", abort).error(500, "server_error");
    let long = json!({"model": "slow1", "prompt": "abc", "n_predict": 3000});
    let open = client.leave_open("/completion", long.clone());
    let busy = || {
        let slots = client.get("/slots?model=slow1").ok();
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    };
    eventually("it runs", 10 * SECOND, || busy() == 1);
    drop(open);
    eventually("the line of who left", 5 * SECOND, || lines("client_left") == 1);
    assert_eq!(client.post("/completion", hello("slow1")).ok()["content"], "Hi from slow1");
    // The router ends while an answer is running, which gets no time to finish.
    let open = client.leave_open("/completion", long);
    eventually("it runs", 10 * SECOND, || busy() == 1);
    client.server.stop().unwrap();
    drop(open);
    let text = std::fs::read_to_string(&log).unwrap();
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let completions = |model: &str| {
        let of = all.iter().filter(|line| line["endpoint"] == "POST /completion" && line["model"] == model);
        of.map(|line| line["status"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((completions("silent"), completions("ann")), (vec![200, 200], vec![500]), "{text}");
    assert_eq!(completions("slow1").len(), 3, "{text}");
}

/// Its process has not begun to answer, and may never have heard of it.
#[test]
fn a_client_that_leaves_early_has_its_line_and_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let audit = AuditOptions { file: log.clone(), rules: None, prompts: false };
    let options = Options { audit: Some(audit), ..options() };
    let client = Client::new(Server::start_many(offer(&["deaf"], 1), options).unwrap());
    let start = Instant::now();
    let open = client.leave_open("/completion", hello("deaf"));
    eventually("the process is there", 10 * SECOND, || is(&client, "deaf", "loaded"));
    // Long enough that the request is with the process.
    std::thread::sleep(SECOND / 2);
    drop(open);
    let stayed = start.elapsed();
    let lines = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|line| line["endpoint"] == "POST /completion").collect::<Vec<_>>()
    };
    eventually("its line", 15 * SECOND, || lines().len() == 1);
    let line = &lines()[0];
    assert_eq!((&line["status"], &line["error"]), (&json!(499), &json!("client_left")), "{line}");
    // It says when the client left, not how long the process was waited for.
    assert!(line["latency_ms"].as_f64().unwrap() < (stayed + 3 * SECOND).as_secs_f64() * 1e3, "{line}");
}

#[test]
fn names_are_unique_and_the_end_ends_all() {
    let twice = offer(&["ann", "ann"], 1);
    let Err(error) = Server::start_many(twice, options()) else { panic!("it starts") };
    assert!(matches!(&error, ServerError::Models { reason } if reason.contains("'ann'")), "{error}");
    let mut eager = offer(&["ann", "bob"], 1);
    let list = eager.list;
    eager.list =
        Box::new(move || list().map(|all| all.into_iter().map(|e| Entry { at_start: true, ..e }).collect()));
    assert!(Server::start_many(eager, options()).is_err());

    let client = many(&["ann", "slow1"], 2);
    client.post("/completion", hello("ann")).ok();
    client.post("/completion", hello("slow1")).ok();
    let open =
        client.leave_open("/completion", json!({"model": "slow1", "prompt": "abc", "n_predict": 3000}));
    let start = Instant::now();
    client.server.stop().unwrap();
    // Half a second for answers here, as much in the process.
    assert!(start.elapsed() < 4 * SECOND, "{:?}", start.elapsed());
    drop(open);
}
