//! Devices that divide the rows of matrices, on cards if there are several, else parts of one card or of the emulation: they compute
//! what one device does.

#![allow(clippy::print_stdout)]

mod emulated;

use std::sync::Arc;

use emulated::device;
use puna_backend::{Backend, DeviceId};
use puna_backend_cuda::Cuda;
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, quantised, zoo};
use puna_gguf::File;
use puna_graph::{Graph, WeightId};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

/// The parts' shares.
const SHARES: [&[f32]; 3] = [&[1.0, 1.0], &[1.0, 3.0], &[3.0, 5.0, 2.0]];

fn graph_of(file: &File) -> Graph {
    let options = BuildOptions { context: 64, only_long_texts: true, ..BuildOptions::default() };
    build(&file.metadata, &file.tensors, &options).expect("the model builds")
}

/// Logits of prompts of some rows, and of single tokens after these.
fn run(backend: &dyn Backend, file: &Arc<File>, tokens: &[u32], prompts: &[usize]) -> Vec<f32> {
    let mut sequence = SingleSequence::load(backend, file.clone(), graph_of(file), DType::F32, 128);
    let (mut logits, mut done) = (Vec::new(), 0);
    for rows in prompts.iter().copied().chain(std::iter::repeat_n(1, 2)) {
        let tokens: Vec<u32> = tokens.iter().cycle().skip(done).take(rows).copied().collect();
        logits.extend(sequence.push(&tokens));
        done += rows;
    }
    logits
}

/// As many members as shares, on other devices as far as there are any that are alike.
fn divided(device: usize, shares: &[f32]) -> Option<Arc<dyn Backend>> {
    let cuda = Cuda::find().ok();
    let cards = cuda.as_ref().map_or(1, |cuda| cuda.devices().len());
    let members: Vec<DeviceId> = (0..shares.len()).map(|member| DeviceId(device + member % cards)).collect();
    // Models of tests are small.
    let divided = match cuda {
        Some(cuda) => cuda.divide(&members, shares, 0),
        None => emulated::backend()?.divide(&members, shares, 0),
    };
    Some(divided.expect("it can be divided"))
}

#[test]
fn parts_give_the_same_numbers_as_the_whole() {
    let Some(backend) = device() else { return };
    // Tied embeddings, experts, biases, latent attention with a matrix for each head, recurrent layers.
    for name in
        ["llama-gqa4-tied", "granite-moe", "gpt2-dense", "deepseek2-moe", "lfm2moe-top2", "qwen35-dense"]
    {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model");
        let file = Arc::new(model.open());
        let expected = run(&*backend, &file, &model.tokens, &[4, 9]);
        for shares in SHARES {
            let Some(parts) = divided(0, shares) else { return };
            let found = run(&*parts, &file, &model.tokens, &[4, 9]);
            // Plain numbers: each row is one warp's work, wherever it is.
            let error = normalised_squared_error(&found, &expected);
            assert!(found == expected, "{name} by {shares:?}: {error:e}");
        }
    }
}

#[test]
fn quantised_parts_compute_what_the_whole_does() {
    let Some(backend) = device() else { return };
    let mixture = [DType::Q8_0, DType::Q4_0, DType::F16, DType::Q5_1, DType::IQ4_NL, DType::BF16];
    let models =
        [("llama-dense", &[DType::Q8_0][..]), ("granite-moe", &[DType::Q4_0]), ("gemma3-dense", &mixture)];
    let emulated = backend.name() != "CUDA";
    for (name, formats) in models {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model");
        let file = quantised(&model, formats);
        // Emulated devices differ in their matrix units.
        for device in 0..if emulated { 2 } else { 1 } {
            let compute = |shares: &[f32]| {
                let parts = divided(device, shares).expect("it was there before");
                run(&*parts, &file, &model.tokens, &[2, 34])
            };
            let expected = compute(&[1.0]);
            for shares in [SHARES[1], SHARES[2]] {
                let error = normalised_squared_error(&compute(shares), &expected);
                println!("{name} on device {device} by {shares:?}: {error:.1e}");
                // Sums of a row may be taken in another order, then activations round otherwise.
                assert!(error <= 1e-4, "{name} on device {device} by {shares:?}: {error:e}");
            }
        }
    }
}

#[test]
fn a_part_has_its_share_of_the_weights() {
    let Some(backend) = device() else { return };
    let model = zoo::models().into_iter().find(|model| model.name == "llama-dense").expect("a zoo model");
    let file = Arc::new(model.open());
    let graph = graph_of(&file);
    let bytes = |backend: &dyn Backend| -> u64 {
        (0..graph.weights.len() as u32).map(|weight| backend.weight_bytes(&graph, WeightId(weight))).sum()
    };
    let tables: u64 = (0..graph.weights.len())
        .filter(|weight| graph.weights[*weight].name == "token_embd.weight")
        .map(|weight| backend.weight_bytes(&graph, WeightId(weight as u32)))
        .sum();
    let Some(parts) = divided(0, &[1.0, 1.0]) else { return };
    let (whole, half) = (bytes(&*backend), bytes(&*parts));
    // Norms and the table are everywhere.
    assert!(half < (whole - tables) * 6 / 10 + tables && half > whole / 2, "{half} of {whole}");
}

#[test]
fn what_has_no_share_is_no_part() {
    let Some(parts) = divided(0, &[0.0, 1.0]) else { return };
    let names: Vec<String> = parts.devices().into_iter().map(|device| device.name).collect();
    assert!(names.len() == 1 && !names[0].contains('+'), "{names:?}");
}
