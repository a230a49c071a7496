//! Every zoo model of a known architecture on OpenVINO's CPU plugin.

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend_openvino::OpenVino;
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_graph::ops::MaskRule;
use puna_graph::{Graph, Op};
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

mod common;

/// What a model's result may differ by: the plugin's own functions and orders of sums.
const TOLERANCE: f64 = 1e-5;

/// Whether rows see later ones, so that a prompt cannot be cut.
fn sees_later_rows(graph: &Graph) -> bool {
    let sees = |op: &Op| matches!(op, Op::Attention(attention) if attention.mask == MaskRule::Bidirectional);
    graph.nodes.iter().any(|node| sees(&node.op))
}

/// How well a model runs.
fn state(backend: &OpenVino, model: &zoo::ZooModel) -> Result<f64, String> {
    let file = Arc::new(model.open());
    let options = BuildOptions { context: 256 };
    let graph = build(&file.metadata, &file.tensors, &options).map_err(|error| error.to_string())?;
    if let Some(node) = (0..graph.nodes.len()).find(|node| !backend.supports(&graph, *node)) {
        return Err(format!("{} runs on the CPU back end", graph.nodes[node].op.name()));
    }
    let tokens = model.tokens.len() as u32;
    let cells = DType::F32;
    let mut whole = SingleSequence::load(backend, file.clone(), graph.clone(), cells, tokens);
    let logits = whole.push(&model.tokens);
    let error = normalised_squared_error(&logits, &model.logits);
    if error.is_nan() || error > TOLERANCE {
        return Err(format!("wrong: {error:.2e}"));
    }
    if sees_later_rows(&graph) {
        return Ok(error);
    }
    // The same model goes on token by token, in pieces and alone.
    whole.reset();
    let (first, rest) = model.tokens.split_at(7);
    let mut stepped = whole.push(first);
    stepped.extend(rest.iter().flat_map(|token| whole.push(&[*token])));
    let difference = normalised_squared_error(&stepped, &logits);
    match difference > TOLERANCE || difference.is_nan() {
        true => Err(format!("token by token {difference:.2e}")),
        false => Ok(error),
    }
}

#[test]
fn logits_equal_the_recorded_ones() {
    let only = std::env::var("PUNA_ZOO").unwrap_or_default();
    let Some((backend, _)) = common::start(&[common::EXACT]) else { return };
    let mut wrong = Vec::new();
    let (mut count, mut whole) = (0, 0);
    for model in zoo::models() {
        if !ARCHITECTURES.iter().any(|row| row.name == model.architecture()) || !model.name.contains(&only) {
            continue;
        }
        count += 1;
        let name = model.name.clone();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| state(&backend, &model)));
        match found.unwrap_or_else(|panic| Err(panic.downcast_ref::<String>().cloned().unwrap_or_default())) {
            Ok(_) => whole += 1,
            Err(reason) => wrong.push(format!("{name}: {reason}")),
        }
    }
    assert!(wrong.is_empty(), "{whole} of {count} run wholly and right; others:\n{}", wrong.join("\n"));
}
