//! Models in several segments on one device: they share weights, caches and work space, and compute what the whole does.

mod emulated;

use std::sync::Arc;

use emulated::device;
use puna_backend::DeviceId;
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_graph::Op;
use puna_models::{BuildOptions, build};
use puna_quant::DType;

#[test]
fn segments_compute_what_the_whole_model_does() {
    let Some(backend) = device() else { return };
    for name in ["llama-gqa4-tied", "granite-moe", "gemma4-e-dense", "lfm2moe-top2"] {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model");
        let file = Arc::new(model.open());
        let options = BuildOptions { context: 64, ..BuildOptions::default() };
        let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
        let tokens = &model.tokens[..7];
        let layer = |node: usize| graph.nodes[node].layer.map_or(0, |layer| 1 + layer as usize);
        let experts =
            |node: usize| usize::from(matches!(graph.nodes[node].op, Op::MatMulExperts(_) | Op::Glu(_)));
        let attention =
            |node: usize| usize::from(matches!(graph.nodes[node].op, Op::Attention(_) | Op::Rope(_)));
        let load = |part: &dyn Fn(usize) -> usize| {
            SingleSequence::load_cut(&*backend, file.clone(), graph.clone(), DType::F32, 16, part)
        };
        let run = |mut sequence: SingleSequence| {
            let mut logits = sequence.push(&tokens[..4]);
            tokens[4..].iter().for_each(|token| logits.extend(sequence.push(&[*token])));
            logits
        };
        let expected = run(load(&|_| 0));
        for (way, part) in
            [("layers", &layer as &dyn Fn(usize) -> usize), ("experts", &experts), ("attention", &attention)]
        {
            let error = normalised_squared_error(&run(load(part)), &expected);
            assert!(error < 1e-6, "{name} by {way}: {error:e}");
        }
    }
}

#[test]
fn a_device_shows_that_it_can_be_used() {
    let Some(backend) = device() else { return };
    let free = backend.inspect(DeviceId(0)).expect("it can");
    let memory = backend.devices().first().and_then(|device| device.memory);
    // The emulation has no memory of its own.
    assert_eq!(free.is_some(), memory.is_some());
    assert!(free <= memory, "{free:?} of {memory:?}");
}
