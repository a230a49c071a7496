//! Models of the zoo with quantised weights.

use std::sync::Arc;

use puna_gguf::{File, TensorSpec};
use puna_quant::{DType, tensors};

use crate::zoo;

/// The model with its matrices in these formats, in turn.
pub fn quantised(model: &zoo::ZooModel, formats: &[DType]) -> Arc<File> {
    requantised(&model.open(), formats).expect("the model has matrices")
}

/// A model of F32 with those tensors that `llama quantize` quantises in these formats, in turn, or in what stands in for a
/// format that does not fit; none if no tensor is in one of them.
pub fn requantised(file: &File, formats: &[DType]) -> Option<Arc<File>> {
    let architecture = file.metadata.str("general.architecture").expect("a model has an architecture");
    let mut turn = formats.iter().cycle();
    let mut changed = false;
    let tensors: Vec<(TensorSpec, Vec<u8>)> = file
        .tensors
        .iter()
        .map(|tensor| {
            let axes = tensor.shape.iter().skip_while(|extent| **extent == 1).count();
            let dtype = if tensors::is_quantized(architecture, &tensor.name, axes) {
                let wanted = *turn.next().expect("a cycle has no end");
                let columns = *tensor.shape.last().expect("a tensor has an axis");
                let dtype = tensors::fallback(wanted, columns).expect("the format has a substitute");
                changed |= dtype == wanted;
                dtype
            } else {
                DType::F32
            };
            let floats: Vec<f32> = file
                .bytes(tensor)
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            let size = dtype.bytes_for(floats.len() as u64).expect("whole blocks") as usize;
            let mut encoded = vec![0; size];
            puna_quant::encode_row(dtype, &floats, &mut encoded).expect("the format has an encoder");
            (TensorSpec { name: tensor.name.clone(), dtype, shape: tensor.shape.clone() }, encoded)
        })
        .collect();
    if !changed {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let parts: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
    puna_gguf::write(&path, &file.metadata, &parts).expect("the model is written");
    let bytes = std::fs::read(&path).expect("the model is there");
    Some(Arc::new(File::from_bytes(bytes).expect("the model is good")))
}
