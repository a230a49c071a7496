//! Models of the zoo with quantised weights.

use std::sync::Arc;

use puna_gguf::{File, TensorSpec};
use puna_quant::DType;

use crate::zoo;

/// The model with its matrices in these formats, in turn.
pub fn quantised(model: &zoo::ZooModel, formats: &[DType]) -> Arc<File> {
    let file = model.open();
    let mut turn = formats.iter().cycle();
    let tensors: Vec<(TensorSpec, Vec<u8>)> = file
        .tensors
        .iter()
        .map(|tensor| {
            let bytes = file.bytes(tensor);
            let columns = *tensor.shape.last().expect("a tensor has an axis");
            let is_matrix = tensor.shape.len() >= 2 && !tensor.name.contains("ffn_gate_inp");
            let wanted = if is_matrix { *turn.next().expect("a cycle has no end") } else { DType::F32 };
            let dtype = if wanted.bytes_for(columns).is_some() { wanted } else { DType::F32 };
            let floats: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let size = dtype.bytes_for(floats.len() as u64).expect("whole blocks") as usize;
            let mut encoded = vec![0; size];
            puna_quant::encode_row(dtype, &floats, &mut encoded).expect("the format has an encoder");
            (TensorSpec { name: tensor.name.clone(), dtype, shape: tensor.shape.clone() }, encoded)
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let parts: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
    puna_gguf::write(&path, &file.metadata, &parts).expect("the model is written");
    Arc::new(File::from_bytes(std::fs::read(&path).expect("the model is there")).expect("the model is good"))
}
