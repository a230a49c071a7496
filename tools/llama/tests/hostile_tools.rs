//! Tools that make, check and change model files, given damaged input: each file of each command is cut, tampered with
//! and given absurd sizes. Whatever happens, it takes at most ten seconds and 1.5 GB, a refusal is one clear line, the
//! input stays as it was, and nothing half-made is left.

#![allow(clippy::print_stdout)] // says how many cases there were

mod common;

use common::workshop::{Case, Workshop};
use common::{damage, workshop};

/// Runs a command with each of these versions of one of its files in turn.
fn every(shop: &Workshop, name: &str, cases: impl Iterator<Item = Case>, arguments: &[&str]) -> (u32, u32) {
    let good = shop.good(name);
    let (mut accepted, mut refused) = (0, 0);
    for (case, bytes) in cases {
        let case = format!("{} with {name} {case}", arguments.join(" "));
        shop.put(name, &bytes);
        match shop.attempt(arguments, &case) {
            0 => accepted += 1,
            _ => refused += 1,
        }
    }
    shop.put(name, &good);
    assert_eq!(shop.attempt(arguments, "good files"), 0, "{arguments:?}");
    println!("{name} of {}: {accepted} accepted, {refused} refused", arguments[0]);
    (accepted, refused)
}

/// Every `step`th hostile version of a GGUF file.
fn gguf_cases(shop: &Workshop, name: &str, step: usize) -> std::vec::IntoIter<Case> {
    let good = shop.good(name);
    let cases = puna_gguf::hostile::cases(&good).expect("the good file is good");
    cases.step_by(step).collect::<Vec<Case>>().into_iter()
}

#[test]
fn damaged_model_files() {
    let shop = workshop::models();
    let mut refused = 0;
    for (step, name, arguments) in [
        (1, "model.gguf", &["quantize", "model.gguf", "out.gguf", "Q4_K_M", "1"][..]),
        (4, "model.gguf", &["quantize", "--prune-layers", "0", "model.gguf", "out.gguf", "IQ4_NL", "1"]),
        (3, "model.gguf", &["gguf", "model.gguf", "--set", "a=int:1", "-o", "out.gguf"]),
        (5, "model.gguf", &["gguf", "model.gguf", "--full"]),
        (3, "model.gguf", &["gguf-split", "--split-max-tensors", "9", "model.gguf", "parts"]),
        (3, "model.gguf", &["gguf-hash", "--all", "--uuid", "model.gguf"]),
        (3, "model.gguf", &["export-lora", "-m", "model.gguf", "--lora", "adapter.gguf", "-o", "out.gguf"]),
        (
            5,
            "model.gguf",
            &["imatrix", "-m", "model.gguf", "-f", "text", "-c", "8", "--chunks", "1", "-o", "out"],
        ),
    ] {
        refused += every(&shop, name, gguf_cases(&shop, name, step), arguments).1;
    }
    assert!(refused >= 500, "{refused}");
}

#[test]
fn damaged_files_beside_a_model() {
    let shop = workshop::models();
    let mut refused = 0;
    for (step, name, arguments) in [
        (
            1,
            "adapter.gguf",
            &["export-lora", "-m", "model.gguf", "--lora", "adapter.gguf", "-o", "out.gguf"][..],
        ),
        (3, "adapter.gguf", &["logits", "-m", "model.gguf", "--tokens", "5", "--lora", "adapter.gguf"]),
        (
            3,
            "vector.gguf",
            &["logits", "-m", "model.gguf", "--tokens", "5", "--control-vector", "vector.gguf"],
        ),
        (1, "sums.gguf", &["quantize", "--imatrix", "sums.gguf", "model.gguf", "out.gguf", "Q4_K", "1"]),
        (3, "sums.gguf", &["imatrix", "--in-file", "sums.gguf,sums.gguf", "-o", "out.gguf"]),
        (5, "sums.gguf", &["imatrix", "--in-file", "sums.gguf", "--show-statistics"]),
    ] {
        refused += every(&shop, name, gguf_cases(&shop, name, step), arguments).1;
    }
    let merge = ["gguf-split", "--merge", "part-00001-of-00002.gguf", "out.gguf"];
    let keep = ["quantize", "--keep-split", "part-00001-of-00002.gguf", "q.gguf", "Q8_0"];
    for (name, arguments) in [
        ("part-00001-of-00002.gguf", &merge[..]),
        ("part-00002-of-00002.gguf", &merge),
        ("part-00002-of-00002.gguf", &keep),
    ] {
        refused += every(&shop, name, damage::binary(&shop.good(name)), arguments).1;
    }
    assert!(refused >= 400, "{refused}");
}

