//! The server as a program: it says where it listens, answers, and ends in order.

mod common;

use puna_conformance::zoo;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A zoo model with a vocabulary of single letters.
fn model(path: &Path) {
    let zoo = zoo::models().into_iter().find(|zoo| zoo.name == "llama-dense").unwrap();
    common::with_letters(&zoo.open(), path);
}

/// One request; the whole answer.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn wait(child: &mut Child) -> i32 {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        assert!(start.elapsed() < Duration::from_secs(15), "the server does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn serves_and_ends_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zoo.gguf");
    model(&path);
    let path = path.to_str().unwrap();
    for signal in ["-TERM", "-INT"] {
        let mut command = common::llama(&[
            "serve", "-m", path, "-c", "256", "--port", "0", "-t", "2", "-np", "2", "-a", "zoo",
        ]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
        let models = ask(address, "GET /v1/models HTTP/1.0\r\n\r\n");
        assert!(models.starts_with("HTTP/1.0 200") && models.contains("\"id\":\"zoo\""), "{models}");
        let body = "{\"prompt\":[1,2,3],\"n_predict\":5,\"ignore_eos\":true}";
        let head = format!("POST /completion HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        let answer = ask(address, &format!("{head}{body}"));
        assert!(answer.contains("\"tokens_predicted\":5"), "{answer}");
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert_eq!(wait(&mut child), 0, "after {signal}");
    }
}

/// A running server of the model and its address.
#[cfg(unix)]
fn serve(path: &str, more: &[&str]) -> (Child, String) {
    let plain = ["serve", "-m", path, "-c", "1024", "--port", "0", "-t", "1", "-np", "1", "--deterministic"];
    let mut command = common::llama(&[&plain, more].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
    (child, address.to_owned())
}

/// Tokens of an answer and how much of its prompt came from the cache.
#[cfg(unix)]
fn complete(address: &str, start: u32) -> (String, u32) {
    let prompt: Vec<u32> = (0..200).map(|index| (start * 31 + index * index) % 100).collect();
    let body = format!(
        "{{\"prompt\":{prompt:?},\"n_predict\":4,\"temperature\":0,\"ignore_eos\":true,\"return_tokens\":true}}"
    );
    let answer = post(address, "/completion", &body);
    let member = |name: &str| {
        let rest =
            answer.split(&format!("\"{name}\":")).nth(1).unwrap_or_else(|| panic!("{name} in {answer}"));
        rest.to_owned()
    };
    let cached = member("cache_n").split([',', '}']).next().unwrap().parse().unwrap();
    (member("tokens").split(']').next().unwrap().to_owned(), cached)
}

#[cfg(unix)]
#[test]
fn what_was_computed_survives_a_kill_and_nothing_damaged_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zoo.gguf");
    model(&path);
    let path = path.to_str().unwrap();
    let cache = folder.path().join("cache");
    let slots = folder.path().join("slots");
    std::fs::create_dir(&slots).unwrap();
    let more =
        ["--cache-disk", cache.to_str().unwrap(), "--slot-save-path", slots.to_str().unwrap(), "-cram", "0"];
    let (mut child, mut address) = serve(path, &more);
    let answers: Vec<String> = (0..6).map(|start| complete(&address, start).0).collect();
    post(&address, "/slots/0?action=save", "{\"filename\":\"kept\"}");
    let mut reused = 0;
    for round in 0..6 {
        // While answers are given, files of the cache written and slots saved.
        let (busy, killer) = (address.clone(), child.id().to_string());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20 + 31 * round));
                std::process::Command::new("kill").args(["-KILL", &killer]).status().unwrap();
            });
            scope.spawn(move || {
                for start in 10u32.. {
                    let prompt: Vec<u32> = (0..200).map(|index| (start + index) % 100).collect();
                    let body = format!("{{\"prompt\":{prompt:?},\"n_predict\":1}}");
                    let save = "{\"filename\":\"kept\"}";
                    for (path, body) in [("/completion", body.as_str()), ("/slots/0?action=save", save)] {
                        let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
                        let Ok(mut stream) = TcpStream::connect(&busy) else { return };
                        let mut answer = String::new();
                        if stream.write_all(format!("{head}{body}").as_bytes()).is_err()
                            || stream.read_to_string(&mut answer).is_err()
                        {
                            return;
                        }
                    }
                }
            });
        });
        child.wait().unwrap();
        let (next, its_address) = serve(path, &more);
        child = next;
        // A saved slot is the old one or a new one, never a part.
        let restored = post(&its_address, "/slots/0?action=restore", "{\"filename\":\"kept\"}");
        assert!(restored.contains("\"n_restored\""), "{restored}");
        for (start, answer) in (0..).zip(&answers) {
            let (found, cached) = complete(&its_address, start);
            assert_eq!(found, *answer, "{round} {start}");
            reused += u32::from(cached == 199);
        }
        address = its_address;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The first six were on the disk before the first kill, but for those that were on their way.
    assert!(reused >= 20, "{reused}");
}

#[test]
fn other_machines_need_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zoo.gguf");
    model(&path);
    let path = path.to_str().unwrap();
    let arguments = ["serve", "-m", path, "-c", "64", "--host", "0.0.0.0", "--port", "0", "-t", "1"];
    let run = common::run(&mut common::llama(&arguments));
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("--allow-unauthenticated"), "{}", run.err);
}

/// A request with a JSON body; the whole answer.
fn post(address: &str, path: &str, body: &str) -> String {
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
    ask(address, &format!("{head}{body}"))
}

