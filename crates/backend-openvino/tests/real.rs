//! Real models on OpenVINO's CPU plugin: several sequences in one batch, and the places for the caches against each other.
//! Skipped where the models do not lie in a folder `models` beside the project.
#![allow(clippy::print_stdout)] // a skipped test says why

use std::sync::Arc;

use puna_backend_openvino::OpenVino;
use puna_conformance::normalised_squared_error;
use puna_gguf::File;
use puna_quant::DType;

mod common;
mod sequences;

use sequences::{GEMMA, SMOLLM2, Sequences, model};

/// A text of some tokens; each number gives another one.
fn prompt(number: usize) -> Vec<u32> {
    let length = 9 + 11 * number;
    (0..length).map(|place| (place * 977 + number * 3571 + 1009) as u32 % 40_000 + 100).collect()
}

/// What exact settings leave: orders of sums.
const SAME: f64 = 1e-6;

fn assert_same(name: &str, found: &[Vec<Vec<f32>>], right: &[Vec<Vec<f32>>], most: f64) {
    for (step, (found, right)) in found.iter().zip(right).enumerate() {
        for (sequence, (found, right)) in found.iter().zip(right).enumerate() {
            let error = normalised_squared_error(found, right);
            assert!(error < most, "{name}: step {step}, sequence {sequence}: {error:.1e}");
        }
    }
}

/// A step's logits of one sequence of several.
fn of_sequence(steps: &[Vec<Vec<f32>>], number: usize) -> Vec<Vec<Vec<f32>>> {
    steps.iter().map(|step| vec![step[number].clone()]).collect()
}

/// Eight sequences of different lengths in one batch, and each alone; returns the batch's logits.
fn eight(backend: &OpenVino, file: &Arc<File>, name: &str) -> Vec<Vec<Vec<f32>>> {
    let prompts: Vec<(usize, Vec<u32>)> = (0..8).map(|number| (number, prompt(number))).collect();
    // It stays, so that its compiled model is there for the runs of one sequence.
    let mut batch = Sequences::load(backend, file, 8, DType::F32);
    let together = batch.generate(&prompts, STEPS);
    for (number, text) in prompts {
        let alone = Sequences::load(backend, file, 1, DType::F32).generate(&[(0, text)], STEPS);
        assert_same(name, &of_sequence(&together, number), &alone, SAME);
    }
    together
}

/// Tokens generated after each prompt.
const STEPS: usize = 4;

/// Eight sequences in one batch equal eight runs, and every place for caches gives the same.
fn all_forms(name: &str) {
    let Some(file) = model(name) else { return };
    let Some((host, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let right = Sequences::load(&host, &file, 1, DType::F32).generate(&[(0, prompt(3))], STEPS);
    let stateful = ("GGML_OPENVINO_STATEFUL_EXECUTION", "1");
    let Some((stateful, _)) = common::start(&[common::EXACT, stateful]) else { return };
    let found = eight(&stateful, &file, &format!("{name} stateful"));
    assert_same(name, &of_sequence(&found, 3), &right, SAME);
    let Some((pages, _)) = common::start_with_shim(&[common::EXACT]) else { return };
    let found = eight(&pages, &file, &format!("{name} pages"));
    assert_same(name, &of_sequence(&found, 3), &right, SAME);
}

#[test]
fn smollm2_is_the_same_alone_and_in_a_batch_and_wherever_caches_are() {
    all_forms(SMOLLM2);
}

#[test]
fn gemma_is_the_same_alone_and_in_a_batch_and_wherever_caches_are() {
    all_forms(GEMMA);
}

/// A text that grows far beyond the room that caches begin with: nothing is compiled again.
#[test]
fn a_growing_context_never_recompiles() {
    let Some(file) = model(SMOLLM2) else { return };
    let profile = ("GGML_OPENVINO_PROFILING", "1");
    let Some((host, of_host)) = common::start(&[common::EXACT, common::NO_SHIM, profile]) else { return };
    let Some((pages, of_pages)) = common::start_with_shim(&[common::EXACT, profile]) else { return };
    for (backend, lines) in [(host, of_host), (pages, of_pages)] {
        let mut sequences = Sequences::load_with(&backend, &file, 1, DType::F32, 1024);
        sequences.push(&[(0, &prompt(1))]);
        for length in [1, 200, 1, 1, 300, 1, 400, 1] {
            let more: Vec<u32> = (0..length).map(|place| 500 + place).collect();
            sequences.push(&[(0, &more)]);
        }
        let lines = lines.lock().expect("no panic");
        assert_eq!(lines.iter().filter(|line| line.contains(" compiled in ")).count(), 1, "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.contains("run of ")).count(), 9, "{lines:?}");
    }
}

/// The default settings: weights and activations of eight bits, prompts in bf16 where the processor has that.
#[test]
fn the_fast_settings_are_close_to_the_exact_ones() {
    let Some(file) = model(SMOLLM2) else { return };
    let Some((exact, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let Some((fast, _)) = common::start_with_shim(&[]) else { return };
    for number in [0, 7] {
        let prompts = [(0, prompt(number))];
        let mut exact = Sequences::load(&exact, &file, 1, DType::F32);
        let right = exact.generate(&prompts, 0);
        let found = Sequences::load(&fast, &file, 1, DType::F16).generate(&prompts, 0);
        // 2e-2 is the error of logits whose every factor has eight bits.
        assert_same("fast", &found, &right, 2e-2);
    }
}
