//! Every hostile file is refused with one clear line, or accepted, within ten seconds and 1.5 GB.

mod common;

use common::{finish, limited, llama};
use puna_conformance::zoo;
use puna_gguf::{Array, File, TensorSpec, Value};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A small model that runs: a zoo model with a vocabulary and a chat template.
fn good() -> Vec<u8> {
    let model = zoo::models().into_iter().find(|model| model.name == "llama-gqa4-tied").expect("a zoo model");
    let file = model.open();
    let mut metadata = file.metadata.clone();
    let mut tokens: Vec<String> =
        ["<unk>", "<s>", "</s>", "\u{2581}", "h", "i", "hi", "\u{2581}hi"].map(str::to_owned).to_vec();
    tokens.extend((tokens.len()..128).map(|index| format!("<0x{index:02X}>")));
    let mut kinds = vec![6; tokens.len()];
    kinds[..8].copy_from_slice(&[2, 3, 3, 1, 1, 1, 1, 1]);
    let scores: Vec<f32> = (0..tokens.len()).map(|index| -(index as f32)).collect();
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    for (key, value) in [
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.chat_template", Value::String(template.into())),
    ] {
        metadata.set(key, value);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("good.gguf");
    let tensors: Vec<(TensorSpec, &[u8])> = file
        .tensors
        .iter()
        .map(|tensor| {
            let spec =
                TensorSpec { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone() };
            (spec, file.bytes(tensor))
        })
        .collect();
    puna_gguf::write(&path, &metadata, &tensors).expect("the model is written");
    let bytes = std::fs::read(&path).expect("the model is there");
    File::from_bytes(bytes.clone()).expect("the model is good");
    bytes
}

#[test]
fn hostile_files_are_accepted_or_refused_in_one_line() {
    let good = good();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("case.gguf");
    let file = path.to_str().expect("a plain path");
    let out = folder.path().join("out.f32");
    let out = out.to_str().expect("a plain path");
    let logits =
        ["logits", "-m", file, "--tokens", "1,5,7", "-o", out, "-c", "64", "-t", "1", "--log-disable"];
    let chat =
        ["cli", "-m", file, "-p", "hi", "--single-turn", "-n", "2", "-c", "64", "-t", "1", "--log-disable"];
    let (mut accepted, mut refused) = (0, 0);
    for (name, bytes) in puna_gguf::hostile::cases(&good).expect("the good model is good") {
        std::fs::write(&path, &bytes).expect("the case is written");
        // What only a conversation reads: the template and the vocabulary.
        let conversation = name.starts_with("template/") || name.starts_with("tokenizer/");
        let arguments = if conversation { &chat[..] } else { &logits[..] };
        let child = limited(arguments, 1536).spawn().expect("the program starts");
        let (code, errors) = finish(child, &name);
        match code {
            0 => accepted += 1,
            1 => {
                refused += 1;
                assert_eq!(errors.lines().count(), 1, "{name}: {errors}");
                assert!(errors.starts_with("error: "), "{name}: {errors}");
                assert!(!errors.contains("panicked") && !errors.contains("internal"), "{name}: {errors}");
                let left = std::fs::read_dir(folder.path()).expect("the folder").count();
                assert!(left == 1 || !conversation && std::fs::metadata(out).is_ok(), "{name}: {left} files");
            }
            code => panic!("{name}: exit code {code}: {errors}"),
        }
        if name.starts_with("structure/") || name.starts_with("truncate/") {
            assert_eq!(code, 1, "{name} must be refused");
        }
        let _ = std::fs::remove_file(out);
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted + refused >= 400, "{accepted} + {refused}");
}

/// Where nothing runs, Ctrl-C ends the program at once.
#[cfg(unix)]
#[test]
fn an_interrupt_while_waiting_for_input_ends_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("good.gguf");
    std::fs::write(&path, good()).expect("the model is written");
    let mut command = llama(&["cli", "-c", "32", "-m", path.to_str().expect("a plain path")]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // Once the model is described, the program waits for a message, which never comes.
    let mut seen = Vec::new();
    let mut messages = child.stderr.take().expect("its messages");
    while !String::from_utf8_lossy(&seen).contains("context 32") {
        let mut byte = [0];
        assert_eq!(messages.read(&mut byte).expect("a message"), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    std::thread::sleep(Duration::from_millis(300));
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the program can be asked") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(10) {
            child.kill().expect("it can be ended");
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130));
}
