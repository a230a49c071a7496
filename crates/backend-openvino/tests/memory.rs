//! The most memory that loading a model takes when memory is saved. Each measurement is a process of its own, which this
//! program starts again.
#![cfg(target_os = "linux")] // where a process can read its peak
#![allow(clippy::print_stdout)] // a process says what it found

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use puna_gguf::{File, Metadata, OpenOptions, TensorSpec, Value};
use puna_quant::DType;

mod common;
mod sequences;

use sequences::Sequences;

/// Set in the processes that measure: the model's file.
const MODEL: &str = "PUNA_MEMORY_MODEL";
/// Set there, too: where keys and values are.
const FORM: &str = "PUNA_MEMORY_FORM";
/// And a folder of compiled models, if there is one.
const FOLDER: &str = "PUNA_MEMORY_FOLDER";
/// The tokens of the prompt; then one more follows.
const PROMPT: u32 = 24;

/// What kernels and buffers take whatever the model's size, about 90 MB, with room to spare. Of a file of 1 GB the limit is 1.4
/// times the file.
const ALLOWANCE: u64 = 150 << 20;

const WIDTH: u64 = 2048;
const HIDDEN: u64 = 8192;
const VOCABULARY: u64 = 2048;

/// Formats of a model's matrices, and layers, such that files are about as long.
struct Mix {
    name: &'static str,
    layers: u32,
    /// The format of a tensor of this name.
    format: fn(&str) -> DType,
}

const MIXES: [Mix; 4] = [
    Mix { name: "F16", layers: 2, format: |_| DType::F16 },
    Mix { name: "BF16", layers: 2, format: |_| DType::BF16 },
    Mix { name: "Q8_0", layers: 2, format: |_| DType::Q8_0 },
    Mix {
        name: "Q4_K_M",
        layers: 6,
        // The output, and in some layers what sums up most.
        format: |name| {
            let is_summing = name.ends_with("attn_v.weight") || name.ends_with("ffn_down.weight");
            let is_finer = name.split('.').nth(1).and_then(|layer| layer.parse::<u32>().ok());
            match name == "output.weight" || is_summing && is_finer.is_some_and(|layer| layer % 2 == 0) {
                true => DType::Q6_K,
                false => DType::Q4_K,
            }
        },
    },
];

/// Writes a model with matrices of these formats, made of numbers by chance; returns the length of its file.
fn write(path: &Path, mix: &Mix) -> u64 {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", Value::String("llama".into()));
    for (key, value) in [
        ("block_count", mix.layers),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", HIDDEN as u32),
        ("context_length", 512),
        ("attention.head_count", 16),
        ("attention.head_count_kv", 16),
    ] {
        metadata.set(format!("llama.{key}"), Value::U32(value));
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    let mut shapes = vec![
        ("token_embd.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("output_norm.weight".to_owned(), vec![WIDTH]),
        ("output.weight".to_owned(), vec![VOCABULARY, WIDTH]),
    ];
    for layer in 0..mix.layers {
        for (name, shape) in [
            ("attn_norm", vec![WIDTH]),
            ("attn_q", vec![WIDTH, WIDTH]),
            ("attn_k", vec![WIDTH, WIDTH]),
            ("attn_v", vec![WIDTH, WIDTH]),
            ("attn_output", vec![WIDTH, WIDTH]),
            ("ffn_norm", vec![WIDTH]),
            ("ffn_gate", vec![HIDDEN, WIDTH]),
            ("ffn_up", vec![HIDDEN, WIDTH]),
            ("ffn_down", vec![WIDTH, HIDDEN]),
        ] {
            shapes.push((format!("blk.{layer}.{name}.weight"), shape));
        }
    }
    let tensors: Vec<(TensorSpec, Vec<u8>)> = shapes
        .into_iter()
        .enumerate()
        .map(|(seed, (name, shape))| {
            let dtype = if shape.len() == 1 { DType::F32 } else { (mix.format)(&name) };
            let bytes = encoded(dtype, shape.iter().product::<u64>() as usize, seed as u64);
            (TensorSpec { name, dtype, shape }, bytes)
        })
        .collect();
    let tensors: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
    puna_gguf::write(path, &metadata, &tensors).expect("the model is written");
    std::fs::metadata(path).expect("it is there").len()
}

/// Numbers by chance, the same few thousand again and again.
fn encoded(dtype: DType, elements: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let numbers: Vec<f32> = (0..4096)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.1
        })
        .collect();
    let format = dtype.format();
    let part: Vec<u8> = match (dtype, format.quantize) {
        (DType::F32, _) => vec![1.0_f32; 4096].into_iter().flat_map(f32::to_le_bytes).collect(),
        (DType::F16, _) => numbers.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        (DType::BF16, _) => numbers.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        (_, Some(quantize)) => {
            let mut bytes = vec![0; 4096 / format.block * format.bytes];
            quantize(&numbers, None, &mut bytes);
            bytes
        }
        (other, None) => panic!("{other} cannot be written"),
    };
    let length = elements / format.block * format.bytes;
    part.into_iter().cycle().take(length).collect()
}

