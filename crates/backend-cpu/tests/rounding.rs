//! Attention on the matrix unit rounds to BF16. How much that changes the logits of whole models.

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, quantised, zoo};
use puna_graph::Op;
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

/// From 16 rows on attention may use the matrix unit; from 24 on products would round, too. In between, only attention
/// differs from `deterministic`. Not with weights of 8 bits, whose activations have
/// two bytes then, so that the products differ, too.
const ROWS: usize = 20;
/// How much larger the error against exact arithmetic may be on average than with attention in f32, where it is that of
/// the products. Each product with a quantised matrix takes its activations in steps of a 127th of the largest of 32
/// numbers: an error of 2.5e-5 of the power. Each attention rounds queries, keys, values and weights to 8 bits, 7e-7 of
/// the power for each, and 2e-5 at most altogether (`attention.rs` tests that). A layer has four products or more for its
/// attention, so 2e-5 come to 1e-4.
const MEAN: f64 = 1.2;
/// The same for a single model. A number that attention changed by ever so little may go to the next step in the products
/// that follow, so their roundings in the two runs are unrelated in the end, and the errors are two samples of the same.
/// Such a sample may be twice the other; a fault in what only one model uses is far more.
const SINGLE: f64 = 2.0;

#[test]
fn attention_on_the_matrix_unit_loses_little_beside_products() {
    let features = Features::detect();
    if !features.names().contains(&"AMX") {
        return println!("skipped: this processor has no matrix unit");
    }
    let cpu = |deterministic| {
        Cpu::new(CpuOptions { threads: 2, features, deterministic, ..CpuOptions::default() })
            .expect("threads start")
    };
    let (rounding, exact) = (cpu(false), cpu(true));
    let (mut ratios, mut same) = (Vec::new(), 0);
    for model in zoo::models() {
        if !ARCHITECTURES.iter().any(|row| row.name == model.architecture()) {
            continue;
        }
        let file = quantised(&model, &[DType::Q4_0]);
        let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
        let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
        // A near tie of a router turns any rounding into another expert.
        if graph.nodes.iter().any(|node| matches!(node.op, Op::RouteExperts(_) | Op::MatMulExperts(_))) {
            continue;
        }
        let tokens: Vec<u32> = model.tokens.iter().cycle().take(ROWS).copied().collect();
        let run = |backend: &dyn Backend| {
            SingleSequence::load(backend, file.clone(), graph.clone(), DType::F16, 256).push(&tokens)
        };
        let (rounded, exact) = (run(&rounding), run(&exact));
        if rounded == exact {
            same += 1;
            continue;
        }
        let right = run(&Reference);
        let error = |found: &[f32]| normalised_squared_error(found, &right);
        ratios.push((error(&rounded) / error(&exact), error(&exact), model.name.clone()));
    }
    assert!(
        ratios.len() > 50,
        "attention of few models used the matrix unit: {ratios:?}, {same} are the same"
    );
    ratios.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mean = ratios.iter().map(|(ratio, ..)| ratio.ln()).sum::<f64>() / ratios.len() as f64;
    println!(
        "{} models differ, {same} do not; mean ratio {:.3}, largest {:?}",
        ratios.len(),
        mean.exp(),
        &ratios[..12]
    );
    assert!(mean.exp() < MEAN, "attention adds more than its arithmetic says: {}", mean.exp());
    let off: Vec<_> = ratios.iter().filter(|(ratio, ..)| ratio.is_nan() || *ratio > SINGLE).collect();
    assert!(off.is_empty(), "{off:?}");
}
