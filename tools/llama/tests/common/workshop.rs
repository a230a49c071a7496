//! Folders with good files for the tools that make, check and change them.

use super::{finish, limited, random_model};
use puna_gguf::{Metadata, TensorSpec, Value};
use puna_quant::DType;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What was done to a file, and its bytes then.
pub type Case = (String, Vec<u8>);

/// Address space of a run, in MB.
const MEMORY: u64 = 1536;

/// A folder of files, in which commands are run.
pub struct Workshop {
    pub folder: tempfile::TempDir,
}

impl Workshop {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    /// The path of a file or folder in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The bytes of a file.
    pub fn good(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Writes a file.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("it has a folder")).expect("the folder is made");
        std::fs::write(path, bytes).expect("the file is written");
    }

    /// All files with their bytes; large ones with their length.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.folder.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(folder).expect("the folder can be read").flatten() {
                let (path, kind) = (entry.path(), entry.metadata().expect("its metadata"));
                if kind.is_dir() {
                    open.push(path);
                } else {
                    let large = kind.len() > 4 << 20;
                    let bytes = if large {
                        kind.len().to_le_bytes().to_vec()
                    } else {
                        std::fs::read(&path).expect("it")
                    };
                    found.insert(path, bytes);
                }
            }
        }
        found
    }

    /// Runs a command: it ends soon, with success or one line of complaint; what was there stays as it was, and after
    /// a complaint nothing else is there. What a success made is taken away. Returns the exit code.
    pub fn attempt(&self, arguments: &[&str], case: &str) -> i32 {
        let before = self.files();
        let mut command = limited(&[arguments, &["--log-disable"]].concat(), MEMORY);
        let child = command.current_dir(self.folder.path()).spawn().expect("the program starts");
        let (code, errors) = finish(child, case);
        assert!(code == 0 || code == 1, "{case}: exit code {code}: {errors}");
        let mut after = self.files();
        if code == 1 {
            assert_eq!(errors.lines().count(), 1, "{case}: {errors}");
            assert!(errors.starts_with("error: ") && errors.len() < 2500, "{case}: {errors}");
            assert!(!errors.contains("panicked") && !errors.contains("internal"), "{case}: {errors}");
        } else {
            let made: Vec<PathBuf> =
                after.keys().filter(|path| !before.contains_key(*path)).cloned().collect();
            for path in made {
                assert!(!path.to_string_lossy().ends_with(".part"), "{case}: {} is left", path.display());
                std::fs::remove_file(&path).expect("what was made can be removed");
                after.remove(&path);
            }
        }
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{case}: {errors}");
        for (path, bytes) in &before {
            assert!(after.get(path) == Some(bytes), "{case}: {} is changed", path.display());
        }
        code
    }

    /// Runs a command that has to succeed and keeps what it makes.
    pub fn make(&self, arguments: &[&str]) {
        let found = super::run(super::llama(arguments).current_dir(self.folder.path()));
        assert_eq!(found.code, 0, "{arguments:?}: {}", found.err);
    }
}

fn fixtures(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(kind).join(name)
}

/// A model folder from a fixture, as `model`.
fn copied(kind: &str, name: &str) -> Workshop {
    let shop = Workshop::new();
    let source = fixtures(kind, name);
    for entry in std::fs::read_dir(&source).expect("the fixture is there").flatten() {
        let file = entry.file_name().into_string().expect("a plain name");
        if !["logits.f32", "ids.json"].contains(&file.as_str()) {
            shop.put(&format!("model/{file}"), &std::fs::read(entry.path()).expect("it can be read"));
        }
    }
    shop
}

/// A model folder with weights.
pub fn folder(name: &str) -> Workshop {
    copied("convert", name)
}

/// A model folder with a tokenizer alone.
pub fn tokenizer(name: &str) -> Workshop {
    copied("convert-tokenizer", name)
}

/// A model folder and the folder of an adapter for it.
pub fn adapter() -> Workshop {
    let shop = folder("llama");
    let settings =
        serde_json::json!({"peft_type": "LORA", "r": 2, "lora_alpha": 16, "target_modules": ["q_proj"]});
    shop.put("adapter/adapter_config.json", settings.to_string().as_bytes());
    let stem = "base_model.model.model.layers.1.self_attn.q_proj";
    let header = serde_json::json!({
        format!("{stem}.lora_A.weight"): {"dtype": "F32", "shape": [2, 32], "data_offsets": [0, 256]},
        format!("{stem}.lora_B.weight"): {"dtype": "F32", "shape": [32, 2], "data_offsets": [256, 512]},
    });
    let header = header.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0x3c; 512]].concat();
    shop.put("adapter/adapter_model.safetensors", &bytes);
    shop
}

