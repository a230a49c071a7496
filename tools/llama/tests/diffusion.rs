//! `diffusion` on a zoo model that has got a vocabulary.

mod common;

use common::{failure, llama, run};
use puna_conformance::zoo;
use puna_gguf::{Array, TensorSpec, Value};
use std::path::{Path, PathBuf};

/// The model of this name with a vocabulary of bytes, as far as its 128 tokens go, and a mask token.
fn written(name: &str, folder: &Path) -> PathBuf {
    let zoo = zoo::models().into_iter().find(|model| model.name == name).unwrap();
    let file = zoo.open();
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<mask>", "\u{2581}"].map(str::to_owned).to_vec();
    tokens.extend((32..=126_u8).map(|byte| format!("{}", byte as char)));
    let missing = 128 - tokens.len();
    tokens.extend((0..missing).map(|number| format!("[{number}]")));
    let mut kinds = vec![1; tokens.len()];
    kinds[..4].copy_from_slice(&[2, 3, 3, 3]);
    let scores = vec![-1.0; tokens.len()];
    let mut metadata = file.metadata.clone();
    for (key, value) in [
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.mask_token_id", Value::U32(3)),
    ] {
        metadata.set(key, value);
    }
    let tensors: Vec<(TensorSpec, &[u8])> = file
        .tensors
        .iter()
        .map(|tensor| {
            let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
            (TensorSpec { name, dtype, shape }, file.bytes(tensor))
        })
        .collect();
    let path = folder.join(format!("{name}.gguf"));
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

#[test]
fn a_seed_gives_one_text() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["llada-dense", "dream-dense"] {
        let model = written(name, folder.path());
        let start = |more: &[&str]| {
            let first =
                ["diffusion", "-m", model.to_str().unwrap(), "-p", "hello", "-n", "16", "--log-disable"];
            run(&mut llama(&[&first, more].concat()))
        };
        for more in [
            &["--diffusion-steps", "6", "--temp", "0"][..],
            &["--diffusion-steps", "8", "--diffusion-block-length", "4", "--seed", "5"],
            &[
                "--diffusion-steps",
                "5",
                "--diffusion-eps",
                "0.01",
                "--seed",
                "5",
                "--diffusion-algorithm",
                "0",
            ],
            &["--diffusion-steps", "4", "--seed", "5", "--diffusion-cfg-scale", "0.5", "-t", "1"],
        ] {
            let (first, again) = (start(more), start(more));
            assert_eq!((first.code, first.err.as_str()), (0, ""), "{name} {more:?}");
            assert_eq!(first.out, again.out, "{name} {more:?}");
        }
    }
}

#[test]
fn wrong_uses_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = written("llada-dense", folder.path());
    let model = model.to_str().unwrap();
    let schedules =
        ["diffusion", "-m", model, "-p", "a", "--diffusion-eps", "0.1", "--diffusion-block-length", "4"];
    assert!(failure(2, &schedules).contains("two schedules"));
    assert!(failure(2, &["diffusion", "-m", model]).contains("no prompt"));
    let quiet = |more: &[&str]| {
        let first = ["diffusion", "-m", model, "-p", "a", "--log-disable"];
        failure(1, &[&first, more].concat())
    };
    assert!(quiet(&["--diffusion-block-length", "1", "--diffusion-steps", "2"]).contains("number of steps"));
    let causal = written("llama-dense", folder.path());
    let text = failure(1, &["diffusion", "-m", causal.to_str().unwrap(), "-p", "a", "--log-disable"]);
    assert!(text.contains("no diffusion model"), "{text}");
}