/// Processes whose parent this is.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Number, name in brackets, state, parent.
        let parent_is = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        parent_is == Some(parent)
    };
    numbers.filter(is_child).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn many_models_end_with_their_router() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zoo.gguf");
    model(&path);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(folder.path().join("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    let preset = folder.path().join("models.ini");
    std::fs::write(&preset, "[zoo]\nalias = z\nn-predict = 3\nsleep-idle-seconds = 1\n").unwrap();
    let (models, preset) = (folder.path().to_str().unwrap(), preset.to_str().unwrap());
    let mut command = common::llama(&[
        "serve",
        "--models-dir",
        models,
        "--models-preset",
        preset,
        "-c",
        "64",
        "--port",
        "0",
        "-t",
        "1",
    ]);
    let told = folder.path().join("told");
    let errors = std::fs::File::create(&told).unwrap();
    let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
    let answer = post(address, "/completion", "{\"model\":\"z\",\"prompt\":[1,2],\"ignore_eos\":true}");
    assert!(answer.contains("\"tokens_predicted\":3") && answer.contains("\"model\":\"zoo\""), "{answer}");
    let refused = post(address, "/completion", "{\"model\":\"cut\",\"prompt\":[1,2]}");
    assert!(
        refused.starts_with("HTTP/1.0 500") && refused.contains("'cut' could not be loaded"),
        "{refused}"
    );
    let told = std::fs::read_to_string(told).unwrap();
    assert_eq!(told.lines().filter(|line| line.contains("cut.gguf")).count(), 1, "it is said once: {told}");
    let start = Instant::now();
    while !ask(address, "GET /models HTTP/1.0\r\n\r\n").contains("\"sleeping\"") {
        assert!(start.elapsed() < Duration::from_secs(15), "it does not sleep");
        std::thread::sleep(Duration::from_millis(100));
    }
    let again = post(address, "/completion", "{\"model\":\"zoo\",\"prompt\":[1,2],\"ignore_eos\":true}");
    assert!(again.contains("\"tokens_predicted\":3"), "{again}");
    let served = children(child.id());
    assert_eq!(served.len(), 1, "one process for the model that is loaded");
    // Even a router that is killed leaves nobody behind.
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    let runs = || {
        // One that has ended may wait for its new parent to notice.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", served[0])).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    while runs() {
        assert!(start.elapsed() < Duration::from_secs(15), "the model's process goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_model_or_many() {
    let error = common::failure(2, &["serve", "-m", "x.gguf", "--models-dir", "."]);
    assert!(error.contains("--models-dir"), "{error}");
    let error = common::failure(1, &["serve", "--models-dir", "no-such-folder"]);
    assert!(error.contains("no-such-folder"), "{error}");
    // None so far: that is said.
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        common::llama(&["serve", "--models-dir", folder.path().to_str().unwrap(), "--port", "0"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("warning: there is no model to serve yet"), "{line}");
}

#[test]
fn what_can_be_told_at_once_is_not_told_after_loading() {
    // The model does not exist either.
    let begin = ["serve", "-m", "no-such-model.gguf", "--port", "0"];
    let error = common::failure(1, &[&begin[..], &["-md", "no-such-draft.gguf"]].concat());
    assert_eq!(error, "error: draft model (-md): no-such-draft.gguf: there is no such file");
    let tool = ["completion", "-m", "no-such-model.gguf", "-p", "x", "-md", "no-such-draft.gguf"];
    let error = common::failure(1, &tool);
    assert!(error.contains("no-such-draft.gguf"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "x").unwrap();
    let below = folder.path().join("file/cache");
    let error = common::failure(1, &[&begin[..], &["--cache-disk", below.to_str().unwrap()]].concat());
    assert!(error.starts_with("error: the cache folder ") && error.contains("file/cache"), "{error}");
}

#[cfg(unix)]
#[test]
fn adapters_are_switched_while_the_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zoo.gguf");
    model(&path);
    let adapter = folder.path().join("adapter.gguf");
    let file = puna_gguf::File::open(&path, &puna_gguf::OpenOptions::default()).unwrap();
    puna_conformance::write_adapter(&file, &adapter, 1.0);
    let (path, adapter) = (path.to_str().unwrap(), adapter.to_str().unwrap());
    let plain = complete_alone(path, &[]);
    let (mut child, address) = serve(path, &["--lora", adapter, "--lora-init-without-apply"]);
    let list = ask(&address, "GET /lora-adapters HTTP/1.0\r\n\r\n");
    assert!(list.contains("\"scale\":0.0") && list.contains("adapter.gguf"), "{list}");
    assert_eq!(complete(&address, 1).0, plain);
    let set = post(&address, "/lora-adapters", "[{\"id\":0,\"scale\":6.0}]");
    assert!(set.starts_with("HTTP/1.0 200"), "{set}");
    let switched = complete(&address, 1);
    assert_eq!(switched.1, 0, "nothing computed without it is used");
    child.kill().unwrap();
    child.wait().unwrap();
    let fixed = complete_alone(path, &["--lora-scaled", &format!("{adapter}:6.0")]);
    assert_eq!(switched.0, fixed);
    assert!(fixed != plain, "the adapter changes nothing: {plain}");
    let other = ["serve", "-m", path, "-dev", "reference", "--log-disable"];
    let error = common::failure(1, &[&other[..], &["--lora", adapter, "--lora-init-without-apply"]].concat());
    assert!(error.contains("--lora-init-without-apply"), "{error}");
}

/// What a server with these flags answers.
#[cfg(unix)]
fn complete_alone(path: &str, more: &[&str]) -> String {
    let (mut child, address) = serve(path, more);
    let answer = complete(&address, 1).0;
    child.kill().unwrap();
    child.wait().unwrap();
    answer
}
