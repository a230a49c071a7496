//! What the tests of the program share.
#![allow(dead_code)] // each test file uses a part

pub mod damage;
pub mod workshop;

use puna_gguf::{Array, File, Metadata, TensorSpec, Value};
use puna_quant::DType;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program with these arguments, without the caller's environment.
pub fn llama(arguments: &[&str]) -> Command {
    program(Path::new(env!("CARGO_BIN_EXE_llama")), arguments)
}

pub fn program(path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("LLAMA_CACHE", "no-such-cache").stdin(Stdio::null());
    command
}

pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn run(command: &mut Command) -> Run {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Run { code: status.code().unwrap_or(-1), out: text(&stdout), err: text(&stderr) }
}

/// Runs and expects success and silence on the standard error; returns the output.
pub fn output(arguments: &[&str]) -> String {
    let run = run(&mut llama(arguments));
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{arguments:?}: {}", run.out);
    run.out
}

/// Runs and expects this exit code and nothing on the standard output; returns the first line of the error.
pub fn failure(code: i32, arguments: &[&str]) -> String {
    let run = run(&mut llama(arguments));
    assert_eq!((run.code, run.out.as_str()), (code, ""), "{arguments:?}: {}", run.err);
    assert_eq!(run.err.lines().count(), if code == 2 { 2 } else { 1 }, "{arguments:?}: {}", run.err);
    run.err.lines().next().unwrap_or("").to_owned()
}

/// Runs and expects exit code 1, nothing on the standard output, and one line after that about the loaded model; returns it.
pub fn failure_after_loading(arguments: &[&str]) -> String {
    let run = run(&mut llama(arguments));
    assert_eq!((run.code, run.out.as_str()), (1, ""), "{arguments:?}: {}", run.err);
    let lines: Vec<&str> = run.err.lines().collect();
    match lines[..] {
        [loaded, error] if loaded.contains("model (") => error.to_owned(),
        _ => panic!("{arguments:?}: {}", run.err),
    }
}

/// The program with its address space limited to `megabytes`.
pub fn limited(arguments: &[&str], megabytes: u64) -> Command {
    let program = llama(arguments);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {}; exec \"$0\" \"$@\"", megabytes * 1024)]);
    command.arg(program.get_program()).args(program.get_args());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    command.env("LLAMA_CACHE", "no-such-cache").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Waits for the end, at most ten seconds; returns the exit code (-1 for a signal) and the messages.
pub fn finish(mut child: Child, case: &str) -> (i32, String) {
    let start = Instant::now();
    let mut pipe = child.stderr.take().expect("the error output is a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(10) {
            let _ = child.kill();
            panic!("{case}: still running after ten seconds");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    (status.code().unwrap_or(-1), reader.join().expect("the reader ends"))
}

/// A model file with a sentencepiece vocabulary that knows "hi", and one matrix.
pub fn tiny_model(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    let spec = TensorSpec { name: "token_embd.weight".into(), dtype: DType::F32, shape: vec![264, 64] };
    puna_gguf::write(&path, &tiny_metadata(), &[(spec, &[0; 264 * 64 * 4])]).unwrap();
    path
}

/// The same model with all its matrices, of numbers by chance.
pub fn random_model(folder: &Path) -> PathBuf {
    let mut shapes =
        vec![("token_embd.weight".to_owned(), vec![264, 64]), ("output_norm.weight".into(), vec![64])];
    for layer in 0..2 {
        for (name, shape) in [
            ("attn_norm", vec![64]),
            ("attn_q", vec![64, 64]),
            ("attn_k", vec![32, 64]),
            ("attn_v", vec![32, 64]),
            ("attn_output", vec![64, 64]),
            ("ffn_norm", vec![64]),
            ("ffn_gate", vec![128, 64]),
            ("ffn_up", vec![128, 64]),
            ("ffn_down", vec![64, 128]),
        ] {
            shapes.push((format!("blk.{layer}.{name}.weight"), shape));
        }
    }
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.5
    };
    let tensors: Vec<(TensorSpec, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let is_norm = shape.len() == 1;
            let elements: u64 = shape.iter().product();
            let bytes =
                (0..elements).flat_map(|_| if is_norm { 1.0 } else { number() }.to_le_bytes()).collect();
            (TensorSpec { name, dtype: DType::F32, shape }, bytes)
        })
        .collect();
    let tensors: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
    let mut metadata = tiny_metadata();
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let path = folder.join("random.gguf");
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

/// What such a model says of itself.
pub fn tiny_metadata() -> Metadata {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["\u{2581}", "h", "i", "hi", "\u{2581}hi"].map(str::to_owned));
    let mut kinds = vec![6; tokens.len()];
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    kinds[259..].fill(1);
    let mut scores = vec![0.0; tokens.len()];
    scores[259..].copy_from_slice(&[-3.0, -4.0, -5.0, -1.0, -2.0]);
    let mut metadata = Metadata::new();
    for (key, value) in [
        ("general.architecture", Value::String("llama".into())),
        ("general.name", Value::String("tiny \u{1b}[31m model".into())),
        ("llama.block_count", Value::U32(2)),
        ("llama.embedding_length", Value::U32(64)),
        ("llama.feed_forward_length", Value::U32(128)),
        ("llama.context_length", Value::U32(1000)),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
    ] {
        metadata.set(key, value);
    }
    metadata
}

/// Writes a model with these changes to its metadata.
pub fn rewritten(file: &File, changes: &[(&str, Value)], path: &Path) {
    let mut metadata = file.metadata.clone();
    for (key, value) in changes {
        metadata.set(*key, value.clone());
    }
    let tensors: Vec<(TensorSpec, &[u8])> = file
        .tensors
        .iter()
        .map(|tensor| {
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            (TensorSpec { name, dtype: tensor.dtype, shape }, file.bytes(tensor))
        })
        .collect();
    puna_gguf::write(path, &metadata, &tensors).unwrap();
}

/// Writes a model with a vocabulary of single letters, from U+4E00 on.
pub fn with_letters(file: &File, path: &Path) {
    let count = file.tensors.get("token_embd.weight").unwrap().shape[0] as u32;
    let text = |token: u32| char::from_u32(0x4e00 + token).unwrap().to_string();
    let changes = [
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String((0..count).map(text).collect()))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; count as usize]))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1; count as usize]))),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
    ];
    rewritten(file, &changes, path);
}

/// Something in the material that may lie beside the project.
pub fn shared(path: &str) -> Option<PathBuf> {
    beside(&format!("shared/{path}"))
}

/// A real model: beside the project or in the caller's cache folder.
pub fn real_model(file: &str) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("LLAMA_CACHE").or_else(|| {
        let folder = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        folder.map(|folder| folder.join("puna"))
    });
    let cached = cache.map(|folder| folder.join("starter").join(file)).filter(|path| path.exists());
    beside(&format!("models/{file}")).or(cached)
}

/// The path in the project's folder or in one of those around it.
fn beside(path: &str) -> Option<PathBuf> {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.map(|folder| folder.join(path)).find(|path| path.exists())
}
