//! Files of slots whatever happens to them, gaps in texts, clients that do not read.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::scripted::bytes;
use common::*;
use puna_server::{Options, Server};
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);

fn hello() -> Scripted {
    scripted(300, 2).script("hello", bytes("Hi there"))
}

fn restore(client: &Client, name: &str) -> Reply {
    client.post("/slots/1?action=restore", json!({"filename": name}))
}

#[test]
fn k07_damaged_files_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let client =
        start(hello(), Options { slot_folder: Some(folder.path().into()), slot_bytes: 5000, ..options() });
    let ask =
        || client.post("/completion", json!({"prompt": "@hello:", "id_slot": 1})).ok()["content"].clone();
    client.post("/completion", json!({"prompt": "@hello:", "id_slot": 0})).ok();
    client.post("/slots/0?action=save", json!({"filename": "good"})).ok();
    let good = std::fs::read(at("good")).unwrap();
    for place in 0..100 {
        let mut damaged = good.clone();
        let index = place * good.len() / 100;
        damaged[index] ^= 1 << (place % 8);
        std::fs::write(at("bad"), &damaged).unwrap();
        restore(&client, "bad").error(400, "invalid_request_error");
        assert_eq!(ask(), "Hi there", "bit {place}");
    }
    for length in [0, 1, 7, good.len() - 1] {
        std::fs::write(at("bad"), &good[..length]).unwrap();
        restore(&client, "bad").error(400, "invalid_request_error");
    }
    assert_eq!(ask(), "Hi there");
    restore(&client, "good").ok();
    // A file larger than any slot is not even read, a folder or a pipe is no file.
    std::fs::File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
    let message = restore(&client, "huge").error(400, "invalid_request_error");
    assert!(message.contains("1099511627776") && message.contains("5000"), "{message}");
    std::fs::create_dir(at("folder")).unwrap();
    restore(&client, "folder").error(400, "invalid_request_error");
    #[cfg(unix)]
    {
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        restore(&client, "pipe").error(400, "invalid_request_error");
    }
    assert_eq!(ask(), "Hi there");
}

/// Not a test of its own: the process that is killed by the next one.
#[test]
fn saves_slots_until_killed() {
    let Ok(folder) = std::env::var("PUNA_TEST_SLOTS") else { return };
    let model = hello().ballast(4 << 20);
    let client = start(model, Options { slot_folder: Some(folder.into()), slot_bytes: 8 << 20, ..options() });
    client.post("/completion", json!({"prompt": "@hello:", "id_slot": 0})).ok();
    let mut count = 0u32;
    loop {
        client.post("/slots/0?action=save", json!({"filename": format!("slot{}", count % 3)})).ok();
        count += 1;
        println!("saved {count}");
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn a_kill_while_slots_are_saved_leaves_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..6u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "saves_slots_until_killed", "--nocapture"])
            .env("PUNA_TEST_SLOTS", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Open until the end: writing to a closed pipe would end the process early.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.starts_with("saved 3")), "the process saves");
        std::thread::sleep(Duration::from_millis(7 * round));
        assert!(child.try_wait().unwrap().is_none(), "it still saves");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(lines);
    }
    let options = Options { slot_folder: Some(folder.path().into()), slot_bytes: 8 << 20, ..options() };
    let client = start(hello().ballast(4 << 20), options);
    let mut served = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with('.') {
            // What was being written has no name that can be asked for.
            restore(&client, &name).error(400, "invalid_request_error");
            continue;
        }
        restore(&client, &name).ok();
        let again = client.post("/completion", json!({"prompt": "@hello:", "id_slot": 1})).ok();
        assert_eq!(
            (&again["content"], &again["timings"]["cache_n"]),
            (&json!("Hi there"), &json!(7)),
            "{name}"
        );
        served += 1;
    }
    assert_eq!(served, 3);
}

/// Tokens of gaps: bytes 1 to 5.
const GAPS: [(&str, u32); 5] = [
    ("tokenizer.ggml.fim_pre_token_id", 4),
    ("tokenizer.ggml.fim_suf_token_id", 5),
    ("tokenizer.ggml.fim_mid_token_id", 6),
    ("tokenizer.ggml.fim_rep_token_id", 7),
    ("tokenizer.ggml.fim_sep_token_id", 8),
];

fn gaps(roles: &[(&str, u32)], change: impl FnOnce(&mut puna_server::Defaults)) -> Client {
    let model = scripted(400, 1).script("hello", bytes("Hi there"));
    let mut served = served(model, 16, tokenizer_with(roles), TEMPLATE);
    change(&mut served.defaults);
    Client::new(Server::start(served, options()).unwrap())
}

