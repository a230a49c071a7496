//! Zoo models with weights in many formats at once, against the evaluator on the same file: the paths that models of
//! plain f32 never take (integer kernels, matrix tiles, matrices of different formats that share an activation).

use puna_backend::reference::Reference;
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, quantised, zoo};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

#[test]
fn mixed_formats_agree_with_the_evaluator() {
    let legacy = [DType::Q4_0, DType::F32, DType::Q4_1, DType::BF16, DType::Q5_0, DType::F16, DType::Q8_0];
    let pairs = [DType::F16, DType::F32, DType::BF16, DType::Q5_1, DType::IQ4_NL, DType::Q8_0, DType::F32];
    for (name, formats) in [("llama-dense", legacy), ("qwen3-dense", pairs), ("llama-moe-top2", legacy)] {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model");
        let file = quantised(&model, &formats);
        let graph = build(
            &file.metadata,
            &file.tensors,
            &BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() },
        )
        .expect("it builds");
        // More rows than any threshold between kernels.
        let tokens: Vec<u32> = model.tokens.iter().cycle().take(40).copied().collect();
        let load = |backend: &dyn puna_backend::Backend| {
            SingleSequence::load(backend, file.clone(), graph.clone(), DType::F32, 512)
        };
        let right = load(&Reference).push(&tokens);
        let vocabulary = right.len() / tokens.len();
        for (level, features) in Features::detect().levels() {
            let cpu = Cpu::new(CpuOptions { threads: 2, features, ..CpuOptions::default() })
                .expect("threads start");
            for step in [1, 7, 8, 23, 24, 40] {
                let mut sequence = load(&cpu);
                let found: Vec<f32> = tokens.chunks(step).flat_map(|part| sequence.push(part)).collect();
                assert_eq!(found.len(), right.len());
                // Activations of 8 bits have an error near 1e-5 a product, of BF16 near 4e-6; layers add up.
                let rows = found.chunks(vocabulary).zip(right.chunks(vocabulary));
                let off = rows.filter(|(a, b)| normalised_squared_error(a, b) > 1e-3).count();
                // Where a router's choice is a near tie, the error of an activation decides it.
                let allowed = if name.contains("moe") { tokens.len() / 5 } else { 0 };
                assert!(off <= allowed, "{name} on {level}, {step} tokens at a time: {off} rows are off");
            }
        }
    }
}
