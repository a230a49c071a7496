//! Every zoo model of a known architecture on OpenVINO's CPU plugin with caches in the host's memory; with the other places for
//! caches those that have an operation, a kind of attention or of cache that no earlier one has.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{Backend, WeightSource};
use puna_backend_openvino::OpenVino;
use puna_backend_openvino::translate::{
    CacheForm, Choices, Feed, Interface, is_pageable_state, order, translate, unsupported,
};
use puna_conformance::run::{FileWeights, SingleSequence};
use puna_conformance::{normalised_squared_error, zoo};
use puna_graph::ops::MaskRule;
use puna_graph::{Graph, Op};
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

mod common;

/// What a model's result may differ by: the plugin's own functions and orders of sums.
const TOLERANCE: f64 = 1e-5;
/// Set, it limits the models to those whose name contains its value.
const ONLY: &str = "PUNA_ZOO";
/// Set, it has the page of results written instead of compared.
const WRITE: &str = "PUNA_WRITE_PAGES";

/// Whether rows see later ones, so that a prompt cannot be cut.
fn sees_later_rows(graph: &Graph) -> bool {
    let sees = |op: &Op| matches!(op, Op::Attention(attention) if attention.mask == MaskRule::Bidirectional);
    graph.nodes.iter().any(|node| sees(&node.op))
}

/// How a model fares.
enum State {
    /// Wholly on OpenVINO.
    Right,
    /// An operation runs elsewhere.
    Partly(&'static str),
    /// Not as it should.
    Wrong(String),
}

fn graph_of(model: &zoo::ZooModel) -> Graph {
    let file = model.open();
    let options = BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() };
    build(&file.metadata, &file.tensors, &options).expect("the model builds")
}

fn state(backend: &OpenVino, model: &zoo::ZooModel) -> State {
    let file = Arc::new(model.open());
    let graph = graph_of(model);
    if let Some(node) = (0..graph.nodes.len()).find(|node| !backend.supports(&graph, *node)) {
        return State::Partly(graph.nodes[node].op.name());
    }
    let tokens = model.tokens.len() as u32;
    let mut sequence = SingleSequence::load(backend, file.clone(), graph.clone(), DType::F32, tokens);
    let logits = sequence.push(&model.tokens);
    let error = normalised_squared_error(&logits, &model.logits);
    if error.is_nan() || error > TOLERANCE {
        return State::Wrong(format!("{error:.2e}"));
    }
    if sees_later_rows(&graph) {
        return State::Right;
    }
    // The same model again, a piece and then token by token.
    sequence.reset();
    let (first, rest) = model.tokens.split_at(7);
    let mut stepped = sequence.push(first);
    stepped.extend(rest.iter().flat_map(|token| sequence.push(&[*token])));
    let difference = normalised_squared_error(&stepped, &logits);
    match difference > TOLERANCE || difference.is_nan() {
        true => State::Wrong(format!("token by token {difference:.2e}")),
        false => State::Right,
    }
}

/// What of a model a place for caches can make a difference to: its operations, its kinds of attention and its caches.
fn ways(graph: &Graph) -> Vec<String> {
    let mut ways: Vec<String> = graph.nodes.iter().map(|node| node.op.name().to_owned()).collect();
    for node in &graph.nodes {
        let Op::Attention(op) = &node.op else { continue };
        let heads = |input: usize| graph.operand_type(node.inputs[input]).shape.get(1).copied();
        let kind = std::mem::discriminant(&op.mask);
        let bends = (op.soft_cap.is_some(), op.alibi_max_bias.is_some(), node.inputs.len());
        let is_pageable = is_pageable_state(graph, op.state);
        ways.push(format!("{kind:?} {bends:?} {} {is_pageable}", heads(0) == heads(1)));
    }
    ways.push(format!("{:?}", graph.groups()));
    let reordered = order::find(graph, 0..graph.nodes.len()).keys.len();
    ways.push(format!("{} of {}", reordered.min(1), graph.states.len().min(1)));
    ways
}

/// Which models of the zoo run.
#[derive(Clone, Copy, PartialEq)]
enum Choice {
    All,
    /// Those that have something that no earlier one has.
    New,
}

/// Runs models.
fn run(backend: &OpenVino, choice: Choice) -> Vec<(String, State)> {
    let only = std::env::var(ONLY).unwrap_or_default();
    let models = zoo::models().into_iter().filter(|model| {
        ARCHITECTURES.iter().any(|row| row.name == model.architecture()) && model.name.contains(&only)
    });
    let mut seen = HashSet::new();
    models
        .filter(|model| {
            let new = ways(&graph_of(model)).into_iter().filter(|way| seen.insert(way.clone())).count();
            choice == Choice::All || new > 0
        })
        .map(|model| {
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| state(backend, &model)));
            let found = found.unwrap_or_else(|panic| {
                State::Wrong(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "panic".to_owned()))
            });
            (model.name, found)
        })
        .collect()
}

