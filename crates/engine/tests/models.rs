//! The engine on real graphs: zoo models on the evaluator, against recorded continuations.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{collect, greedy, restore, save};
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::zoo::{self, ZooModel};
use puna_engine::{Aids, DiskCache, Engine, EngineOptions, Request};
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Placement, Work};

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
        let saved = save(&first, 0).unwrap();
        drop(first);
        let second = start(&zoo, 1, 256, 512);
        let tokens = restore(&second, 0, &saved).unwrap();
        assert_eq!(tokens.len(), zoo.tokens.len() + 4);
        let prompt: Vec<u32> = zoo.tokens.iter().chain(&zoo.greedy[..5]).copied().collect();
        let found = collect(second.submit(greedy(&prompt, count - 5)).1);
        assert_eq!(found.end.unwrap().1.cached_tokens, tokens.len(), "{}", zoo.name);
        assert_eq!(found.tokens, zoo.greedy[5..], "{}", zoo.name);
        // A damaged file is refused and leaves the sequence usable.
        let mut damaged = saved;
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        assert!(restore(&second, 0, &damaged).is_err());
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

/// An engine of one sequence that keeps what it held in memory, or in a folder.
fn keeping(zoo: &ZooModel, folder: Option<&Path>) -> Engine {
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Reference)];
    let options = ModelOptions { context: 256, sequences: 1, outputs: 1, ..ModelOptions::default() };
    let model = Model::load(Arc::new(zoo.open()), &backends, &Placement::default(), &options, &mut |_| true);
    let store_bytes = if folder.is_none() { 1 << 24 } else { 0 };
    let disk = folder.map(|folder| DiskCache::open(folder, 1 << 24, Box::new(|_| ())).expect("a folder"));
    let options = EngineOptions { store_bytes, ..EngineOptions::default() };
    Engine::start_with(model.unwrap(), options, Aids { disk, ..Aids::default() }).expect("starts")
}

#[test]
fn prompts_come_back_as_far_as_recurrent_states_allow() {
    let models = zoo::models();
    // The state four tokens before a prompt's end is kept, the one at its end, and the newest.
    let recurrent = ["mamba-dense", "falcon-h1-dense", "qwen35-heads"].map(|name| (name, 56));
    for (name, before_end) in recurrent.into_iter().chain([("llama-dense", 59), ("gemma3-window8", 59)]) {
        let zoo = models.iter().find(|model| model.name == name).expect("the zoo has it");
        let prompt = |factor: u32| (0..60).map(|place| (place * factor + factor) % 100).collect::<Vec<u32>>();
        let (first, others) = (prompt(37), [prompt(29), prompt(31), prompt(41)]);
        let fresh = |text: &[u32]| collect(start(zoo, 1, 256, 512).submit(greedy(text, 8)).1).tokens;
        let answer = fresh(&first);
        let other_end = [&first[..], &[1, 2, 3]].concat();
        let next_turn = [&first[..], &answer[..7], &[5, 6]].concat();
        let folder = tempfile::tempdir().unwrap();
        for folder in [None, Some(folder.path())] {
            let mut engine = keeping(zoo, folder);
            let ask = |engine: &Engine, text: &[u32]| {
                let found = collect(engine.submit(greedy(text, 8)).1);
                (found.end.expect("it ends").1.cached_tokens, found.tokens)
            };
            assert_eq!(ask(&engine, &first), (0, answer.clone()), "{name}");
            for (text, cached) in
                [(&first, before_end), (&other_end, 60), (&next_turn, 67), (&first, before_end)]
            {
                others.iter().for_each(|other| drop(ask(&engine, other)));
                if folder.is_some() {
                    drop(engine);
                    engine = keeping(zoo, folder);
                }
                assert_eq!(ask(&engine, text), (cached, fresh(text)), "{name} {} {folder:?}", text.len());
            }
        }
    }
}

/// Recurrent and hybrid models, positions that are learned, a norm after the rotation, and two kinds of texts.
const UNSHIFTABLE: [&str; 6] =
    ["mamba-dense", "falcon-h1-dense", "qwen35-heads", "gpt2-dense", "maincoder-dense", "phi3-longrope-long"];