#[test]
fn gaps_are_filled() {
    let client = gaps(&GAPS[..3], |_| ());
    let fill = |body| client.post("/infill", body);
    let plain = fill(json!({"input_prefix": "ab", "input_suffix": "yz", "n_predict": 3})).ok();
    assert_eq!(plain["prompt"], "<s>\u{1}ab\u{2}yz\u{3}");
    assert_eq!(plain["tokens_predicted"], 3);
    let begun = fill(json!({"input_prefix": "", "input_suffix": "", "prompt": "@hello:"})).ok();
    assert_eq!(
        (&begun["prompt"], &begun["content"]),
        (&json!("<s>\u{1}\u{2}\u{3}@hello:"), &json!("Hi there"))
    );
    let extra = json!([{"filename": "f", "text": "12"}, {"text": "34"}]);
    let body = |predict: i32| json!({"input_prefix": "a", "input_suffix": "z", "input_extra": extra, "n_predict": predict});
    let small = gaps(&GAPS[..3], |defaults| defaults.infill = 40);
    let snippets = small.post("/infill", body(1)).ok();
    assert_eq!(snippets["prompt"], "<s>\n\n--- snippet ---\n\n12\n\n--- snippet ---\n\n34\u{1}a\u{2}z\u{3}");
    let all = gaps(&GAPS, |defaults| (defaults.infill, defaults.suffix_first) = (40, true));
    let files = all.post("/infill", body(1)).ok();
    assert_eq!(files["prompt"], "<s>\u{4}myproject\n\u{5}f\n12\u{5}tmp\n34\u{5}filename\n\u{2}z\u{1}a\u{3}");
    // 400 tokens less 40 less twice 177 leave room for 6 tokens.
    let less = all.post("/infill", body(177)).ok();
    assert_eq!(less["prompt"], "<s>ename\n\u{2}z\u{1}a\u{3}");
    // Of long texts the parts next to the gap stay: three quarters of the window, and a quarter less two marks.
    let long = json!({"input_prefix": "p".repeat(99) + "P", "input_suffix": "S".to_owned() + &"s".repeat(99), "n_predict": 1});
    let cut = small.post("/infill", long).ok()["prompt"].as_str().unwrap().to_owned();
    assert_eq!(cut, format!("<s>\u{1}{}P\u{2}S{}\u{3}", "p".repeat(29), "s".repeat(7)));
    for (body, part) in [
        (json!({"input_prefix": "a"}), "input_suffix"),
        (json!({"input_suffix": "a"}), "input_prefix"),
        (json!({"input_prefix": 5, "input_suffix": "a"}), "input_prefix"),
        (json!({"input_prefix": "a", "input_suffix": "a", "input_extra": [5]}), "input_extra[0]"),
        (json!({"input_prefix": "a", "input_suffix": "a", "input_extra": [{}]}), "input_extra[0].text"),
    ] {
        let message = fill(body).error(400, "invalid_request_error");
        assert!(message.contains(part), "{message}");
    }
    let without = gaps(&GAPS[..2], |_| ());
    let message = without
        .post("/infill", json!({"input_prefix": "a", "input_suffix": "b"}))
        .error(501, "not_supported_error");
    assert!(message.contains("middle"), "{message}");
}

/// Reads so many bytes at a time with pauses for a while, then all that is left; how many bytes came.
fn read_slowly(stream: &mut TcpStream, bytes: usize, pause: Duration, time: Duration) -> usize {
    stream.set_read_timeout(Some(60 * SECOND)).unwrap();
    // Patience is asked for once there is something to take; making the answer takes its time.
    stream.peek(&mut [0]).unwrap();
    let (mut buffer, mut count, start) = (vec![0; bytes.max(1 << 20)], 0, Instant::now());
    loop {
        let slow = start.elapsed() < time;
        if slow {
            std::thread::sleep(pause);
        }
        let wanted = if slow { bytes } else { buffer.len() };
        if wanted == 0 {
            continue;
        }
        match stream.read(&mut buffer[..wanted]) {
            Ok(0) => return count,
            Ok(read) => count += read,
            Err(error) => {
                // The server hung up.
                assert!(error.kind() == ErrorKind::ConnectionReset, "{error}");
                return count;
            }
        }
    }
}

#[test]
fn clients_that_do_not_read_are_left_and_delay_nobody() {
    let client = start(hello(), Options { write_time: SECOND, ..options() });
    // An answer of some 44 MB, more than the system holds for a connection: up to 4 and 32 MB on Linux.
    let large = json!({"content": "x".repeat(2_000_000), "with_pieces": true});
    let pace = |bytes: usize, pause: Duration| {
        let mut stream = client.leave_open_with("/tokenize", "Connection: close\r\n", large.clone());
        move || read_slowly(&mut stream, bytes, pause, 5 * SECOND)
    };
    let (never, trickle) = (pace(0, SECOND / 10), pace(10, SECOND / 10));
    // Slow, but the system tells the server of room more often than once a second.
    let steady = pace(200_000, SECOND / 50);
    std::thread::scope(|scope| {
        let readers = [scope.spawn(never), scope.spawn(trickle), scope.spawn(steady)];
        let (until, mut longest) = (Instant::now() + 5 * SECOND, Duration::ZERO);
        while Instant::now() < until {
            let start = Instant::now();
            assert_eq!(client.post("/completion", json!({"prompt": "@hello:"})).ok()["content"], "Hi there");
            longest = longest.max(start.elapsed());
        }
        assert!(longest < 4 * SECOND, "{longest:?}");
        let counts = readers.map(|reader| reader.join().unwrap());
        // Those that were left get what the system held for them, which may be most of it, but not the rest.
        assert!(counts[2] > 40_000_000, "{counts:?}");
        assert!(counts[0] + 1_000_000 < counts[2] && counts[1] + 1_000_000 < counts[2], "{counts:?}");
    });
}