fn assert_right(found: &[(String, State)]) {
    let wrong: Vec<String> = found
        .iter()
        .filter_map(|(name, state)| match state {
            State::Wrong(reason) => Some(format!("{name}: {reason}")),
            _ => None,
        })
        .collect();
    assert!(!found.is_empty());
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), found.len(), wrong.join("\n"));
}

/// The table of `docs/openvino.md`.
fn table(found: &[(String, State)]) -> String {
    let whole = found.iter().filter(|(_, state)| matches!(state, State::Right)).count();
    let mut text =
        format!("{whole} of {} run wholly on OpenVINO.\n\n| model | state |\n| --- | --- |\n", found.len());
    for (name, state) in found {
        let state = match state {
            State::Right => "whole".to_owned(),
            State::Partly(op) => format!("`{op}` runs on the CPU back end"),
            State::Wrong(_) => "wrong".to_owned(),
        };
        let _ = writeln!(text, "| {name} | {state} |");
    }
    text
}

/// Which lets a compiled model be used without a translation. Nothing of OpenVINO is needed.
#[test]
fn names_of_inputs_and_outputs_say_what_they_are() {
    for model in zoo::models() {
        if !ARCHITECTURES.iter().any(|row| row.name == model.architecture()) {
            continue;
        }
        let (file, graph) = (Arc::new(model.open()), Arc::new(graph_of(&model)));
        let weights: Arc<dyn WeightSource> = Arc::new(FileWeights::new(file, graph.clone()));
        let is_elsewhere = |node: usize| usize::from(unsupported(&graph, node).is_some());
        let segments = partition(&graph, is_elsewhere).into_iter().filter(|(device, _)| *device == 0);
        for (_, segment) in segments {
            for form in [CacheForm::Host, CacheForm::Stateful, CacheForm::Paged] {
                let right = translate(&segment, &weights, &Choices { form, ..Choices::default() }).interface;
                let feeds: Vec<String> = right.feeds.iter().map(Feed::name).collect();
                let products: Vec<String> = right.products.iter().map(|product| product.name()).collect();
                let found = Interface::named(&segment, &weights, &feeds, &products);
                assert_eq!(found, Some(right), "{} {form:?}", model.name);
            }
        }
    }
}

#[test]
fn logits_equal_the_recorded_ones() {
    let Some((backend, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let found = run(&backend, Choice::All);
    assert_right(&found);
    if std::env::var(ONLY).is_ok() {
        return;
    }
    let whole = found.iter().filter(|(_, state)| matches!(state, State::Right)).count();
    assert!(5 * whole >= 4 * found.len(), "only {whole} of {} run wholly on OpenVINO", found.len());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openvino.md");
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let (begin, end) = ("<!-- zoo -->\n", "<!-- /zoo -->\n");
    let (before, rest) = page.split_once(begin).expect("the page has a place for the table");
    let (old, after) = rest.split_once(end).expect("the table ends");
    let new = table(&found);
    if std::env::var(WRITE).is_ok() {
        std::fs::write(&path, format!("{before}{begin}{new}{end}{after}")).expect("the page is written");
        return;
    }
    // The page may lack models, but promises nothing that does not hold.
    for line in old.lines().filter(|line| line.ends_with(" | whole |")) {
        assert!(new.contains(line), "docs/openvino.md is old: run this test with {WRITE}=1; it says {line}");
    }
}

#[test]
fn pages_give_the_same() {
    let Some((backend, _)) = common::start_with_shim(&[common::EXACT]) else { return };
    assert_right(&run(&backend, Choice::New));
}

#[test]
fn a_cache_in_the_model_gives_the_same() {
    let variable = ("GGML_OPENVINO_STATEFUL_EXECUTION", "1");
    let Some((backend, _)) = common::start(&[common::EXACT, common::NO_SHIM, variable]) else { return };
    assert_right(&run(&backend, Choice::New));
}

#[test]
fn fixed_extents_give_the_same() {
    let variables = [
        common::EXACT,
        common::NO_SHIM,
        ("GGML_OPENVINO_FORCE_STATIC", "1"),
        // A prompt of 24 tokens is a full chunk and a padded one.
        ("GGML_OPENVINO_PREFILL_CHUNK_SIZE", "16"),
    ];
    let Some((backend, _)) = common::start(&variables) else { return };
    assert_right(&run(&backend, Choice::New));
}

#[test]
fn attention_as_products_gives_the_same() {
    let variable = ("GGML_OPENVINO_MANUAL_GQA_ATTN", "1");
    let Some((backend, _)) = common::start(&[common::EXACT, common::NO_SHIM, variable]) else { return };
    assert_right(&run(&backend, Choice::New));
}
