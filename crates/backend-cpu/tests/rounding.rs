//! Attention on the matrix unit rounds to BF16. How much that changes the logits of whole models.

mod support;

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;
use support::quantised;

/// From 16 rows on attention may use the matrix unit; from 24 on products would round, too. In between, only attention
/// differs from `deterministic`.
const ROWS: usize = 20;
/// Largest squared error over squared logits that is taken for rounding.
const MOST: f64 = 1e-3;

#[test]
fn attention_on_the_matrix_unit_over_whole_models() {
    let features = Features::detect();
    if !features.amx {
        return println!("skipped: this processor has no matrix unit");
    }
    let cpu = |deterministic| {
        Cpu::new(CpuOptions { threads: 2, features, deterministic, ..CpuOptions::default() })
            .expect("threads start")
    };
    let (rounding, exact) = (cpu(false), cpu(true));
    let (mut errors, mut same) = (Vec::new(), 0);
    for model in zoo::models() {
        // A near tie of a router turns any rounding into another expert.
        let known = ARCHITECTURES.iter().any(|row| row.name == model.architecture());
        if !known || model.name.contains("moe") {
            continue;
        }
        let file = quantised(&model, &[DType::Q8_0]);
        let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
        let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
        let tokens: Vec<u32> = model.tokens.iter().cycle().take(ROWS).copied().collect();
        let run = |cpu| SingleSequence::load(cpu, file.clone(), graph.clone(), DType::F16, 256).push(&tokens);
        let error = normalised_squared_error(&run(&rounding), &run(&exact));
        if error == 0.0 { same += 1 } else { errors.push((error, model.name.clone())) }
    }
    errors.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!(
        "{} models differ, {same} do not; the worst: {:?}",
        errors.len(),
        &errors[..errors.len().min(12)]
    );
    assert!(
        errors.len() > 10,
        "attention of few models used the matrix unit: {errors:?}, {same} are the same"
    );
    let off: Vec<_> = errors.iter().filter(|(error, _)| error.is_nan() || *error > MOST).collect();
    assert!(off.is_empty(), "{off:?}");
}
