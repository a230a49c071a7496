//! Every zoo model of a known architecture, on a CUDA device if there is one, else on the emulation of the kernels.

#![allow(clippy::print_stdout)]

mod emulated;

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend_cuda::Cuda;
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_graph::ops::MaskRule;
use puna_graph::{Graph, Op};
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

/// Largest normalised squared error of logits.
const TOLERANCE: f64 = 1e-5;

/// The device, and every how many models are run: the emulation is slow.
fn device() -> Option<(Box<dyn Backend>, usize)> {
    let all = std::env::var("PUNA_ALL").is_ok();
    match Cuda::find() {
        Ok(cuda) => Some((Box::new(cuda), 1)),
        Err(error) => {
            println!("emulated: {error}");
            let backend: Box<dyn Backend> = Box::new(emulated::backend()?);
            Some((backend, if all { 1 } else { 30 }))
        }
    }
}

fn sees_later_rows(graph: &Graph) -> bool {
    let sees = |op: &Op| matches!(op, Op::Attention(attention) if attention.mask == MaskRule::Bidirectional);
    graph.nodes.iter().any(|node| sees(&node.op))
}

#[test]
fn logits_equal_the_recorded_ones() {
    let Some((backend, every)) = device() else { return };
    let only = std::env::var("PUNA_ONLY").ok();
    let (mut wrong, mut count, mut unsupported) = (Vec::new(), 0, 0);
    for (index, model) in zoo::models().into_iter().enumerate() {
        let known = ARCHITECTURES.iter().any(|row| row.name == model.architecture());
        let wanted = only.as_ref().map_or(index % every == 0, |only| model.name.contains(only));
        if !known || !wanted {
            continue;
        }
        count += 1;
        let file = Arc::new(model.open());
        let graph = build(
            &file.metadata,
            &file.tensors,
            &BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() },
        )
        .expect("the model builds");
        if let Some(node) = (0..graph.nodes.len()).find(|node| !backend.supports(&graph, *node)) {
            // Another back end gets such nodes; there is nothing of ours to compare.
            println!("{}: {} is not supported", model.name, graph.nodes[node].op.name());
            unsupported += 1;
            continue;
        }
        for cache in [DType::F32, DType::F16] {
            let load = || {
                let cells = model.tokens.len() as u32;
                SingleSequence::load(&*backend, file.clone(), graph.clone(), cache, cells)
            };
            let whole = load().push(&model.tokens);
            let error = normalised_squared_error(&whole, &model.logits);
            let tolerance = if cache == DType::F32 { TOLERANCE } else { 1e-3 };
            if error.is_nan() || error > tolerance {
                wrong.push(format!("{} with {cache} caches: {error:.2e}", model.name));
            }
            if sees_later_rows(&graph) || cache != DType::F32 {
                continue;
            }
            let mut stepped = load();
            let single: Vec<f32> = model.tokens.iter().flat_map(|token| stepped.push(&[*token])).collect();
            let error = normalised_squared_error(&single, &model.logits);
            if error.is_nan() || error > TOLERANCE {
                wrong.push(format!("{} token by token: {error:.2e}", model.name));
            }
        }
    }
    println!("{count} models on {}, {unsupported} of them not supported", backend.name());
    assert!(count > 0);
    assert!(wrong.is_empty(), "wrong models:\n{}", wrong.join("\n"));
}
