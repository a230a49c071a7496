//! Many clients at once: equal texts, a bounded queue, clients that leave, one failure among others, the end.

mod common;

use std::time::{Duration, Instant};

use common::scripted::bytes;
use common::*;
use puna_server::Options;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

fn greedy(prompt: &str, count: usize) -> Value {
    json!({"prompt": prompt, "n_predict": count, "temperature": 0})
}

#[test]
fn s03_s04_parallel_answers_equal_those_alone() {
    let client = start(scripted(4000, 4), options());
    let prompts: Vec<String> = (0..8).map(|number| format!("prompt {}", number % 3)).collect();
    let alone: Vec<Value> =
        prompts.iter().map(|prompt| client.post("/completion", greedy(prompt, 50)).ok()).collect();
    // Warm: the second and later ones of a prompt came from the cache.
    assert_eq!(alone[0]["content"], alone[3]["content"]);
    assert!(alone[3]["timings"]["cache_n"].as_u64().unwrap() > 0);
    assert_ne!(alone[0]["content"], alone[1]["content"]);
    std::thread::scope(|scope| {
        for (prompt, alone) in prompts.iter().zip(&alone) {
            let client = &client;
            scope.spawn(move || {
                let found = client.post("/completion", greedy(prompt, 50)).ok();
                assert_eq!(found["content"], alone["content"], "{prompt}");
            });
        }
    });
    assert_eq!(client.busy(), 0);
}

#[test]
fn a18_a_queue_in_order_with_a_limit() {
    let model = scripted(4000, 1).script("hello", bytes("Hi")).delay(Duration::from_millis(20));
    let client = start(model, Options { queue: 9, ..options() });
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| client.post("/completion", json!({"prompt": "@hello:"}))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (good, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 200);
    assert!(good.len() >= 10, "{}", good.len());
    assert!(good.into_iter().all(|reply| reply.ok()["content"] == "Hi"));
    for reply in refused {
        assert_eq!(reply.header("retry-after"), Some("1"));
        reply.error(503, "unavailable_error");
    }
    let several = json!({"prompt": ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]});
    client.post("/completion", several).error(503, "unavailable_error");
    assert_eq!(
        client.post("/completion", json!({"prompt": ["@hello:", "@hello:"]})).ok().as_array().unwrap().len(),
        2
    );
}

#[test]
fn a06_clients_that_leave_free_their_slots() {
    let client = start(scripted(100_000, 2).delay(Duration::from_millis(10)), options());
    for stream in [false, true] {
        // In the middle of generation, and of a prompt (16 tokens a step).
        for prompt in ["short".to_owned(), "long ".repeat(8000)] {
            let body = json!({"prompt": prompt, "n_predict": 90_000, "stream": stream});
            let open = client.leave_open("/completion", body);
            eventually("it starts", 5 * SECOND, || client.busy() == 1);
            std::thread::sleep(Duration::from_millis(50));
            drop(open);
            eventually("the slot is free", SECOND, || client.busy() == 0);
        }
    }
    // In the queue: those that wait never run.
    let body = |stream: bool| json!({"prompt": "x", "n_predict": 90_000, "stream": stream});
    let running: Vec<_> = (0..2).map(|_| client.leave_open("/completion", body(true))).collect();
    eventually("they start", 5 * SECOND, || client.busy() == 2);
    let waiting: Vec<_> =
        (0..4).map(|index| client.leave_open("/completion", body(index % 2 == 0))).collect();
    eventually("they wait", SECOND, || client.metric("requests_deferred") == 4.0);
    drop(waiting);
    eventually("nobody waits", SECOND, || client.metric("requests_deferred") == 0.0);
    assert_eq!(client.busy(), 2);
    drop(running);
    eventually("nobody runs", SECOND, || client.busy() == 0);
}

#[test]
fn s10_a_failure_is_its_requests_own() {
    let client = start(scripted(4000, 4), options());
    let alone = client.post("/completion", greedy("good", 40)).ok();
    std::thread::scope(|scope| {
        let good: Vec<_> =
            (0..4).map(|_| scope.spawn(|| client.post("/completion", greedy("good", 40)))).collect();
        for _ in 0..4 {
            client.post("/completion", greedy("@nan:", 5)).error(500, "server_error");
        }
        for thread in good {
            assert_eq!(thread.join().unwrap().ok()["content"], alone["content"]);
        }
    });
}

#[test]
fn a_client_that_does_not_read_delays_nobody() {
    let client = start(scripted(100_000, 2), options());
    let _open = client.leave_open("/completion", json!({"prompt": "x", "n_predict": -1, "stream": true}));
    let start = Instant::now();
    client.post("/completion", greedy("y", 20)).ok();
    assert!(start.elapsed() < 2 * SECOND);
}

#[test]
fn pings_come_in_silence() {
    let client = start(scripted(4000, 1).delay(Duration::from_millis(1300)), options());
    let body = json!({"prompt": "x", "n_predict": 2, "stream": true, "sse_ping_interval": 1});
    let reply = client.post("/completion", body);
    assert!(reply.text.contains("\n:\n\n") || reply.text.starts_with(":\n\n"), "{}", reply.text);
}

#[test]
fn the_end_is_orderly() {
    // Answers that take less than the grace are finished.
    let client = start(scripted(4000, 2).delay(Duration::from_millis(5)), options());
    let address = client.address();
    let asking = std::thread::spawn(move || {
        let url = format!("http://{address}/completion");
        ureq::post(url)
            .send(greedy("x", 30).to_string())
            .map(|mut reply| reply.body_mut().read_to_string().unwrap())
    });
    eventually("it runs", 5 * SECOND, || client.busy() == 1);
    let start_of_end = Instant::now();
    client.server.stop().unwrap();
    assert!(start_of_end.elapsed() < 2 * SECOND);
    let body: Value = serde_json::from_str(&asking.join().unwrap().unwrap()).unwrap();
    assert_eq!(body["content"].as_str().unwrap().len(), 30);
    assert!(std::net::TcpStream::connect(address).is_err());
    // Endless ones are cut off.
    let client = start(scripted(100_000, 2).delay(Duration::from_millis(5)), options());
    let _open = client.leave_open("/completion", json!({"prompt": "x", "n_predict": 90_000, "stream": true}));
    eventually("it runs", 5 * SECOND, || client.busy() == 1);
    let start_of_end = Instant::now();
    client.server.stop().unwrap();
    assert!(start_of_end.elapsed() < 2 * SECOND, "{:?}", start_of_end.elapsed());
}
