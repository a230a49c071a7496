//! Zoo models with quantised weights, on a CUDA device if there is one, else on the emulation: steps of many rows take paths
//! that models of plain f32 never take, and launches that do several operations at once.

#![allow(clippy::print_stdout)]

mod emulated;

use emulated::device;
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, quantised, zoo};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

/// Activations of half precision or of eight bits have an error near 1e-5 a product; layers add up.
const TOLERANCE: f64 = 1e-3;

#[test]
fn steps_of_any_number_of_rows_agree_with_the_evaluator() {
    let Some(backend) = device() else { return };
    let mixture = [DType::Q8_0, DType::Q4_0, DType::F16, DType::Q5_1, DType::IQ4_NL];
    let models =
        [("llama-dense", &[DType::Q8_0][..]), ("qwen3-dense", &[DType::F16]), ("gemma3-dense", &mixture)];
    for (name, formats) in models {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model");
        let file = quantised(&model, formats);
        let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
        let graph = build(&file.metadata, &file.tensors, &options).expect("it builds");
        let tokens: Vec<u32> = model.tokens.iter().cycle().take(34).copied().collect();
        let load = |backend: &dyn Backend| {
            SingleSequence::load(backend, file.clone(), graph.clone(), DType::F32, 64)
        };
        let right = load(&Reference).push(&tokens);
        for step in [1, 2, 4, 9, 34] {
            let mut sequence = load(&*backend);
            let found: Vec<f32> = tokens.chunks(step).flat_map(|part| sequence.push(part)).collect();
            let error = normalised_squared_error(&found, &right);
            println!("{name}, {step} rows: {error:.1e}");
            assert!(error <= TOLERANCE, "{name}, {step} rows at a time: {error:e}");
        }
    }
}
