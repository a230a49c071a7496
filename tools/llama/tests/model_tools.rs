//! `tokenize` and `info` on a small model and on bad files.
#![allow(clippy::print_stdout)] // tests say what they skip

mod common;

use common::{Run, failure, llama, output, run, tiny_model};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

struct Model {
    folder: tempfile::TempDir,
    path: String,
}

fn model() -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_model(folder.path()).to_str().unwrap().to_owned();
    Model { folder, path }
}

fn tokens(model: &Model, arguments: &[&str]) -> String {
    output(&[&["tokenize", "-m", &model.path, "--ids"], arguments].concat())
}

#[test]
fn ids_and_pieces() {
    let model = model();
    assert_eq!(tokens(&model, &["-p", "hi"]), "[1, 263]\n");
    assert_eq!(tokens(&model, &["-p", "hi", "--no-bos"]), "[263]\n");
    assert_eq!(tokens(&model, &["-p", "hi", "--show-count"]), "[1, 263]\nTotal number of tokens: 2\n");
    assert_eq!(tokens(&model, &["-p", "</s>", "--no-bos"]), "[2]\n");
    assert!(tokens(&model, &["-p", "</s>", "--no-bos", "--no-parse-special"]).matches(',').count() > 2);
    assert_eq!(tokens(&model, &["-p", "", "--no-bos"]), "[]\n");
    let lines = output(&["tokenize", "-m", &model.path, "-p", "hi\\x0A"]);
    assert_eq!(lines, "     1 -> '<s>'\n   263 -> ' hi'\n    13 -> '\n'\n");
}

#[test]
fn escapes_files_and_the_standard_input() {
    let model = model();
    let escaped = tokens(&model, &["-p", "hi\\n"]);
    assert_eq!(escaped, "[1, 263, 13]\n");
    assert_ne!(tokens(&model, &["-p", "hi\\n", "--no-escape"]), escaped);
    let file = model.folder.path().join("text");
    std::fs::write(&file, "hi\n").unwrap();
    assert_eq!(tokens(&model, &["-f", file.to_str().unwrap()]), escaped);
    let mut command = llama(&["tokenize", "-m", &model.path, "--ids", "--stdin", "--log-disable"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hi\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, escaped.as_bytes());
    let environment = run(llama(&["tokenize", "--ids", "-p", "hi"]).env("LLAMA_ARG_MODEL", &model.path));
    assert_eq!(environment.out, "[1, 263]\n");
    let overridden =
        tokens(&model, &["-p", "hi", "--override-kv", "tokenizer.ggml.add_bos_token=bool:false"]);
    assert_eq!(overridden, "[263]\n");
}

/// The same as the reference program on a real vocabulary, if it lies beside the project.
#[test]
fn vocabularies_give_the_expected_ids() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/vocab");
    for name in ["llama-spm", "gpt-2", "qwen2"] {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let path = path.to_str().unwrap();
        let (Ok(inputs), Ok(expected)) =
            (std::fs::read_to_string(format!("{path}.inp")), std::fs::read_to_string(format!("{path}.out")))
        else {
            println!("skipped: no {path}");
            continue;
        };
        for (input, expected) in inputs.split("\n__ggml_vocab_test__\n").zip(expected.lines()).take(12) {
            let text = format!("--prompt={input}");
            let ids = output(&[
                "tokenize",
                "-m",
                path,
                "--ids",
                "--no-bos",
                "--no-escape",
                "--no-parse-special",
                "--log-disable",
                &text,
            ]);
            let expected: Vec<&str> = expected.split_whitespace().collect();
            assert_eq!(ids, format!("[{}]\n", expected.join(", ")), "{name}: {input:?}");
        }
    }
}

#[test]
fn bad_files_give_one_line() {
    let model = model();
    let bytes = std::fs::read(&model.path).unwrap();
    let file = model.folder.path().join("bad.gguf");
    let path = file.to_str().unwrap().to_owned();
    for (content, expected) in [
        (&b""[..], "error: "),
        (b"not a model", "error: "),
        (&bytes[..20], "error: "),
        (&bytes[..bytes.len() / 20], "error: "),
    ] {
        std::fs::write(&file, content).unwrap();
        for tool in [&["tokenize", "-p", "x", "-m", &path][..], &["info", &path]] {
            let line = failure(1, tool);
            assert!(line.starts_with(expected) && line.contains("bad.gguf"), "{line}");
        }
    }
    std::fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
    assert!(failure(1, &["info", &path]).contains("token_embd.weight"));
    assert!(failure(1, &["info", "no-such-file.gguf"]).contains("no-such-file.gguf"));
    assert!(
        failure(1, &["tokenize", "-m", &model.path, "-f", "no-such-text"])
            .starts_with("error: no-such-text: ")
    );
    assert!(
        failure(
            1,
            &["tokenize", "-m", &model.path, "-p", "x", "--override-kv", "tokenizer.ggml.model=str:none"]
        )
        .ends_with("has no tokenizer")
    );
}

