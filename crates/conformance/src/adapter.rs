//! Small adapters for models of the zoo.

use std::path::Path;

use puna_gguf::{File, Metadata, TensorSpec, Value};
use puna_quant::DType;

/// Rank of the adapters.
const RANK: u64 = 2;

/// Writes a LoRA adapter for one matrix of a model's first feed-forward network; other seeds change it in other ways.
pub fn write_adapter(model: &File, path: &Path, seed: f32) {
    let weight = "blk.0.ffn_up.weight";
    let shape = &model.tensors.get(weight).expect("the model has the matrix").shape;
    let (rows, columns) = (shape[0], shape[1]);
    let mut metadata = Metadata::new();
    let architecture = model.metadata.str("general.architecture").expect("the model has one").to_owned();
    metadata.set("general.type", "adapter");
    metadata.set("general.architecture", Value::String(architecture));
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", Value::F32(4.0));
    let numbers = |count: u64, step: f32| -> Vec<u8> {
        (0..count).flat_map(|x| (((x + 1) as f32 * step * seed).sin() * 0.3).to_le_bytes()).collect()
    };
    let (down, up) = (numbers(RANK * columns, 0.7), numbers(RANK * rows, 0.9));
    let spec =
        |ending: &str, shape| TensorSpec { name: format!("{weight}.{ending}"), dtype: DType::F32, shape };
    let tensors =
        [(spec("lora_a", vec![RANK, columns]), &down[..]), (spec("lora_b", vec![rows, RANK]), &up[..])];
    puna_gguf::write(path, &metadata, &tensors).expect("the adapter can be written");
}
