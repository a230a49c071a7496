//! A model with an encoder (T5) in the tools that generate.

mod common;

use std::path::{Path, PathBuf};

use common::{failure_after_loading, llama, output, run};
use puna_conformance::zoo;
use puna_gguf::{Array, TensorSpec, Value};

/// A small T5 with a vocabulary of its own; the words are `a0`, `a1` and so on.
fn model(folder: &Path) -> PathBuf {
    let found = zoo::embedding_models().into_iter().find(|model| model.name == "t5-gated");
    let file = found.expect("the zoo has it").open();
    let count = file.tensors.get("token_embd.weight").expect("a table").shape[0] as usize;
    let mut tokens = ["<pad>", "</s>", "<unk>"].map(str::to_owned).to_vec();
    tokens.extend((0..count - 3).map(|word| format!("\u{2581}a{word}")));
    let mut kinds = vec![1; count];
    kinds[..3].copy_from_slice(&[3, 3, 2]);
    let mut metadata = file.metadata.clone();
    for (key, value) in [
        ("tokenizer.ggml.model", Value::String("t5".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![-1.0; count]))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.eos_token_id", Value::U32(1)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(2)),
        ("tokenizer.ggml.padding_token_id", Value::U32(0)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(true)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.ggml.add_eos_token", Value::Bool(true)),
        ("t5.decoder_start_token_id", Value::U32(0)),
    ] {
        metadata.set(key, value);
    }
    let tensors: Vec<(TensorSpec, &[u8])> =
        file.tensors.iter().map(|info| (info.into(), file.bytes(info))).collect();
    let path = folder.join("t5.gguf");
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

/// The best next token by `llama logits`.
fn best(model: &str, prompt: &str, decoder: &str, folder: &Path) -> usize {
    let out = folder.join("logits.f32");
    output(&[
        "logits",
        "-m",
        model,
        "--tokens",
        prompt,
        "--decoder-tokens",
        decoder,
        "-o",
        out.to_str().unwrap(),
        "--log-disable",
    ]);
    let bytes = std::fs::read(&out).unwrap();
    let logits: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let rows = decoder.split(',').count();
    let last = &logits[logits.len() / rows * (rows - 1)..];
    (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b]).then(b.cmp(a))).unwrap()
}

#[test]
fn the_encoder_reads_the_prompt_and_the_decoder_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    let path = path.to_str().unwrap();
    // What the decoder says, by single steps; the prompt's tokens are those of its words, and the end.
    let mut decoder = "0".to_owned();
    let mut words = String::new();
    for _ in 0..4 {
        let token = best(path, "5,9,12,1", &decoder, folder.path());
        if token == 1 {
            break;
        }
        decoder.push_str(&format!(",{token}"));
        if token > 2 {
            words.push_str(&format!(" a{}", token - 3));
        }
    }
    let ask = |tool: &str, more: &[&str]| {
        let plain = [tool, "-m", path, "-p", "a2 a6 a9", "-n", "4", "--temp", "0", "-t", "2"];
        let found = run(&mut llama(&[&plain, more].concat()));
        assert_eq!(found.code, 0, "{tool} {more:?}: {}", found.err);
        found.out
    };
    for more in
        [&["-no-cnv"][..], &["-no-cnv", "--no-display-prompt"], &["-no-cnv", "--context-shift", "-c", "16"]]
    {
        let found = ask("completion", more);
        assert!(found.trim_end().ends_with(words.trim()), "{more:?}: {found:?}, expected {words:?}");
    }
    assert!(ask("simple", &[]).contains(words.trim()));
    // A conversation, which no T5 was made for, has a template of another kind.
    let found = run(&mut llama(&["cli", "-m", path, "-p", "a2 a6 a9", "-n", "4", "--temp", "0", "-st"]));
    assert!(
        found.code == 0 && found.err.contains("no chat template") && !found.out.trim().is_empty(),
        "{}",
        found.err
    );
}

#[test]
fn what_cannot_be_is_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    let path = path.to_str().unwrap();
    let saved = folder.path().join("saved.bin");
    let saving = ["completion", "-m", path, "-p", "a1", "--prompt-cache", saved.to_str().unwrap()];
    let text = failure_after_loading(&saving);
    assert!(text.contains("--prompt-cache") && text.contains("encoder"), "{text}");
    let long = vec!["a1"; 60].join(" ");
    let text = failure_after_loading(&["completion", "-m", path, "-p", &long, "-c", "32", "-no-cnv"]);
    assert!(text.contains("61 tokens") && text.contains("-c"), "{text}");
}