#[test]
fn info_describes_the_file() {
    let model = model();
    let text = output(&["info", &model.path, "-c", "100"]);
    for line in [
        "architecture  llama",
        "parameters    16896, 32.00 bits per weight",
        "  llama.block_count = 2",
        "  tokenizer.ggml.tokens = str [\"<unk>\", \"<s>\", \"</s>\", ... 261 more]",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line}\n---\n{text}");
    }
    assert!(text.contains("token_embd.weight") && text.contains("264 x 64"));
    assert!(text.contains("\nmemory: no estimate, because "), "most of its tensors are missing: {text}");
    assert!(!text.contains('\u{1b}'), "escape sequences of a file never reach the terminal");
    let json: serde_json::Value =
        serde_json::from_str(&output(&["info", "--json", "-m", &model.path, "-ctk", "q8_0"])).unwrap();
    assert_eq!(json["parameters"], 16896);
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["length"], 264);
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([264, 64]));
}

#[test]
fn info_estimates_what_the_runtime_estimates() {
    let zoo = puna_conformance::zoo::models().into_iter().find(|model| model.name == "llama-gqa4-tied");
    let zoo = zoo.expect("a zoo model");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zoo.gguf");
    std::fs::write(&path, zoo.bytes()).unwrap();
    let path = path.to_str().unwrap();
    let options = puna_runtime::ModelOptions { context: 100, micro_batch: 32, ..Default::default() };
    let file = zoo.open();
    let expected = puna_runtime::estimate(&file.metadata, &file.tensors, &options).unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&output(&["info", "--json", "-m", path, "-c", "100", "-ub", "32"])).unwrap();
    let memory = &json["memory"];
    assert_eq!((&memory["context"], &memory["weights"]), (&100.into(), &expected.weights.into()));
    assert_eq!((&memory["cache"], &memory["compute"]), (&expected.caches.into(), &expected.work.into()));
    let text = output(&["info", "-m", path, "-c", "100"]);
    assert!(text.contains("\nmemory with 100 tokens of context (estimate)\n"), "{text}");
    let placed = output(&["info", "-m", path, "-c", "100", "-dev", "reference", "-ngl", "2"]);
    for line in ["\nplacement (estimate)\n  CPU: embeddings, layer", "\n  reference: layer", ", output, "] {
        assert!(placed.contains(line), "{line}\n---\n{placed}");
    }
    let json = output(&["info", "--json", "-m", path, "-c", "100", "-dev", "reference", "-fit", "off"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let devices = &json["placement"]["devices"];
    assert_eq!((&devices[0]["device"], &devices[0]["output"]), (&"reference".into(), &true.into()), "{json}");
    assert_eq!((devices[1].is_null(), &json["placement"]["context"]), (true, &100.into()), "{json}");
}

#[test]
fn names_in_files_cannot_steer_the_terminal() {
    let model = model();
    let architecture = "general.architecture=str:\u{1b}[2Jx";
    let line = failure(1, &["logits", "--tokens", "1", "-m", &model.path, "--override-kv", architecture]);
    assert!(line.contains("[2Jx") && !line.contains('\u{1b}'), "{line:?}");
}

#[test]
fn without_network_and_cache_the_message_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let offline = |arguments: &[&str]| -> Run { run(llama(arguments).env("LLAMA_CACHE", folder.path())) };
    let pull = offline(&["pull", "--offline", "-hf", "user/model:Q8_0"]);
    assert_eq!(pull.code, 1);
    assert_eq!(
        pull.err,
        "error: user/model:Q8_0 is not in the cache folder and the network may not be used (--offline)\n"
    );
    let starter = offline(&["bench", "--offline"]);
    assert_eq!(starter.code, 1);
    assert!(starter.err.contains("using SmolLM2-135M-Instruct (93.8 MiB)"), "{}", starter.err);
    assert_eq!(offline(&["pull", "--offline", "../../x"]).code, 2);
    assert_eq!(offline(&["list"]).out, "number of models in cache: 0\n");
    assert_eq!(offline(&["list", "--json"]).out, "[]\n");
    let refused = run(llama(&["pull", "a/b"])
        .env("LLAMA_CACHE", folder.path())
        .env("HF_ENDPOINT", "http://127.0.0.1:1"));
    assert_eq!(refused.code, 1);
    assert!(refused.err.starts_with("error: cannot reach 127.0.0.1: "), "{}", refused.err);
}
