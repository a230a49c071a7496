//! Requests that want adapters to count differently, at the same time and one after another.

mod common;

use std::sync::Arc;

use common::{Collected, collect, greedy, restore, save};
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::zoo;
use puna_engine::{Engine, EngineOptions, Request};
use puna_runtime::{Adapter, Extras, Model, ModelOptions, Placement};

/// An engine of a model with two adapters, and a prompt.
fn start(sequences: u32) -> (Engine, Vec<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let zoo = zoo::models().into_iter().find(|zoo| zoo.name == "llama-dense").unwrap();
    let file = Arc::new(zoo.open());
    let adapters = [1.0, 1.7].map(|seed| {
        let path = folder.path().join(format!("adapter{seed}.gguf"));
        puna_conformance::write_adapter(&file, &path, seed);
        Adapter::open(&path, 1.0).unwrap()
    });
    let extras = Extras { adapters: adapters.to_vec(), switchable: true, ..Extras::default() };
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Reference)];
    let options = ModelOptions { context: 256, sequences, outputs: sequences, ..ModelOptions::default() };
    let watch = |_: &_| Vec::new();
    let model =
        Model::load_with(file, &backends, &Placement::default(), &options, &extras, &watch, &mut |_| true);
    let options = EngineOptions { step_tokens: 8, store_bytes: 1 << 24, ..EngineOptions::default() };
    (Engine::start(model.unwrap(), options).unwrap(), zoo.tokens.clone())
}

fn request(prompt: &[u32], strengths: [f32; 2]) -> Request {
    Request { adapters: strengths.into(), ..greedy(prompt, 12) }
}

fn cached(found: &Collected) -> usize {
    found.end.as_ref().unwrap().1.cached_tokens
}

const STRENGTHS: [[f32; 2]; 4] = [[1.0, 1.0], [0.0, 0.0], [8.0, 0.0], [0.0, -8.0]];

#[test]
fn neighbours_with_other_adapters_change_nothing() {
    let alone = STRENGTHS.map(|strengths| {
        let (engine, prompt) = start(1);
        let found = collect(engine.submit(request(&prompt, strengths)).1);
        assert_eq!(found.error, None);
        found.tokens
    });
    assert!(
        alone.iter().skip(2).all(|tokens| *tokens != alone[1]),
        "the adapters change something: {alone:?}"
    );
    let (engine, prompt) = start(3);
    for _ in 0..2 {
        let receivers: Vec<_> =
            (0..12).map(|index| engine.submit(request(&prompt, STRENGTHS[index % 4])).1).collect();
        for (index, receiver) in receivers.into_iter().enumerate() {
            let found = collect(receiver);
            assert_eq!((found.error, &found.tokens), (None, &alone[index % 4]), "{index}");
        }
    }
}

#[test]
fn only_equal_adapters_share_a_beginning() {
    let (engine, prompt) = start(1);
    let ask = |strengths| collect(engine.submit(request(&prompt, strengths)).1);
    let first = ask([1.0, 0.0]);
    assert_eq!(cached(&first), 0);
    assert_eq!(cached(&ask([1.0, 0.0])), prompt.len() - 1);
    assert_eq!(cached(&ask([0.5, 0.0])), 0);
    // What the slot held was saved and comes back, with its strengths only.
    let back = ask([1.0, 0.0]);
    assert_eq!((cached(&back), &back.tokens), (prompt.len() - 1, &first.tokens));
    // A request that names none takes the sequence as it is.
    let plain = collect(engine.submit(greedy(&prompt, 12)).1);
    assert_eq!((cached(&plain), &plain.tokens), (prompt.len() - 1, &first.tokens));
    let wrong = collect(engine.submit(Request { adapters: [1.0].into(), ..greedy(&prompt, 1) }).1);
    assert!(wrong.error.unwrap().contains("adapters"));
    assert_eq!(ask([1.0, 0.0]).tokens, first.tokens);
}

#[test]
fn saved_sequences_keep_their_adapters() {
    let (engine, prompt) = start(2);
    let in_slot = |sequence| Request { sequence: Some(sequence), ..request(&prompt, [0.5, 2.0]) };
    let first = collect(engine.submit(in_slot(0)).1);
    let bytes = save(&engine, 0).unwrap();
    // The other slot is of a model as it was loaded.
    assert!(restore(&engine, 1, &bytes).is_err());
    engine.clear(0).unwrap();
    restore(&engine, 0, &bytes).unwrap();
    let again = collect(engine.submit(in_slot(0)).1);
    assert_eq!((cached(&again), &again.tokens), (prompt.len() - 1, &first.tokens));
    // Unless it is told; a sequence that is refused changes nothing.
    assert!(engine.restore(1, &mut &[1, 2, 3][..], 3, [0.5, 2.0].into()).is_err());
    engine.restore(1, &mut &bytes[..], bytes.len() as u64, [0.5, 2.0].into()).unwrap();
    let there = collect(engine.submit(in_slot(1)).1);
    assert_eq!((cached(&there), there.tokens), (prompt.len() - 1, first.tokens));
}
