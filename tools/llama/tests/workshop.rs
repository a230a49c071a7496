//! The tools that make, check and change model files, on small ones.

mod common;

use common::{failure, llama, output, run};
use puna_conformance::normalised_squared_error;
use puna_gguf::{File, Metadata, OpenOptions, TensorSpec, Value};
use puna_quant::DType;
use std::path::{Path, PathBuf};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/convert").join(name)
}

/// Runs and expects success.
fn done(arguments: &[&str]) -> String {
    let run = run(&mut llama(arguments));
    assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
    run.out
}

fn floats(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Error of the logits of a model against those that `transformers` recorded beside `name`.
fn error_of(model: &Path, name: &str, more: &[&str]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let logits = folder.path().join("logits");
    let tokens = "5,17,3,42,8,30,21,2,11,36,9,27";
    let arguments =
        ["logits", "-m", text(model), "--tokens", tokens, "-o", text(&logits), "-ctk", "f32", "-ctv", "f32"];
    done(&[&arguments[..], more].concat());
    normalised_squared_error(&floats(&logits), &floats(&fixture(name).join("logits.f32")))
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn folders_are_converted_and_run_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for (name, kind, most) in [
        ("llama", "f32", 1e-5),
        ("qwen3", "auto", 1e-5),
        ("mistral", "bf16", 1e-4),
        ("gemma3", "q8_0", 1e-2),
        ("mamba", "f16", 1e-5),
    ] {
        let path = folder.path().join(format!("{name}.gguf"));
        done(&["convert", text(&fixture(name)), "--outtype", kind, "--outfile", text(&path)]);
        let error = error_of(&path, name, &[]);
        assert!(error <= most, "{name} {kind}: {error}");
        // Weights of 16 bits are multiplied in 16 bits where the processor can.
        let error = error_of(&fixture(name), name, &[]);
        assert!(error <= if name == "mistral" { 1e-4 } else { 1e-5 }, "{name}: {error}");
    }
    let parts = folder.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    let first = parts.join("model.gguf");
    done(&["convert", text(&fixture("llama")), "--outfile", text(&first), "--split-max-tensors", "8"]);
    assert!(files(&parts) > 1);
    let plan = done(&["convert", text(&fixture("llama")), "--dry-run", "--outfile", "nowhere/x.gguf"]);
    assert!(plan.contains("blk.1.attn_q.weight") && plan.contains("to nowhere/x.gguf"), "{plan}");
    assert!(done(&["convert", "--print-supported-models"]).contains("MambaForCausalLM"));
}

/// Encoders' embeddings and decoders' logits are those that `transformers` recorded.
#[test]
fn encoders_and_their_decoders_run_as_folders() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let tokens = "5,17,3,42,8,30,21,2,11,36,9,27";
    let mut faults = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(fixture("")).unwrap().flatten() {
        let model = entry.path();
        let kinds = [
            ("embedding.f32", &["--pooling", "mean"][..]),
            ("decoder.f32", &["--decoder-tokens", "0,7,19,4", "-ctk", "f32", "-ctv", "f32"]),
        ];
        for (recorded, flags) in kinds.into_iter().filter(|(recorded, _)| model.join(recorded).exists()) {
            let arguments = ["logits", "-m", text(&model), "--tokens", tokens, "-o", text(&out)];
            done(&[&arguments[..], flags].concat());
            let error = normalised_squared_error(&floats(&out), &floats(&model.join(recorded)));
            count += 1;
            if error.is_nan() || error > 1e-5 {
                faults.push(format!("{}: {error}", model.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count >= 5, "{count}");
}

#[test]
fn a_broken_folder_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("llama")).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let weights = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    let before = files(folder.path());
    let line = failure(1, &["convert", text(folder.path())]);
    assert!(line.contains("model.safetensors"), "{line}");
    assert!(
        failure(1, &["logits", "--tokens", "1", "-m", text(folder.path())]).contains("model.safetensors")
    );
    assert_eq!(files(folder.path()), before);
    let whole = fixture("llama");
    let target = folder.path().join("x.gguf");
    let wrong = ["convert", text(&whole), "--outfile", text(&target), "--outtype", "q99"];
    let found = run(&mut llama(&wrong));
    assert!(found.code != 0 && found.err.contains("q99"), "{}", found.err);
    assert_eq!(files(folder.path()), before);
    failure(2, &["convert"]);
    failure(2, &["convert-lora", "x"]);
}

/// The file of which llama.cpp's tool gave the hashes below.
/// Runs a tool on a model folder and expects an error; returns its line, which may follow the folder's warnings.
fn refused(arguments: &[&str]) -> String {
    let found = run(&mut llama(arguments));
    assert_eq!((found.code, found.out.as_str()), (1, ""), "{arguments:?}: {}", found.err);
    let lines: Vec<&str> = found.err.lines().filter(|line| !line.starts_with("warning: ")).collect();
    assert_eq!(lines.len(), 1, "{arguments:?}: {}", found.err);
    lines[0].to_owned()
}

fn copied(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

#[test]
fn settings_that_the_weights_contradict_are_named_and_nothing_is_written() {
    for (key, value, parts) in [
        ("num_hidden_layers", 3, ["blk.2.", "num_hidden_layers is 3, the weights have 2"]),
        ("hidden_size", 33, ["token_embd.weight", "hidden_size is 33, the weights have 32"]),
        ("num_attention_heads", 0, ["", "head"]),
        ("intermediate_size", 47, ["ffn_", "47"]),
        ("num_key_value_heads", 4, ["attn_k", "32"]),
    ] {
        for name in ["llama", "qwen2"] {
            let folder = copied(name);
            let path = folder.path().join("config.json");
            let mut config: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            config[key] = serde_json::json!(value);
            std::fs::write(&path, config.to_string()).unwrap();
            let before = files(folder.path());
            let line = refused(&["convert", text(folder.path())]);
            assert!(parts.iter().all(|part| line.contains(part)), "{name} {key}: {line}");
            assert_eq!(files(folder.path()), before, "{name} {key}");
        }
    }
}

fn hashed(folder: &Path) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("a", Value::U32(1));
    let first: Vec<u8> = (0..64).flat_map(|x| (x as f32).to_le_bytes()).collect();
    let second = [0x00, 0x3c].repeat(128);
    let spec = |name: &str, dtype, shape| TensorSpec { name: name.into(), dtype, shape };
    let tensors = [
        (spec("t0", DType::F32, vec![64]), first.as_slice()),
        (spec("t1", DType::F16, vec![4, 32]), second.as_slice()),
    ];
    let path = folder.join("h.gguf");
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

#[test]
fn hashes_are_those_of_llama_cpp_and_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    hashed(folder.path());
    let here = |arguments: &[&str]| run(llama(arguments).current_dir(folder.path()));
    let all = here(&["gguf-hash", "--all", "--uuid", "h.gguf"]);
    let expected = "\
xxh64     6b8f469ad185ba2c  h.gguf:t0
sha1      15c9efe9cf356f1e98809fc4d19a414673c8b415  h.gguf:t0
sha256    21b9ca0f94efa26b229b2d90151c5d0296c3944dc3053a8a28e871d289d50519  h.gguf:t0
xxh64     4a83fe0adf57bc03  h.gguf:t1
sha1      b27d9c549efa5e7c3be46433243e1c4ea0076c45  h.gguf:t1
sha256    94db0fae1410ff7a113dcd9c611d72ba28198e11f635941653c42ad3521be145  h.gguf:t1
xxh64     26f6f0f3ba24b8ce  h.gguf
sha1      b35d540dbba034597172690af2811dd94559343d  h.gguf
sha256    b80db2d0742fcb6184329d29e23bf174b2931d69575546742966dfcdb6933f33  h.gguf
uuid      5f45e5f3-845a-5f96-948a-7d052fc8bea7  h.gguf
";
    assert_eq!((all.code, all.out.as_str()), (0, expected));
    assert_eq!(here(&["gguf-hash", "--no-layer", "h.gguf"]).out, "xxh64     26f6f0f3ba24b8ce  h.gguf\n");
    let list = folder.path().join("list");
    std::fs::write(&list, expected).unwrap();
    let good = here(&["gguf-hash", "--check", "list", "h.gguf"]);
    assert!(
        good.code == 0 && good.out.ends_with("Verification results for list - Success\n"),
        "{}",
        good.out
    );
    assert_eq!(good.out.matches("  -  Ok").count(), 3);
    std::fs::write(&list, expected.replace("sha256    94", "sha256    95")).unwrap();
    let bad = here(&["gguf-hash", "--check", "list", "h.gguf"]);
    assert!(bad.code == 1 && bad.out.contains("h.gguf:t1  -  Mismatch"), "{}", bad.out);
    std::fs::write(&list, "nothing\n").unwrap();
    assert_eq!(here(&["gguf-hash", "--check", "list", "h.gguf"]).code, 1);
}

#[test]
fn metadata_is_changed_and_data_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = hashed(folder.path());
    let before = std::fs::read(&path).unwrap();
    assert!(output(&["gguf", text(&path)]).contains("a (u32) = 1\n"));
    let new = folder.path().join("new.gguf");
    done(&["gguf", text(&path), "--set", "a=int:7", "--set", "b=str:x y", "-o", text(&new)]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let file = File::open(&new, &OpenOptions::default()).unwrap();
    assert_eq!(file.metadata.u32("a").unwrap(), 7);
    assert_eq!(file.metadata.str("b").unwrap(), "x y");
    let hash = |path: &Path| {
        output(&["gguf-hash", "--no-layer", text(path)]).split_whitespace().nth(1).map(str::to_owned)
    };
    assert_eq!(hash(&new), hash(&path));
    done(&["gguf", text(&new), "--rename", "b=c", "--delete", "a", "--in-place"]);
    let file = File::open(&new, &OpenOptions::default()).unwrap();
    assert!(!file.metadata.contains("a") && file.metadata.contains("c"));
    assert_eq!(hash(&new), hash(&path));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
        done(&["gguf", text(&new), "--set", "d=int:1", "--in-place"]);
        assert_eq!(std::fs::metadata(&new).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    let line = failure(1, &["gguf", text(&path), "--set", "a=str:x", "--in-place"]);
    assert!(line.contains("a is u32 in the file"), "{line}");
    for wrong in
        [&["--delete", "none", "--in-place"][..], &["--set", "general.alignment=int:64", "--in-place"]]
    {
        failure(1, &[&["gguf", text(&path)][..], wrong].concat());
    }
    failure(2, &["gguf", text(&path), "--delete", "a"]);
    failure(1, &["gguf", text(&path), "--delete", "a", "-o", text(&path)]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(files(folder.path()), 2);
}

/// An adapter of rank 1 for one matrix of the small llama, and the model with that change in its weights.
fn adapter(folder: &Path) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.type", "adapter");
    metadata.set("general.architecture", "llama");
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", Value::F32(2.0));
    let numbers = |count: usize, step: f32| -> Vec<u8> {
        (0..count).flat_map(|x| ((x as f32 * step).sin() * 0.3).to_le_bytes()).collect()
    };
    let (down, up) = (numbers(32, 0.7), numbers(48, 0.9));
    let spec = |ending: &str, shape| TensorSpec {
        name: format!("blk.1.ffn_up.weight.{ending}"),
        dtype: DType::F32,
        shape,
    };
    let tensors =
        [(spec("lora_a", vec![1, 32]), down.as_slice()), (spec("lora_b", vec![48, 1]), up.as_slice())];
    let path = folder.join("adapter.gguf");
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

#[test]
fn adapters_change_a_model_as_their_merged_weights_do() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = adapter(folder.path());
    let (base, merged) = (folder.path().join("base.gguf"), folder.path().join("merged.gguf"));
    done(&["convert", text(&fixture("llama")), "--outtype", "f32", "--outfile", text(&base)]);
    let scaled = format!("{}:0.5", text(&adapter));
    done(&["export-lora", "-m", text(&base), "--lora-scaled", &scaled, "-o", text(&merged)]);
    let logits = |model: &Path, more: &[&str]| {
        let path = folder.path().join("logits");
        let arguments = ["logits", "-m", text(model), "--tokens", "5,17,3", "-o", text(&path)];
        done(&[&arguments[..], more].concat());
        floats(&path)
    };
    let plain = logits(&base, &[]);
    let changed = logits(&base, &["--lora-scaled", &scaled]);
    let error = normalised_squared_error(&changed, &logits(&merged, &[]));
    assert!(error < 1e-8, "{error}");
    assert!(normalised_squared_error(&changed, &plain) > 1e-4);
    assert_eq!(logits(&base, &["--lora-scaled", &format!("{}:0", text(&adapter))]), plain);
    let of_folder = folder.path().join("of_folder.gguf");
    let model = fixture("llama");
    done(&["export-lora", "-m", text(&model), "--lora-scaled", &scaled, "-o", text(&of_folder)]);
    assert_eq!(logits(&of_folder, &[]), logits(&merged, &[]));
    let line = refused(&[
        "export-lora",
        "-m",
        text(&model),
        "--lora",
        text(&adapter),
        "-o",
        text(&model.join("config.json")),
    ]);
    assert!(line.contains("is the input itself"), "{line}");
    let other = folder.path().join("other.gguf");
    done(&["convert", text(&fixture("gemma")), "--outtype", "f32", "--outfile", text(&other)]);
    for arguments in [
        &["logits", "--tokens", "1", "-m", text(&other), "--lora", text(&adapter)][..],
        &["export-lora", "-m", text(&other), "--lora", text(&adapter), "-o", "none.gguf"],
        &["logits", "--tokens", "1", "-m", text(&base), "--lora", text(&base)],
    ] {
        let run = run(&mut llama(arguments));
        assert!(
            run.code == 1 && run.err.contains("adapter") && run.out.is_empty(),
            "{arguments:?} {}",
            run.err
        );
    }
}

#[test]
fn control_vectors_are_added_to_layers() {
    let folder = tempfile::tempdir().unwrap();
    let vector = folder.path().join("vector.gguf");
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "controlvector");
    let numbers: Vec<u8> = (0..32).flat_map(|x| (x as f32 * 0.01).to_le_bytes()).collect();
    let spec = TensorSpec { name: "direction.1".into(), dtype: DType::F32, shape: vec![32] };
    puna_gguf::write(&vector, &metadata, &[(spec, &numbers)]).unwrap();
    let model = fixture("llama");
    let error = |more: &[&str]| error_of(&model, "llama", more);
    assert!(error(&["--control-vector", text(&vector)]) > 1e-4);
    assert!(error(&["--control-vector-scaled", &format!("{}:0", text(&vector))]) < 1e-5);
    let out_of_range = ["--control-vector", text(&vector), "--control-vector-layer-range", "2,9"];
    assert!(error(&out_of_range) < 1e-5);
    let config = model.join("config.json");
    let wrong = ["logits", "--tokens", "1", "-m", text(&model), "--control-vector", text(&config)];
    let found = run(&mut llama(&wrong));
    assert!(found.code == 1 && found.err.contains("config.json"), "{}", found.err);
}

#[test]
fn adapters_and_vectors_of_another_width_are_named_with_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, metadata: &[(&str, &str)], tensors: &[(&str, Vec<u64>)]| {
        let metadata: Metadata = metadata.iter().map(|(key, value)| (*key, Value::from(*value))).collect();
        let zeros = vec![0; 4 * 4096];
        let tensors: Vec<(TensorSpec, &[u8])> = tensors
            .iter()
            .map(|(name, shape)| {
                let spec = TensorSpec { name: (*name).into(), dtype: DType::F32, shape: shape.clone() };
                let length = spec.byte_len().unwrap() as usize;
                (spec, &zeros[..length])
            })
            .collect();
        let path = folder.path().join(name);
        puna_gguf::write(&path, &metadata, &tensors).unwrap();
        path
    };
    let vector =
        write("vector.gguf", &[("general.architecture", "controlvector")], &[("direction.1", vec![64])]);
    let keys = [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")];
    let (down, up) = ("blk.1.attn_q.weight.lora_a", "blk.1.attn_q.weight.lora_b");
    let adapter = write("adapter.gguf", &keys, &[(down, vec![4, 64]), (up, vec![64, 4])]);
    for (flag, path, part) in [
        (
            "--control-vector",
            &vector,
            "vector.gguf: tensor direction.1 has 64 numbers, the model's layers hand on 32",
        ),
        ("--lora", &adapter, "adapter.gguf: tensors blk.1.attn_q.weight.lora_a of shape [4, 64]"),
    ] {
        let model = fixture("llama");
        let line = refused(&["logits", "--tokens", "1", "-m", text(&model), flag, text(path)]);
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn tools_that_read_a_model_take_its_folder() {
    let model = fixture("llama");
    let told = done(&["info", text(&model)]);
    assert!(told.contains("convert/llama") && told.contains("memory with"), "{told}");
    let measured = done(&["bench", "-m", text(&model), "-p", "4", "-n", "1", "-r", "1", "-o", "jsonl"]);
    assert_eq!(measured.lines().count(), 2, "{measured}");
    // Without weights, of which splitting texts needs none.
    let words = model.join("../../convert-tokenizer/gpt-2");
    let ids = output(&["tokenize", "--ids", "-m", text(&words), "-p", "Hello world, this is a test."]);
    assert_eq!(ids, "[397, 292, 13, 378, 305, 259, 270, 15]\n");
}