#[test]
fn damaged_binary_files_that_are_not_gguf() {
    let shop = workshop::models();
    let measure = ["perplexity", "-m", "model.gguf", "-c", "64"];
    let with = |more: &[&'static str]| -> Vec<&'static str> { [&measure[..], more].concat() };
    let mut refused = 0;
    for (name, arguments) in [
        ("sums.dat", vec!["quantize", "--imatrix", "sums.dat", "model.gguf", "out.gguf", "Q4_K", "1"]),
        ("sums.dat", vec!["imatrix", "--in-file", "sums.dat", "-o", "out.gguf"]),
        ("base", with(&["--kl-divergence", "--kl-divergence-base", "base"])),
        ("choices", with(&["--multiple-choice", "-bf", "choices"])),
        ("old.bin", vec!["convert-legacy", "old.bin", "out.gguf"]),
    ] {
        refused += every(&shop, name, damage::binary(&shop.good(name)), &arguments).1;
    }
    assert!(refused >= 150, "{refused}");
}

#[test]
fn damaged_texts() {
    let shop = workshop::models();
    let vectors = [
        "cvector-generator",
        "-m",
        "model.gguf",
        "--positive-file",
        "one",
        "--negative-file",
        "other",
        "-o",
        "out",
    ];
    let measure = ["perplexity", "-m", "model.gguf", "-c", "64"];
    let with = |more: &[&'static str]| -> Vec<&'static str> { [&measure[..], more].concat() };
    let mut refused = 0;
    for (name, arguments) in [
        ("one", vectors.to_vec()),
        ("text", vec!["imatrix", "-m", "model.gguf", "-f", "text", "-c", "8", "--chunks", "1", "-o", "out"]),
        ("hellaswag", with(&["--hellaswag", "-f", "hellaswag"])),
        ("winogrande", with(&["--winogrande", "-f", "winogrande"])),
        ("hashes", vec!["gguf-hash", "--check", "hashes", "model.gguf"]),
    ] {
        refused += every(&shop, name, damage::text(&shop.good(name)), &arguments).1;
    }
    assert!(refused >= 30, "{refused}");
}

/// Commands that read a model folder.
fn folder_commands() -> [Vec<&'static str>; 2] {
    [vec!["convert", "model", "--outfile", "out.gguf"], vec!["logits", "-m", "model", "--tokens", "5,17,3"]]
}

#[test]
fn damaged_weights_of_a_folder() {
    let mut refused = 0;
    for arguments in folder_commands() {
        let shop = workshop::folder("llama");
        let name = "model/model.safetensors";
        let good = shop.good(name);
        refused += every(&shop, name, damage::safetensors(&good), &arguments).1;
        refused += every(&shop, name, damage::binary(&good), &arguments).1;
    }
    let shop = workshop::folder("qwen3");
    let [arguments, _] = folder_commands();
    let index = "model/model.safetensors.index.json";
    refused += every(&shop, index, damage::json(&shop.good(index), 40), &arguments).1;
    let shard = "model/model-00002-of-00003.safetensors";
    refused += every(&shop, shard, damage::safetensors(&shop.good(shard)).step_by(3), &arguments).1;
    assert!(refused >= 400, "{refused}");
}

#[test]
fn damaged_settings_of_a_folder() {
    let [convert, run] = folder_commands();
    let mut refused = 0;
    for name in ["llama", "gemma3", "phi3", "mamba", "qwen3next", "deepseek2"] {
        let shop = workshop::folder(name);
        let config = "model/config.json";
        refused += every(&shop, config, damage::json(&shop.good(config), 50), &convert).1;
        if name == "llama" {
            refused += every(&shop, config, damage::json(&shop.good(config), 20), &run).1;
            let file = "model/generation_config.json";
            every(&shop, file, damage::json(&shop.good(file), 20), &convert);
        }
    }
    assert!(refused >= 200, "{refused}");
}

#[test]
fn damaged_tokenizers_of_a_folder() {
    let arguments = ["convert", "model", "--vocab-only", "--outfile", "out.gguf"];
    let mut refused = 0;
    for name in ["llama3", "starcoder", "bert", "unigram"] {
        let shop = workshop::tokenizer(name);
        for (file, places) in [("model/tokenizer.json", 60), ("model/tokenizer_config.json", 10)] {
            refused += every(&shop, file, damage::json(&shop.good(file), places), &arguments).1;
        }
    }
    let shop = workshop::tokenizer("sentencepiece");
    let file = "model/tokenizer.model";
    refused += every(&shop, file, damage::binary(&shop.good(file)), &arguments).1;
    assert!(refused >= 150, "{refused}");
}

#[test]
fn damaged_adapters() {
    let shop = workshop::adapter();
    let arguments = ["convert-lora", "adapter", "--base", "model", "--outfile", "out.gguf"];
    let mut refused = 0;
    let weights = "adapter/adapter_model.safetensors";
    refused += every(&shop, weights, damage::safetensors(&shop.good(weights)), &arguments).1;
    refused += every(&shop, weights, damage::binary(&shop.good(weights)), &arguments).1;
    for settings in ["adapter/adapter_config.json", "model/config.json"] {
        refused += every(&shop, settings, damage::json(&shop.good(settings), 40), &arguments).1;
    }
    assert!(refused >= 100, "{refused}");
}
