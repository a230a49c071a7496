//! Every zoo model of a known architecture on the CPU back end, per instruction set, on one to three threads.

use std::sync::Arc;

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

/// A fresh sequence of the model, and the error that its activations allow.
fn load(cpu: &Cpu, model: &zoo::ZooModel) -> (SingleSequence, f64) {
    let file = Arc::new(model.open());
    let graph =
        build(&file.metadata, &file.tensors, &BuildOptions { context: 256 }).expect("the model builds");
    let tolerance = zoo::tolerance(&graph);
    (SingleSequence::load(cpu, file, graph, DType::F32, model.tokens.len() as u32), tolerance)
}

#[test]
fn logits_equal_the_recorded_ones() {
    let models: Vec<_> = zoo::models()
        .into_iter()
        .filter(|model| ARCHITECTURES.iter().any(|row| row.name == model.architecture()))
        .collect();
    assert!(!models.is_empty());
    let mut faults = Vec::new();
    for (level, features) in Features::detect().levels() {
        for threads in 1..=3 {
            let cpu = Cpu::new(CpuOptions { threads, features }).expect("threads start");
            for model in models.iter().skip(threads - 1).step_by(3) {
                let (mut sequence, tolerance) = load(&cpu, model);
                let whole = sequence.push(&model.tokens);
                let error = normalised_squared_error(&whole, &model.logits);
                if error > tolerance || error.is_nan() {
                    faults.push(format!("{} on {level}, {threads} threads: {error:.2e}", model.name));
                }
                sequence.reset();
                let single: Vec<f32> =
                    model.tokens.iter().flat_map(|token| sequence.push(&[*token])).collect();
                let difference = normalised_squared_error(&single, &whole);
                if difference > 1e-10 || difference.is_nan() {
                    faults.push(format!("{} on {level}: token by token {difference:.2e}", model.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "wrong models:\n{}", faults.join("\n"));
}
