//! Files with a missing or wrong key or tensor: an error that names something of the file, never a panic.

use puna_conformance::zoo;
use puna_gguf::{Array, Header, Metadata, Tensors, Value};
use puna_models::{ARCHITECTURES, BuildOptions, ModelError, build};

fn headers() -> impl Iterator<Item = (String, Vec<u8>)> {
    let known = |model: &zoo::ZooModel| ARCHITECTURES.iter().any(|row| row.name == model.architecture());
    zoo::models().into_iter().filter(known).map(|model| {
        let header = std::fs::read(model.header()).expect("a model has a header");
        (model.name, header)
    })
}

fn built(metadata: &Metadata, tensors: &Tensors) -> Result<(), ModelError> {
    build(metadata, tensors, &BuildOptions { context: 256, ..BuildOptions::default() }).map(|_| ())
}

/// Values that some key may not have.
fn wrong_values(value: &Value) -> Vec<Value> {
    let mut wrong = vec![Value::String("no number".into()), Value::Array(Array::U32(vec![1; 77]))];
    if value.integer().is_some() {
        wrong.extend([0, 1, 7, u32::MAX].map(Value::U32));
        wrong.push(Value::I32(-1));
    }
    if value.float().is_some() {
        wrong.extend([0.0, -1.0, 1e30, f32::NAN, f32::INFINITY].map(Value::F32));
    }
    wrong
}

#[test]
fn a_wrong_key_is_refused_by_name_or_harmless() {
    let mut refused = 0;
    for (name, bytes) in headers() {
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        let architecture = header.metadata.str("general.architecture").expect("it has one").to_string();
        let keys: Vec<String> = header.metadata.iter().map(|(key, _)| key.to_string()).collect();
        for key in keys.iter().filter(|key| key.starts_with(&format!("{architecture}."))) {
            let mut metadata = header.metadata.clone();
            let value = metadata.remove(key).expect("the key was listed");
            let mut check = |metadata: &Metadata| {
                if let Err(error) = built(metadata, &header.tensors) {
                    refused += 1;
                    let text = error.to_string();
                    let names = ["tensor ", "key "].iter().any(|kind| text.contains(kind));
                    assert!(names || matches!(error, ModelError::Graph { .. }), "{name}, {key}: {text}");
                }
            };
            check(&metadata);
            for wrong in wrong_values(&value) {
                metadata.set(key.clone(), wrong);
                check(&metadata);
            }
        }
    }
    assert!(refused > 1000, "only {refused} wrong keys were refused");
}

#[test]
fn a_missing_tensor_is_named_or_optional() {
    for (name, bytes) in headers() {
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        for tensor in header.tensors.iter() {
            // A name follows its length, so that it is not found within a longer one.
            let entry = [&(tensor.name.len() as u64).to_le_bytes()[..], tensor.name.as_bytes()].concat();
            let at = bytes.windows(entry.len()).position(|part| part == entry);
            let mut without = bytes.clone();
            without[at.expect("the name stands in the header") + 8] = b'~';
            let Ok(without) = Header::parse(&without) else { continue };
            let result = built(&without.metadata, &without.tensors);
            let needed = ["token_embd.weight", "blk.0.attn_output.weight"].contains(&tensor.name.as_str());
            match result {
                Ok(()) => assert!(!needed, "{name} builds without {}", tensor.name),
                Err(error) => {
                    let text = error.to_string();
                    let exact = text.contains(&tensor.name);
                    assert!(exact || !needed && text.contains('.'), "{name} without {}: {text}", tensor.name);
                }
            }
        }
    }
}

/// Models of ten families whose keys and tensors are dropped one by one, with what may be absent and why.
const MUTATED: &[&str] = &[
    "llama-dense",
    "qwen3moe-moe",
    "gemma3-window8",
    "phi3-longrope-long",
    "deepseek2-groups",
    "mamba2-heads",
    "qwen35-heads",
    "rwkv6-dense",
    "openelm-arrays",
    "gpt-oss-window8",
    "qwen4exp-moe",
    "deepseek4-moe",
];

/// Keys with a default; `docs/architectures.md` has them all.
fn documented_defaults() -> Vec<String> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/architectures.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let part = page.split("## Keys that may be absent").nth(1).expect("the page has the part");
    let rows = part.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`: "));
    rows.flat_map(|(keys, _)| keys.split("`, `").map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn a_dropped_key_is_named_or_has_a_documented_default() {
    let defaults = documented_defaults();
    let mut faults = Vec::new();
    assert_eq!(headers().filter(|(name, _)| MUTATED.contains(&name.as_str())).count(), MUTATED.len());
    for (name, bytes) in headers().filter(|(name, _)| MUTATED.contains(&name.as_str())) {
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        let prefix = format!("{}.", header.metadata.str("general.architecture").expect("it has one"));
        let keys: Vec<String> = header.metadata.iter().map(|(key, _)| key.to_string()).collect();
        for key in keys.iter().filter_map(|key| key.strip_prefix(&prefix)) {
            let mut metadata = header.metadata.clone();
            let value = metadata.remove(&format!("{prefix}{key}")).expect("the key was listed");
            let has_default = defaults.iter().any(|other| other == key);
            match built(&metadata, &header.tensors) {
                Ok(()) if has_default => {}
                Ok(()) => faults.push(format!("{name}: {key} has an undocumented default")),
                // Another size follows from the default, which the file's tensors do not have.
                Err(error)
                    if has_default
                        && ["tensor ", "key "].iter().any(|kind| error.to_string().contains(kind)) => {}
                Err(error) if error.to_string().contains(key) => {}
                Err(error) => faults.push(format!("{name} without {key}: {error}")),
            }
            if let Value::Array(_) = value {
                metadata.set(format!("{prefix}{key}"), Value::Array(Array::U32(vec![1; 77])));
                match built(&metadata, &header.tensors) {
                    Err(error) if error.to_string().contains(key) => {}
                    Err(error) => faults.push(format!("{name}, {key} of wrong length: {error}")),
                    Ok(()) if UNREAD_ARRAYS.contains(&key) => {}
                    Ok(()) => faults.push(format!("{name}: {key} may have any length")),
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Arrays that say nothing that the tensors do not say: which layers have n-grams, and positions of parts of images.
const UNREAD_ARRAYS: &[&str] = &["ple.layers", "rope.dimension_sections"];

#[test]
fn an_unknown_architecture_is_told_its_nearest_names() {
    let (_, bytes) = headers().next().expect("there are models");
    let header = Header::parse(&bytes).expect("the zoo's headers are good");
    for (wrong, near) in
        [("lama", "llama"), ("qwen-3", "qwen3"), ("deepseek3", "deepseek"), ("Gemma_3", "gemma3")]
    {
        let mut metadata = header.metadata.clone();
        metadata.set("general.architecture", Value::String(wrong.into()));
        let error = built(&metadata, &header.tensors).expect_err("is refused").to_string();
        assert!(error.contains(&format!("'{wrong}'")) && error.contains(near), "{error}");
    }
    let mut metadata = header.metadata.clone();
    metadata.remove("general.architecture");
    let error = built(&metadata, &header.tensors).expect_err("is refused").to_string();
    assert!(error.contains("general.architecture"), "{error}");
}
