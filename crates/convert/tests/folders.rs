//! Folders that are broken, hostile, or have weights in 8 bits.

use std::fs;
use std::path::{Path, PathBuf};

use puna_convert::{Conversion, ConvertError, LoraConversion, Options};
use puna_quant::DType;
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/convert").join(name)
}

/// A copy of a fixture that may be changed.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(fixture(name)).expect("the fixture is there").flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("it is copied");
    }
    folder
}

fn open(folder: &Path) -> Result<Conversion, ConvertError> {
    Conversion::open(folder, &Options::default())
}

fn refused(folder: &Path, words: &str) {
    let error = open(folder).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains(words), "{words}: {error:?}");
}

fn change_config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("it is there")).expect("JSON");
    change(&mut config);
    fs::write(path, config.to_string()).expect("it is written");
}

#[test]
fn missing_and_damaged_files_are_named() {
    let folder = copy("llama");
    let weights = folder.path().join("model.safetensors");
    let bytes = fs::read(&weights).expect("they are there");
    for length in [0, 7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&weights, &bytes[..length]).expect("it is written");
        refused(folder.path(), "model.safetensors");
    }
    fs::remove_file(&weights).expect("it is removed");
    refused(folder.path(), "has no weights");
    fs::write(folder.path().join("config.json"), "{").expect("it is written");
    refused(folder.path(), "config.json is not valid JSON");
    fs::remove_file(folder.path().join("config.json")).expect("it is removed");
    refused(folder.path(), "has no config.json");
    refused(&folder.path().join("nope"), "there is no folder");
}

#[test]
fn hostile_settings_are_refused() {
    for (key, value) in [
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(100_000)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(-1)),
        ("num_attention_heads", json!(7)),
        ("num_key_value_heads", json!("x")),
        ("hidden_size", json!(1e30)),
        ("vocab_size", json!([1])),
        ("architectures", json!(["NoSuchModel"])),
        ("architectures", json!(null)),
        ("quantization_config", json!({"quant_method": "gptq"})),
    ] {
        let folder = copy("llama");
        change_config(folder.path(), |config| config[key] = value.clone());
        assert!(open(folder.path()).is_err(), "{key} {value}");
    }
}

#[test]
fn an_index_cannot_lead_elsewhere() {
    let folder = copy("qwen3");
    let index = folder.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).expect("it is there");
    let name = "model-00001-of-00003.safetensors";
    fs::write(&index, text.replace(name, "../model-00001-of-00003.safetensors")).expect("it is written");
    refused(folder.path(), "no plain file name");
    fs::write(&index, text.replace("model.norm.weight", "model.norm.other")).expect("it is written");
    refused(folder.path(), "not in its file");
    fs::write(&index, &text).expect("it is written");
    fs::remove_file(folder.path().join(name)).expect("it is removed");
    refused(folder.path(), name);
}

/// A safetensors file of these tensors: name, format, shape, bytes.
fn write_tensors(path: &Path, tensors: &[(&str, &str, Vec<u64>, Vec<u8>)]) {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, format, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({"dtype": format, "shape": shape, "data_offsets": offsets}));
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    fs::write(path, file).expect("it is written");
}

#[test]
fn eight_bit_weights_are_scaled_by_their_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(fixture("llama").join("config.json"), folder.path().join("config.json")).expect("it is copied");
    let path = folder.path().join("model.safetensors");
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    // 130 rows and 4 columns: blocks of 128 rows, and of all columns.
    let weight = vec![0x38u8; 130 * 4];
    let entry = |shape| ("model.layers.0.mlp.down_proj.weight", "F8_E4M3", shape, weight.clone());
    let scale = |shape, values: &[f32]| {
        ("model.layers.0.mlp.down_proj.weight_scale_inv", "F32", shape, floats(values))
    };
    write_tensors(&path, &[entry(vec![130, 4]), scale(vec![2, 1], &[2.0, 3.0])]);
    let conversion = open(folder.path()).expect("it is sound");
    let (name, recipe) = &conversion.tensors()[0];
    assert_eq!((name.as_str(), recipe.dtype), ("blk.0.ffn_down.weight", DType::F32));
    let data = conversion.data(recipe).expect("it evaluates");
    let values: Vec<f32> = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!((values.len(), values[0], values[127 * 4], values[128 * 4]), (520, 2.0, 2.0, 3.0));
    write_tensors(&path, &[entry(vec![130, 4]), scale(vec![4, 1], &[1.0; 4])]);
    refused(folder.path(), "scaled by a grid");
    write_tensors(&path, &[entry(vec![130, 4])]);
    refused(folder.path(), "has no scale");
}

#[test]
fn unknown_tensors_and_missing_experts_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(fixture("mixtral").join("config.json"), folder.path().join("config.json"))
        .expect("it is copied");
    let path = folder.path().join("model.safetensors");
    let tensor = |name| (name, "F32", vec![1], vec![0; 4]);
    write_tensors(&path, &[tensor("model.layers.0.mlp.what.weight")]);
    refused(folder.path(), "is not known to llama");
    let options = Options { skip_unknown: true, ..Options::default() };
    let skipped = Conversion::open(folder.path(), &options).expect("it may be left out");
    assert!(skipped.warnings.iter().any(|warning| warning.contains("mlp.what")));
    let expert = |number| match number {
        0 => tensor("model.layers.0.block_sparse_moe.experts.0.w1.weight"),
        _ => tensor("model.layers.0.block_sparse_moe.experts.2.w1.weight"),
    };
    write_tensors(&path, &[expert(0), expert(2)]);
    refused(folder.path(), "expert 1 is missing");
    write_tensors(&path, &[tensor("model.norm.weight"), tensor("norm.weight")]);
    refused(folder.path(), "both become");
}

#[test]
fn adapters_follow_the_order_of_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let floats = |count: u32| (0..count).flat_map(|x| (x as f32).to_le_bytes()).collect::<Vec<u8>>();
    let stem = "base_model.model.model.layers.1.self_attn.q_proj";
    let (down, up) = (format!("{stem}.lora_A.weight"), format!("{stem}.lora_B.weight"));
    let path = folder.path().join("adapter_model.safetensors");
    let settings = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 16});
    fs::write(folder.path().join("adapter_config.json"), settings.to_string()).expect("it is written");
    write_tensors(
        &path,
        &[(down.as_str(), "F32", vec![1, 32], floats(32)), (up.as_str(), "F32", vec![32, 1], floats(32))],
    );
    let adapter = LoraConversion::open(folder.path(), &fixture("llama")).expect("it is sound");
    let names: Vec<&str> = adapter.tensors().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["blk.1.attn_q.weight.lora_a", "blk.1.attn_q.weight.lora_b"]);
    assert_eq!(adapter.metadata.f32("adapter.lora.alpha").expect("it is there"), 16.0);
    let data = adapter.data(&adapter.tensors()[1].1).expect("it evaluates");
    let rows: Vec<f32> = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    // Heads of 8: the halves 0..4 and 4..8 take turns.
    assert_eq!(rows[..8], [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
    // Norms have no rows that an adapter could change.
    write_tensors(&path, &[("base_model.model.model.what.lora_A.weight", "F32", vec![1, 1], floats(1))]);
    assert!(LoraConversion::open(folder.path(), &fixture("llama")).is_err());
    let settings = json!({"peft_type": "IA3", "r": 1, "lora_alpha": 16});
    fs::write(folder.path().join("adapter_config.json"), settings.to_string()).expect("it is written");
    assert!(LoraConversion::open(folder.path(), &fixture("llama")).is_err());
}