fn write_gguf(path: &Path, metadata: &[(&str, Value)], tensors: &[(&str, Vec<u64>)]) {
    let metadata: Metadata = metadata.iter().cloned().collect();
    let tensors: Vec<(TensorSpec, Vec<u8>)> = tensors
        .iter()
        .map(|(name, shape)| {
            let count = shape.iter().product::<u64>();
            let bytes = (0..count).flat_map(|x| (((x * 7) % 13) as f32 * 0.01).to_le_bytes()).collect();
            (TensorSpec { name: (*name).to_owned(), dtype: DType::F32, shape: shape.clone() }, bytes)
        })
        .collect();
    let views: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
    puna_gguf::write(path, &metadata, &views).expect("the file is written");
}

/// An adapter of rank 2 for one matrix.
pub fn write_adapter(path: &Path, name: &str, rows: u64, columns: u64) {
    let (first, second) = (format!("{name}.lora_a"), format!("{name}.lora_b"));
    write_gguf(
        path,
        &[
            ("general.type", "adapter".into()),
            ("general.architecture", "llama".into()),
            ("adapter.type", "lora".into()),
            ("adapter.lora.alpha", Value::F32(2.0)),
        ],
        &[(first.as_str(), vec![2, columns]), (second.as_str(), vec![rows, 2])],
    );
}

/// A llama file from before GGUF.
fn legacy() -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_le_bytes());
    for word in [0x6767_6a74, 3, 2, 4, 256, 2, 1, 2, 0] {
        number(&mut bytes, word);
    }
    for text in ["a", "b"] {
        number(&mut bytes, text.len() as u32);
        bytes.extend(text.as_bytes());
        bytes.extend(0.5f32.to_le_bytes());
    }
    let names = ["layers.0.attention.wk.weight", "layers.0.feed_forward.w3.weight", "tok_embeddings.weight"];
    for (name, rows) in names.into_iter().zip([2, 6, 2]) {
        for word in [2, name.len() as u32, 0, 4, rows] {
            number(&mut bytes, word);
        }
        bytes.extend(name.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.resize(bytes.len() + 16 * rows as usize, 1);
    }
    bytes
}

/// Tasks with several answers, as a binary file.
fn choices() -> Vec<u8> {
    let mut bytes = Vec::new();
    let word = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    word(&mut bytes, "hi hi");
    bytes.extend(2u32.to_le_bytes());
    word(&mut bytes, "so it is");
    word(&mut bytes, "not at all");
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    // Answers of a second kind, of which nothing is used.
    bytes.extend(0u32.to_le_bytes());
    bytes
}

/// A model, and a file of each kind that tools read beside one.
pub fn models() -> Workshop {
    let shop = Workshop::new();
    std::fs::rename(random_model(shop.folder.path()), shop.path("model.gguf")).expect("it can be renamed");
    write_adapter(&shop.path("adapter.gguf"), "blk.1.ffn_up.weight", 128, 64);
    write_gguf(
        &shop.path("vector.gguf"),
        &[("general.architecture", "controlvector".into()), ("controlvector.layer_count", Value::I32(1))],
        &[("direction.1", vec![64])],
    );
    shop.put("text", "abcdefghijklmnopqrstuvwxyz".repeat(4).as_bytes());
    shop.put("one", b"yes\nmore\n");
    shop.put("other", b"no\nless\n");
    shop.put("hellaswag", b"a man\n1\nsits here\nruns there\nswims now\nflies up\n");
    shop.put("winogrande", b"1,the cup that _ broke was red,Ann,Bob,2\n");
    shop.put("choices", &choices());
    shop.put("old.bin", &legacy());
    let measure = ["imatrix", "-m", "model.gguf", "-f", "text", "-c", "8", "--chunks", "2", "-o"];
    shop.make(&[&measure[..], &["sums.gguf"]].concat());
    shop.make(&[&measure[..], &["sums.dat", "--output-format", "dat"]].concat());
    let record = ["perplexity", "-m", "model.gguf", "-f", "text", "-c", "8", "--chunks", "3"];
    shop.make(&[&record[..], &["--save-all-logits", "base"]].concat());
    shop.make(&["gguf-split", "--split-max-tensors", "10", "model.gguf", "part"]);
    let hashes =
        super::run(super::llama(&["gguf-hash", "--all", "model.gguf"]).current_dir(shop.folder.path()));
    shop.put("hashes", hashes.out.as_bytes());
    shop
}
