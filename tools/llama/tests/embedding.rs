//! `logits --pooling`, `embedding` and `rerank` on zoo models.

mod common;

use common::{failure, llama, output, rewritten, run};
use puna_conformance::normalised_squared_error;
use puna_conformance::zoo::{self, EmbeddingModel};
use puna_gguf::{Array, Value};
use std::path::{Path, PathBuf};

fn list(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn named(name: &str) -> EmbeddingModel {
    zoo::embedding_models().into_iter().find(|model| model.name == name).unwrap()
}

/// Every recorded value through the program, on the CPU.
#[test]
fn all_models_give_the_recorded_values() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("model.gguf"), folder.path().join("out.f32"));
    let (path, file) = (path.to_str().unwrap(), out.to_str().unwrap());
    let mut faults = Vec::new();
    for model in zoo::embedding_models() {
        std::fs::write(path, model.bytes()).unwrap();
        for (kind, right) in &model.recorded {
            let batch = model.batch.iter().map(|text| list(text)).collect::<Vec<_>>().join(";");
            let mut found = Vec::new();
            for tokens in [list(&model.tokens), batch] {
                if found.len() >= right.len() {
                    break;
                }
                let base =
                    ["logits", "-m", path, "--tokens", &tokens, "-o", file, "-t", "2", "--log-disable"];
                let f32_cache = ["-ctk", "f32", "-ctv", "f32"];
                let decoder = list(&model.decoder_tokens);
                let more: &[&str] = match kind.as_str() {
                    "logits" if model.name.starts_with("t5") => &["--decoder-tokens", &decoder],
                    "logits" => &[],
                    pooling => &["--pooling", pooling],
                };
                output(&[&base[..], &f32_cache, more].concat());
                found.extend(floats(&out));
            }
            if kind == "logits" {
                let rows = if model.name.starts_with("t5") { 6 } else { model.tokens.len() };
                found = model.select(&found, found.len() / rows);
            }
            let error = normalised_squared_error(&found, right);
            if error.is_nan() || error > model.tolerance() {
                faults.push(format!("{} {kind} {error:.2e}", model.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn greedy_answers_of_a_decoder_with_an_encoder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let model = named("t5-gated");
    std::fs::write(&path, model.bytes()).unwrap();
    let (path, tokens, decoder) = (path.to_str().unwrap(), list(&model.tokens), list(&model.decoder_tokens));
    let base = ["logits", "-m", path, "--tokens", &tokens, "--log-disable"];
    let printed = output(&[&base[..], &["--decoder-tokens", &decoder, "--greedy", "12"]].concat());
    assert_eq!(serde_json::from_str::<Vec<u32>>(&printed).unwrap(), model.greedy);
    assert!(failure(1, &base).contains("--decoder-tokens"));
}

#[test]
fn sequences_in_turn_equal_runs_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("model.gguf"), folder.path().join("out.f32"));
    let (path, file) = (path.to_str().unwrap(), out.to_str().unwrap());
    for name in ["llama-dense", "gemma3-window8", "mamba", "qwen35"] {
        let Some(model) = zoo::models().into_iter().find(|model| model.name.starts_with(name)) else {
            panic!("no zoo model {name}")
        };
        std::fs::write(path, model.bytes()).unwrap();
        let base =
            ["logits", "-m", path, "-o", file, "-t", "2", "--log-disable", "-ctk", "f32", "-ctv", "f32"];
        let (a, b) = (list(&model.tokens), list(&model.tokens[5..14]));
        let run = |tokens: &str, more: &[&str]| {
            let printed = output(&[&base[..], &["--tokens", tokens, "--greedy", "3"], more].concat());
            (floats(&out), printed.trim().to_owned())
        };
        let (mut alone, first) = run(&a, &[]);
        let (second_rows, second) = run(&b, &[]);
        alone.extend(second_rows);
        for more in [&[][..], &["--step", "5"]] {
            let (together, printed) = run(&format!("{a};{b}"), more);
            let error = normalised_squared_error(&together, &alone);
            assert!(error < 1e-9, "{} {more:?}: {error:e}", model.name);
            assert_eq!(printed, format!("[{first}, {second}]"), "{}", model.name);
        }
    }
}

/// A zoo model with a WordPiece vocabulary of single letters.
fn with_words(model: &EmbeddingModel, path: &Path) {
    let file = model.open();
    let mut tokens: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned).to_vec();
    tokens.extend(('a'..='z').map(|letter| format!("\u{2581}{letter}")));
    tokens.extend(('a'..='z').map(String::from));
    tokens.extend((tokens.len()..128).map(|index| format!("[unused{index}]")));
    let mut kinds = vec![1; 128];
    kinds[..5].fill(3);
    let changes = [
        ("tokenizer.ggml.model", Value::String("bert".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.unknown_token_id", Value::U32(1)),
        ("tokenizer.ggml.bos_token_id", Value::U32(2)),
        ("tokenizer.ggml.cls_token_id", Value::U32(2)),
        ("tokenizer.ggml.seperator_token_id", Value::U32(3)),
        ("tokenizer.ggml.padding_token_id", Value::U32(0)),
        ("tokenizer.ggml.mask_token_id", Value::U32(4)),
    ];
    rewritten(&file, &changes, path);
}

fn words(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.gguf");
    with_words(&named(name), &path);
    (folder, path)
}

#[test]
fn embeddings_in_every_format() {
    let (_folder, path) = words("bert");
    let path = path.to_str().unwrap();
    let embed = |text: &str, more: &[&str]| {
        output(&[&["embedding", "-m", path, "-p", text, "-t", "2", "--log-disable"][..], more].concat())
    };
    let array: Vec<Vec<f32>> =
        serde_json::from_str(&embed("abc de\\nfg", &["--embd-output-format", "array"])).unwrap();
    assert_eq!((array.len(), array[0].len()), (2, 128));
    for row in &array {
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&embed("abc de\\nfg", &["--embd-output-format", "json+"])).unwrap();
    assert_eq!(json["data"][1]["index"], 1);
    assert_eq!(json["data"][1]["embedding"].as_array().unwrap().len(), 128);
    assert_eq!(json["cosineSimilarity"][0][0], 1.0);
    let product: f32 = array[0].iter().zip(&array[1]).map(|(a, b)| a * b).sum();
    assert!((json["cosineSimilarity"][0][1].as_f64().unwrap() as f32 - product).abs() < 0.006);

    // The same text alone and with others, and with another separator.
    let raw = embed("fg", &["--embd-output-format", "raw"]);
    let alone: Vec<f32> = raw.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let distance = alone.iter().zip(&array[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(distance < 2e-6, "{distance}");
    let separated = embed("abc de<>fg", &["--embd-output-format", "array", "--embd-separator", "<>"]);
    assert_eq!(serde_json::from_str::<Vec<Vec<f32>>>(&separated).unwrap(), array);

    let listed = embed("abc de\\nfg", &[]);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[1].starts_with("embedding 0: ") && lines[2].starts_with("embedding 1: "), "{listed}");
    assert_eq!(lines[4], "cosine similarity matrix:");
    assert_eq!(lines[7].len(), 14 + "abc de".len(), "{listed}");
    let tokens = embed("abc", &["--pooling", "none"]);
    assert_eq!(tokens.lines().filter(|line| line.starts_with("embedding")).count(), 5, "{tokens}");
    let integers = embed("abc", &["--embd-normalize", "0", "--embd-output-format", "raw"]);
    let largest = integers.split_whitespace().map(|n| n.parse::<f32>().unwrap().abs()).fold(0.0, f32::max);
    assert_eq!(largest, 32760.0);
    assert!(failure(2, &["embedding", "-m", path]).contains("-p TEXT"));
}

#[test]
fn documents_come_in_the_order_of_their_scores() {
    let (folder, path) = words("bert-rerank");
    let path = path.to_str().unwrap();
    let base = ["rerank", "-m", path, "-p", "abc", "-t", "2", "--log-disable"];
    let printed = output(&[&base[..], &["x y", "abc", "q"]].concat());
    let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 3);
    let scores: Vec<f32> = rows.iter().map(|row| row[0].trim().parse().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{printed}");
    let documents = folder.path().join("documents.txt");
    std::fs::write(&documents, "x y\nabc\n\nq\n").unwrap();
    let documents = documents.to_str().unwrap();
    assert_eq!(output(&[&base[..], &["-f", documents]].concat()), printed);
    let json: serde_json::Value =
        serde_json::from_str(&output(&[&base[..], &["--json", "--top", "1", "x y", "abc", "q"]].concat()))
            .unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(json[0]["document"], rows[0][2]);

    // The same pair as a line of `embedding`.
    let pair = ["embedding", "-m", path, "-p", "abc\\tq", "-t", "2", "--log-disable"];
    let listed = output(&pair);
    let index = rows.iter().position(|row| row[2] == "q").unwrap();
    let expected = format!("rerank score 0: {} [a]", rows[index][0]);
    assert!(listed.contains(&expected), "{listed} {expected}");
    assert!(failure(2, &base).contains("documents"));
    assert!(failure(2, &["rerank", "-m", path, "x"]).contains("-p TEXT"));
    let (_bert, bert) = words("bert");
    assert!(failure(1, &["rerank", "-m", bert.to_str().unwrap(), "-p", "a", "b"]).contains("no classifier"));
}

#[test]
fn models_that_only_embed_say_so() {
    let (_folder, path) = words("bert");
    let path = path.to_str().unwrap();
    let text = failure(1, &["completion", "-m", path, "-p", "abc", "-n", "1", "--log-disable"]);
    assert!(text.contains("makes embeddings"), "{text}");
    let found = run(&mut llama(&["info", "-m", path]));
    assert!(found.code == 0 && found.out.contains("memory with"), "{}{}", found.out, found.err);
}
