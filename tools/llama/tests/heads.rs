//! Draft heads in the tools: a small model and heads by chance.

mod common;

use std::path::{Path, PathBuf};

use common::{failure, failure_after_loading, llama, random_model, run};
use puna_gguf::{Array, File, Metadata, OpenOptions, TensorSpec, Value};
use puna_quant::DType;

/// Width of [`random_model`].
const WIDTH: u64 = 64;

/// A head for [`random_model`], whose embeddings it shares.
fn head(folder: &Path, architecture: &str, layers: &[u32]) -> PathBuf {
    let wide = if architecture == "eagle3" { 2 * WIDTH } else { WIDTH };
    let fused = layers.len() as u64 * WIDTH;
    let mut shapes = vec![
        ("fc.weight", vec![WIDTH, fused]),
        ("output_norm.weight", vec![WIDTH]),
        ("blk.0.attn_norm.weight", vec![WIDTH]),
        ("blk.0.attn_q.weight", vec![WIDTH, wide]),
        ("blk.0.attn_k.weight", vec![WIDTH, wide]),
        ("blk.0.attn_v.weight", vec![WIDTH, wide]),
        ("blk.0.attn_output.weight", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_norm.weight", vec![WIDTH]),
        ("blk.0.ffn_gate.weight", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_up.weight", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_down.weight", vec![WIDTH, WIDTH]),
    ];
    match architecture {
        // A head with tokens of its own.
        "eagle3" => {
            shapes.extend([("blk.0.attn_norm_2.weight", vec![WIDTH]), ("output.weight", vec![100, WIDTH])])
        }
        _ => shapes.extend([
            ("enc.output_norm.weight", vec![WIDTH]),
            ("blk.0.attn_q_norm.weight", vec![16]),
            ("blk.0.attn_k_norm.weight", vec![16]),
        ]),
    }
    let mut state = 5_u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.5
    };
    let mut tensors: Vec<(TensorSpec, Vec<u8>)> = Vec::new();
    for (name, shape) in shapes {
        let norm = shape.len() == 1;
        let count: u64 = shape.iter().product();
        let bytes = (0..count).flat_map(|_| if norm { 1.0 } else { number() }.to_le_bytes()).collect();
        tensors.push((TensorSpec { name: name.into(), dtype: DType::F32, shape }, bytes));
    }
    if architecture == "eagle3" {
        let tokens = (0..100_i64).flat_map(|token| (263 - 2 * token).to_le_bytes()).collect();
        tensors.push((TensorSpec { name: "d2t".into(), dtype: DType::I64, shape: vec![100] }, tokens));
    }
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", architecture);
    metadata.set("tokenizer.ggml.mask_token_id", 0_u32);
    for (key, value) in [
        ("block_count", Value::U32(1)),
        ("embedding_length", Value::U32(WIDTH as u32)),
        ("feed_forward_length", Value::U32(WIDTH as u32)),
        ("context_length", Value::U32(1000)),
        ("attention.head_count", Value::U32(4)),
        ("attention.head_count_kv", Value::U32(4)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("target_layers", Value::Array(Array::U32(layers.to_vec()))),
        ("target_hidden_size", Value::U32(WIDTH as u32)),
        ("block_size", Value::U32(6)),
    ] {
        metadata.set(format!("{architecture}.{key}"), value);
    }
    let path = folder.join(format!("{architecture}-{}.gguf", layers.len()));
    let tensors: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

#[test]
fn heads_guess_and_change_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(folder.path());
    let model = model.to_str().unwrap();
    let ask = |tool: &str, more: &[&str]| {
        let plain = [
            tool,
            "-m",
            model,
            "-p",
            "hi hi",
            "-n",
            "48",
            "--temp",
            "0",
            "-no-cnv",
            "--deterministic",
            "-t",
            "2",
        ];
        let found = run(&mut llama(&[&plain, more].concat()));
        assert_eq!(found.code, 0, "{more:?}: {}", found.err);
        found
    };
    let plain = ask("completion", &[]);
    for (architecture, layers) in [("eagle3", &[0, 1, 1][..]), ("dflash", &[0, 1])] {
        let head = head(folder.path(), architecture, layers);
        let head = head.to_str().unwrap();
        let kind = format!("draft-{architecture}");
        for more in [&["-md", head][..], &["-md", head, "--spec-type", &kind, "--spec-draft-n-max", "5"]] {
            let found = ask("completion", more);
            assert_eq!(found.out, plain.out, "{more:?}");
            assert!(found.err.contains(" guessed ones right)"), "{more:?}: {}", found.err);
        }
        let wrong =
            failure(1, &["completion", "-m", model, "-p", "hi", "-md", head, "--spec-type", "draft-simple"]);
        assert!(wrong.contains(&format!("is for --spec-type {kind}, not draft-simple")), "{wrong}");
    }
}

#[test]
fn heads_that_do_not_fit_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(folder.path());
    let model = model.to_str().unwrap();
    let arguments = |head: &Path| {
        ["completion", "-m", model, "-p", "hi", "-md", head.to_str().unwrap()].map(str::to_owned)
    };
    let refused = |head: &Path| failure(1, &arguments(head).each_ref().map(String::as_str));
    let refused_late = |head: &Path| failure_after_loading(&arguments(head).each_ref().map(String::as_str));
    // The model has two layers; of the last, what leaves it is there for output rows only.
    for layer in [2, 9] {
        let text = refused(&head(folder.path(), "eagle3", &[0, 1, layer]));
        assert!(text.contains(&format!("what layer {layer} reads")), "{text}");
    }
    let text = refused_late(&head(folder.path(), "eagle3", &[0, 1]));
    assert!(text.contains("eagle3.target_layers"), "{text}");
    // Told before the model is loaded, which would fail, too.
    let text = failure(1, &["completion", "-m", "/no/model", "-p", "hi", "-md", "/no/draft"]);
    assert!(text.contains("/no/draft"), "{text}");
    // A model is no head.
    let text =
        failure(1, &["completion", "-m", model, "-p", "hi", "-md", model, "--spec-type", "draft-eagle3"]);
    assert!(text.contains("is for --spec-type draft-simple, not draft-eagle3"), "{text}");
    // Another number of tokens than the table says.
    let path = head(folder.path(), "eagle3", &[0, 1, 1]);
    let file = File::open(&path, &OpenOptions::default()).unwrap();
    let rest: Vec<(TensorSpec, &[u8])> = file
        .tensors
        .iter()
        .map(|info| match info.name.as_str() {
            "d2t" => (TensorSpec { shape: vec![99], ..info.into() }, &file.bytes(info)[..99 * 8]),
            _ => (info.into(), file.bytes(info)),
        })
        .collect();
    let short = folder.path().join("short.gguf");
    puna_gguf::write(&short, &file.metadata, &rest).unwrap();
    let text = refused_late(&short);
    let both = "tensor output.weight of shape [100, 64] and tensor d2t of shape [99] do not fit together";
    assert!(text.contains(both), "{text}");
}
