//! Every zoo model of a known architecture on the CPU back end, per instruction set and number of threads.

use std::sync::Arc;

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

fn load(cpu: &Cpu, model: &zoo::ZooModel) -> SingleSequence {
    let file = Arc::new(model.open());
    let graph =
        build(&file.metadata, &file.tensors, &BuildOptions { context: 256 }).expect("the model builds");
    SingleSequence::load(cpu, file, graph, DType::F32, model.tokens.len() as u32)
}

#[test]
fn logits_equal_the_recorded_ones() {
    let models: Vec<_> = zoo::models()
        .into_iter()
        .filter(|model| ARCHITECTURES.iter().any(|row| row.name == model.architecture()))
        .collect();
    assert!(!models.is_empty());
    for (level, features) in Features::detect().levels() {
        for threads in 1..=3 {
            let cpu = Cpu::new(CpuOptions { threads, features }).expect("threads start");
            for model in &models {
                let whole = load(&cpu, model).push(&model.tokens);
                let error = normalised_squared_error(&whole, &model.logits);
                assert!(
                    error <= model.tolerance(),
                    "{} on {level}, {threads} threads: {error:.2e}",
                    model.name
                );
                let mut stepped = load(&cpu, model);
                let single: Vec<f32> =
                    model.tokens.iter().flat_map(|token| stepped.push(&[*token])).collect();
                let difference = normalised_squared_error(&single, &whole);
                assert!(difference <= 1e-10, "{} on {level}: token by token {difference:.2e}", model.name);
            }
        }
    }
}