#[test]
fn models_that_cannot_be_shifted_compute_the_rest_anew() {
    let models = zoo::models();
    for name in UNSHIFTABLE {
        let zoo = models.iter().find(|model| model.name == name).expect("the zoo has it");
        // Longer than the longest short text, where that makes a difference.
        let context = if name.contains("longrope") { 160 } else { 40 };
        let prompt: Vec<u32> = zoo.tokens.iter().cycle().take(context as usize - 8).copied().collect();
        let engine = start(zoo, 1, context, 64);
        let found = collect(engine.submit(Request { keep: 4, ..greedy(&prompt, 20) }).1);
        assert_eq!(found.tokens.len(), 20, "{name}: {:?}", found.error);
        // When it was full, half of what follows the first four tokens went.
        let full = [&prompt[..], &found.tokens].concat()[..context as usize + 1].to_vec();
        let discard = (context as usize - 4) / 2;
        let left = [&full[..4], &full[4 + discard..]].concat();
        let rest = &found.tokens[9..];
        let fresh = collect(start(zoo, 1, context, 64).submit(greedy(&left, rest.len() as i32)).1);
        assert_eq!(rest, fresh.tokens, "{name}");
    }
}

#[test]
fn a_text_that_outgrows_a_short_one_is_computed_anew() {
    let found = zoo::models().into_iter().find(|model| model.name == "phi3-longrope-long");
    let zoo = found.expect("the model is there");
    // The longest short text has 128 tokens.
    let prompt: Vec<u32> = (0..126).map(|index| (index * 37 + 11) % 128).collect();
    let engine = start(&zoo, 1, 256, 50);
    let found = collect(engine.submit(greedy(&prompt, 6)).1);
    assert_eq!(found.tokens.len(), 6, "{:?}", found.error);
    let text = [prompt, found.tokens].concat();
    // The tokens before and after the change follow from all before them, computed at once.
    for length in [128, 129, 131] {
        let fresh = start(&zoo, 1, 256, 512);
        let next = collect(fresh.submit(greedy(&text[..length], 1)).1);
        assert_eq!(next.tokens, [text[length]], "after {length} tokens");
    }
    // A short text does not go on from a long one's beginning.
    let short = collect(engine.submit(greedy(&text[..40], 3)).1);
    let fresh = collect(start(&zoo, 1, 256, 512).submit(greedy(&text[..40], 3)).1);
    assert_eq!(short.tokens, fresh.tokens);
    assert_eq!(short.end.expect("it ends").1.cached_tokens, 0);
}

#[test]
fn an_encoder_reads_the_prompt_and_the_decoder_answers() {
    let models = zoo::embedding_models();
    let models: Vec<_> = models.iter().filter(|model| model.architecture() == "t5").collect();
    assert_eq!(models.len(), 2);
    for zoo in models {
        let load = |sequences| {
            let backends: [Arc<dyn Backend>; 1] = [Arc::new(Reference)];
            let options = ModelOptions { context: 64, sequences, ..ModelOptions::default() };
            let file = Arc::new(zoo.open());
            Model::load(file, &backends, &Placement::default(), &options, &mut |_| true).expect("loads")
        };
        let answer = |prompt: &[u32]| {
            let mut model = load(1);
            model.encode(0, prompt).expect("the encoder reads");
            let (mut next, mut found) = (model.information().decoder_start, Vec::new());
            for _ in 0..6 {
                let work = Work { sequence: 0, tokens: vec![next], outputs: OutputRows::Last };
                let outputs = model.run(&Batch::of(vec![work])).expect("the decoder runs");
                let logits = outputs.row(0);
                let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
                next = best.expect("there are logits") as u32;
                found.push(next);
            }
            found
        };
        let engine = Engine::start(load(2), EngineOptions::default()).expect("starts");
        let prompts = [&zoo.tokens[..], &zoo.tokens[3..9], &zoo.tokens[..]];
        let receivers = prompts.map(|prompt| engine.submit(greedy(prompt, 6)).1);
        for (receiver, prompt) in receivers.into_iter().zip(prompts) {
            let found = collect(receiver);
            assert_eq!(found.tokens, answer(prompt), "{}: {:?}", zoo.name, found.error);
        }
    }
}
