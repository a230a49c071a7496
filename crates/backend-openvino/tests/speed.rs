//! Speed of SmolLM2 on OpenVINO's CPU plugin at the default settings; not part of the tests, because it depends on the machine:
//! `cargo test --release -p puna-backend-openvino --test speed -- --ignored --nocapture`.
#![allow(clippy::print_stdout)] // figures are what it is for

use std::time::Instant;

use puna_quant::DType;

mod common;
mod sequences;

use sequences::{SMOLLM2, Sequences, model};

/// Tokens of the long prompt.
const PROMPT: u32 = 512;
/// Tokens generated.
const GENERATED: u32 = 64;

fn tokens(count: u32, seed: u32) -> Vec<u32> {
    (0..count).map(|place| (place * 977 + seed * 7919 + 1009) % 40_000 + 100).collect()
}

/// Tokens a second that some sequences generate together.
fn generation(sequences: &mut Sequences, count: usize) -> f64 {
    let prompts: Vec<Vec<u32>> = (0..count as u32).map(|seed| tokens(64, seed)).collect();
    let texts: Vec<(usize, &[u32])> = prompts.iter().map(|prompt| &prompt[..]).enumerate().collect();
    sequences.push(&texts);
    let start = Instant::now();
    for step in 0..GENERATED {
        let next: Vec<[u32; 1]> = (0..count as u32).map(|number| [500 + 31 * step + number]).collect();
        let texts: Vec<(usize, &[u32])> = next.iter().map(|token| &token[..]).enumerate().collect();
        sequences.push(&texts);
    }
    f64::from(GENERATED) * count as f64 / start.elapsed().as_secs_f64()
}

#[test]
#[ignore = "measures and asserts nothing"]
fn speed() {
    let Some(file) = model(SMOLLM2) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let variables = [("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", path), ("GGML_OPENVINO_PROFILING", "1")];
    let Some((backend, lines)) = common::start_with_shim(&variables) else { return };
    for run in ["cold", "warm"] {
        let start = Instant::now();
        let mut sequences = Sequences::load_with(&backend, &file, 1, DType::F16, 1024);
        sequences.push(&[(0, &tokens(8, 0))]);
        println!("first token, {run} folder of compiled models: {:.2?}", start.elapsed());
        let mut lines = lines.lock().expect("no panic");
        let of_models =
            lines.drain(..).filter(|line| line.contains("compiled") || line.contains("translated"));
        of_models.for_each(|line| println!("  {line}"));
    }
    let Some((backend, _)) = common::start_with_shim(&variables[..1]) else { return };
    let mut sequences = Sequences::load_with(&backend, &file, 8, DType::F16, 1024);
    let mut best = f64::MAX;
    for seed in 0..6 {
        sequences.clear();
        let start = Instant::now();
        sequences.push(&[(0, &tokens(PROMPT, seed))]);
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("prompt of {PROMPT}: {:.0} t/s (best of 6)", f64::from(PROMPT) / best);
    for count in [1, 8, 1] {
        sequences.clear();
        println!("{count} together: {:.1} t/s", generation(&mut sequences, count));
    }
}
