//! Tokens after the first ones take no memory, neither on the device nor for copies from it.

mod emulated;

use std::sync::Arc;

use emulated::device;
use puna_conformance::run::SingleSequence;
use puna_conformance::zoo;
use puna_gpu::allocations;
use puna_models::{BuildOptions, build};
use puna_quant::DType;

#[test]
fn nothing_is_allocated_for_a_token() {
    let Some(backend) = device() else { return };
    let model = zoo::models().into_iter().find(|model| model.name == "llama-dense").expect("a zoo model");
    let file = Arc::new(model.open());
    let options = BuildOptions { context: 64, ..BuildOptions::default() };
    let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
    let before = allocations();
    let mut sequence = SingleSequence::load(&*backend, file, graph, DType::F16, 64);
    let mut push = |count: usize| (0..count).for_each(|_| drop(sequence.push(&model.tokens[..1])));
    push(2);
    let loaded = allocations();
    assert!(loaded > before, "a model takes memory, and the counter shows it");
    push(20);
    assert_eq!(allocations(), loaded);
}
