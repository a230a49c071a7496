//! The engine on real graphs: zoo models on the evaluator, against recorded continuations.

mod common;

use std::sync::Arc;

use common::{collect, greedy};
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::zoo::{self, ZooModel};
use puna_engine::{Engine, EngineOptions, Request};
use puna_runtime::{Model, ModelOptions, Placement};

fn start(zoo: &ZooModel, sequences: u32, context: u32, step_tokens: u32) -> Engine {
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Reference)];
    let options = ModelOptions { context, sequences, outputs: sequences, ..ModelOptions::default() };
    let model = Model::load(Arc::new(zoo.open()), &backends, &Placement::default(), &options, &mut |_| true);
    Engine::start(
        model.unwrap(),
        EngineOptions { step_tokens, context_shift: true, ..EngineOptions::default() },
    )
    .expect("starts")
}

/// Models of the architectures that exist, with full and with windowed caches.
fn chosen() -> Vec<ZooModel> {
    let known = ["llama-dense", "qwen3-dense", "gemma3-dense", "gemma3-window8"];
    let models: Vec<ZooModel> =
        zoo::models().into_iter().filter(|model| known.contains(&model.name.as_str())).collect();
    assert_eq!(models.len(), known.len());
    models
}

#[test]
fn continuations_equal_the_recorded_ones() {
    for zoo in chosen() {
        let count = zoo.greedy.len() as i32;
        for step_tokens in [512, 5] {
            let engine = start(&zoo, 3, 256, step_tokens);
            // Three at once, the prompt in one step and in several; then once more from the reused prompt.
            let receivers = [0, 1, 2].map(|_| engine.submit(greedy(&zoo.tokens, count)).1);
            for receiver in receivers {
                let found = collect(receiver);
                assert_eq!(found.tokens, zoo.greedy, "{} by {step_tokens}: {:?}", zoo.name, found.error);
            }
            let again = collect(engine.submit(greedy(&zoo.tokens, count)).1);
            assert_eq!(again.tokens, zoo.greedy, "{} again", zoo.name);
        }
    }
}

#[test]
fn a_saved_sequence_goes_on_in_another_engine() {
    for zoo in chosen() {
        let count = zoo.greedy.len() as i32;
        let first = start(&zoo, 1, 256, 512);
        collect(first.submit(greedy(&zoo.tokens, 5)).1);
        let saved = first.save(0).unwrap();
        drop(first);
        let second = start(&zoo, 1, 256, 512);
        let tokens = second.restore(0, saved.clone()).unwrap();
        assert_eq!(tokens.len(), zoo.tokens.len() + 4);
        let prompt: Vec<u32> = zoo.tokens.iter().chain(&zoo.greedy[..5]).copied().collect();
        let found = collect(second.submit(greedy(&prompt, count - 5)).1);
        assert_eq!(found.end.unwrap().1.cached_tokens, tokens.len(), "{}", zoo.name);
        assert_eq!(found.tokens, zoo.greedy[5..], "{}", zoo.name);
        // A damaged file is refused and leaves the sequence usable.
        let mut damaged = saved;
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        assert!(second.restore(0, damaged).is_err());
        let again = collect(second.submit(greedy(&zoo.tokens, count)).1);
        assert_eq!(again.tokens, zoo.greedy, "{}", zoo.name);
    }
}

#[test]
fn generation_goes_on_beyond_the_context() {
    for zoo in chosen() {
        let engine = start(&zoo, 1, 32, 16);
        let found = collect(engine.submit(Request { keep: 4, ..greedy(&zoo.tokens, 60) }).1);
        assert_eq!(found.tokens.len(), 60, "{}: {:?}", zoo.name, found.error);
        assert!(engine.held(0).unwrap().len() <= 32);
        let fresh = collect(engine.submit(greedy(&zoo.tokens, 8)).1);
        assert_eq!(fresh.tokens, zoo.greedy[..8], "{} after shifts", zoo.name);
    }
}

#[test]
fn a_text_that_outgrows_a_short_one_is_computed_anew() {
    let found = zoo::models().into_iter().find(|model| model.name == "phi3-longrope-long");
    let zoo = found.expect("the model is there");
    // The longest short text has 128 tokens.
    let prompt: Vec<u32> = (0..120).map(|index| (index * 37 + 11) % 128).collect();
    let engine = start(&zoo, 1, 256, 50);
    let found = collect(engine.submit(greedy(&prompt, 16)).1);
    assert_eq!(found.tokens.len(), 16, "{:?}", found.error);
    let mut text = prompt;
    for token in found.tokens {
        // Each token follows from all before it, computed at once.
        let fresh = start(&zoo, 1, 256, 512);
        let next = collect(fresh.submit(greedy(&text, 1)).1);
        assert_eq!(next.tokens, [token], "after {} tokens", text.len());
        text.push(token);
    }
    // A short text does not go on from a long one's beginning.
    let short = collect(engine.submit(greedy(&text[..60], 3)).1);
    let fresh = collect(start(&zoo, 1, 256, 512).submit(greedy(&text[..60], 3)).1);
    assert_eq!(short.tokens, fresh.tokens);
    assert_eq!(short.end.expect("it ends").1.cached_tokens, 0);
}
