//! What the processor rounds for speed (attention to numbers of 16 bits, activations to one byte): how much that changes the
//! logits of whole models.

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, quantised, zoo};
use puna_graph::Op;
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

/// From 16 rows on attention may be in rounded numbers; from 24 on products would round to that on the matrix unit, too. In between, only
/// attention differs from `deterministic`, and with weights of 8 bits the products, whose activations have two bytes then.
const ROWS: usize = 20;
/// How much larger the error against exact arithmetic may be on average than with attention in f32, where it is that of
/// the products. Each product with a quantised matrix takes its activations in steps of a 127th of the largest of 32
/// numbers: an error of 2.5e-5 of the power. Each attention in BF16 rounds queries, keys, values and weights to 8 bits, 7e-7 of
/// the power for each, and 2e-5 at most altogether (`attention.rs` tests that). A layer has four products or more for its
/// attention, so 2e-5 come to 1e-4.
const MEAN: f64 = 1.2;
/// The same for a single model. A number that attention changed by ever so little may go to the next step in the products
/// that follow, so their roundings in the two runs are unrelated in the end, and the errors are two samples of the same.
/// Such a sample may be twice the other; a fault in what only one model uses is far more.
const SINGLE: f64 = 2.0;

/// The error of weights of 8 bits with activations of two bytes: the mean of all models, and the most of one. A step of these is a
/// 8192th of the largest of 32 numbers, so each product loses 6e-9 of the power; what is left is F16 in the cache. 2.9e-7 and 5.5e-6
/// were measured.
const EIGHT_BITS_ALONE: (f64, f64) = (4.5e-7, 8.5e-6);
/// The same with one byte, as with `Q4_0`: 2.5e-5 for each product, which random layers amplify. 4.4e-4 and 7.2e-3 were measured.
const EIGHT_BITS: (f64, f64) = (6.6e-4, 1.1e-2);

/// A model's errors against exact arithmetic on the same weights.
struct Errors {
    model: String,
    /// With all that is done for speed.
    rounded: f64,
    /// With each row as it would be alone.
    alone: f64,
}

/// The errors of every model without a router, with matrices in this format and [`ROWS`] rows in a step; and how many models give
/// the same either way. A near tie of a router turns any rounding into another expert.
fn errors_of(format: DType) -> (Vec<Errors>, usize) {
    let cpu = |deterministic| {
        Cpu::new(CpuOptions { threads: 2, deterministic, ..CpuOptions::default() }).expect("threads start")
    };
    let (rounding, alone) = (cpu(false), cpu(true));
    let (mut errors, mut same) = (Vec::new(), 0);
    for model in zoo::models() {
        if !ARCHITECTURES.iter().any(|row| row.name == model.architecture()) {
            continue;
        }
        let file = quantised(&model, &[format]);
        let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
        let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
        if graph.nodes.iter().any(|node| matches!(node.op, Op::RouteExperts(_) | Op::MatMulExperts(_))) {
            continue;
        }
        let tokens: Vec<u32> = model.tokens.iter().cycle().take(ROWS).copied().collect();
        let run = |backend: &dyn Backend| {
            SingleSequence::load(backend, file.clone(), graph.clone(), DType::F16, 256).push(&tokens)
        };
        let (rounded, alone) = (run(&rounding), run(&alone));
        if rounded == alone {
            same += 1;
            continue;
        }
        let right = run(&Reference);
        let error = |found: &[f32]| normalised_squared_error(found, &right);
        errors.push(Errors { model: model.name.clone(), rounded: error(&rounded), alone: error(&alone) });
    }
    (errors, same)
}

#[test]
fn rounded_attention_loses_little_beside_products() {
    if !Features::detect().names().contains(&"AVX-512 VNNI") {
        return println!("skipped: this processor does not multiply integers of 16 bits");
    }
    let (errors, same) = errors_of(DType::Q4_0);
    let mut ratios: Vec<(f64, String)> =
        errors.into_iter().map(|errors| (errors.rounded / errors.alone, errors.model)).collect();
    assert!(ratios.len() > 50, "attention of few models was rounded: {ratios:?}, {same} are the same");
    ratios.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mean = ratios.iter().map(|(ratio, _)| ratio.ln()).sum::<f64>() / ratios.len() as f64;
    println!(
        "{} models differ, {same} do not; mean ratio {:.3}, largest {:?}",
        ratios.len(),
        mean.exp(),
        &ratios[..12]
    );
    assert!(mean.exp() < MEAN, "attention adds more than its arithmetic says: {}", mean.exp());
    let off: Vec<_> = ratios.iter().filter(|(ratio, _)| ratio.is_nan() || *ratio > SINGLE).collect();
    assert!(off.is_empty(), "{off:?}");
}

/// Weights of 8 bits are multiplied by activations of two bytes where a row is alone, and of one byte among [`ROWS`] of them.
#[test]
fn weights_of_eight_bits_lose_next_to_nothing_a_row_at_a_time_and_one_byte_in_larger_steps() {
    let (errors, same) = errors_of(DType::Q8_0);
    let largest = |error: fn(&Errors) -> f64| {
        let all = errors.iter().map(|errors| (error(errors), errors.model.as_str()));
        all.fold((0.0, ""), |most, next| if next.0 > most.0 || next.0.is_nan() { next } else { most })
    };
    let mean = |error: fn(&Errors) -> f64| {
        (errors.iter().map(|errors| error(errors).ln()).sum::<f64>() / errors.len() as f64).exp()
    };
    let (alone, rounded) = (largest(|errors| errors.alone), largest(|errors| errors.rounded));
    let (mean_alone, mean_rounded) = (mean(|errors| errors.alone), mean(|errors| errors.rounded));
    println!(
        "{} models differ, {same} do not; alone {mean_alone:.1e}, most {alone:?}; together {mean_rounded:.1e}, most {rounded:?}",
        errors.len()
    );
    assert!(errors.len() > 90, "{} models, {same} are the same", errors.len());
    assert!(mean_alone < EIGHT_BITS_ALONE.0 && alone.0 < EIGHT_BITS_ALONE.1, "{mean_alone:.1e}, {alone:?}");
    assert!(mean_rounded < EIGHT_BITS.0 && rounded.0 < EIGHT_BITS.1, "{mean_rounded:.1e}, {rounded:?}");
}