/// A line of the process's status, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    let kilobytes = line.trim_matches([':', ' ', '\t', 'k', 'B']);
    1024 * kilobytes.parse::<u64>().expect("a number")
}

/// Loads and runs a model, and says how much more memory that took than the library alone.
fn measure(path: &str) {
    let form = std::env::var(FORM).unwrap_or_default();
    let stateful = ("GGML_OPENVINO_STATEFUL_EXECUTION", if form == "model" { "1" } else { "0" });
    let folder = std::env::var(FOLDER).unwrap_or_default();
    let kept = ("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", &folder[..]);
    let variables = [("GGML_OPENVINO_MEMORY_OPTIMIZE", "1"), stateful, kept];
    let Some((backend, _)) = common::start(&variables) else { return };
    let before = status("VmRSS");
    let file = Arc::new(File::open(Path::new(path), &OpenOptions::default()).expect("the model opens"));
    let mut sequences = Sequences::load_with(&backend, &file, 1, DType::F16, 256);
    let prompt: Vec<u32> = (0..PROMPT).collect();
    sequences.push(&[(0, &prompt)]);
    sequences.push(&[(0, &[1])]);
    println!("\npeak {}", status("VmHWM") - before);
}

#[test]
fn saving_memory_keeps_the_peak_near_the_size_of_the_file() {
    if let Ok(path) = std::env::var(MODEL) {
        return measure(&path);
    }
    if common::start(&[common::NO_SHIM]).is_none() {
        return;
    }
    let shim = common::shim();
    if let Err(reason) = &shim {
        println!("skipped for pages: the shim is not built: {reason}");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("model.gguf");
    for mix in &MIXES {
        let (length, name) = (write(&path, mix), mix.name);
        let mut forms = vec![("model", "0"), ("host", "0")];
        forms.extend(shim.iter().map(|path| ("pages", *path)));
        // Compiled, and in one case also written and read back. (F16 takes more when it is read back.)
        let kept = folder.path().join("kept");
        let alone = [("", None)];
        let and_back = [("", None), (" written", Some(&kept)), (" read back", Some(&kept))];
        let runs = |form| if (name, form) == ("Q8_0", "host") { &and_back[..] } else { &alone };
        let all = forms.iter().flat_map(|(form, shim)| runs(*form).iter().map(move |run| (form, shim, run)));
        for (form, shim, (run, kept)) in all {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "--nocapture"]);
            command.arg("saving_memory_keeps_the_peak_near_the_size_of_the_file");
            command.env(MODEL, &path).env(FORM, form).env("PUNA_OPENVINO_SHIM", shim);
            kept.iter().for_each(|folder| {
                command.env(FOLDER, folder);
            });
            let output = command.output().expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout);
            let peak = text.lines().find_map(|line| line.strip_prefix("peak ")).and_then(|n| n.parse().ok());
            let peak: u64 =
                peak.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
            println!("{name} {form}{run}: file of {length} bytes, peak {peak}");
            assert!(
                peak < length / 4 * 5 + ALLOWANCE,
                "{name} {form}{run}: {peak} bytes for a file of {length}"
            );
        }
    }
}
