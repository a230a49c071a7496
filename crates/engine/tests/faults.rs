//! Faults that other engines had, each with its number in the list of known faults, on zoo models.

mod arithmetic;
mod common;

use std::sync::Arc;

use arithmetic::Arithmetic;
use common::{Collected, collect, greedy, restore, save};
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::zoo::{self, ZooModel};
use puna_engine::{Engine, EngineOptions, FinishReason};
use puna_runtime::{Model, ModelOptions, Placement};

fn model(name: &str) -> ZooModel {
    zoo::models().into_iter().find(|model| model.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn start(zoo: &ZooModel, sequences: u32, context: u32, options: EngineOptions) -> Engine {
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Reference)];
    let model_options = ModelOptions { context, sequences, outputs: sequences, ..ModelOptions::default() };
    let file = Arc::new(zoo.open());
    let model = Model::load(file, &backends, &Placement::default(), &model_options, &mut |_| true);
    Engine::start(model.unwrap(), options).expect("starts")
}

fn shifting() -> EngineOptions {
    EngineOptions { step_tokens: 16, context_shift: true, ..EngineOptions::default() }
}

fn ask(engine: &Engine, prompt: &[u32], count: i32) -> Collected {
    let found = collect(engine.submit(greedy(prompt, count)).1);
    assert!(found.error.is_none(), "{found:?}");
    found
}

/// What a new engine answers.
fn fresh(zoo: &ZooModel, prompt: &[u32], count: i32) -> Vec<u32> {
    ask(&start(zoo, 1, 256, shifting()), prompt, count).tokens
}

fn cached(found: &Collected) -> usize {
    found.end.unwrap().1.cached_tokens
}

#[test]
fn a21_recurrent_models_answer_again_and_again() {
    for name in ["mamba-dense", "rwkv7-dense", "falcon-h1-dense"] {
        let zoo = model(name);
        let engine = start(&zoo, 1, 256, shifting());
        let other: Vec<u32> = zoo.tokens.iter().rev().copied().collect();
        let (answer, answer_to_other) = (fresh(&zoo, &zoo.tokens, 8), fresh(&zoo, &other, 6));
        for _ in 0..2 {
            assert_eq!(ask(&engine, &zoo.tokens, 6).tokens, answer[..6], "{name}");
            assert_eq!(ask(&engine, &zoo.tokens, 6).tokens, answer[..6], "{name} again");
            // It goes on from the answer, then differs from the start.
            let longer = [&zoo.tokens[..], &answer[..6]].concat();
            assert_eq!(ask(&engine, &longer, 2).tokens, answer[6..], "{name} longer");
            assert_eq!(ask(&engine, &other, 6).tokens, answer_to_other, "{name} other");
        }
    }
}

#[test]
fn k01_shifts_end_where_they_shall() {
    let zoo = model("llama-dense");
    let engine = start(&zoo, 1, 48, shifting());
    let found = ask(&engine, &zoo.tokens, 300);
    assert_eq!((found.tokens.len(), found.end.unwrap().0), (300, FinishReason::Length));
    let still = EngineOptions { context_shift: false, ..shifting() };
    let found = ask(&start(&zoo, 1, 48, still), &zoo.tokens, 300);
    assert_eq!((found.tokens.len(), found.end.unwrap().0), (48 - zoo.tokens.len() + 1, FinishReason::Length));
}

#[test]
fn k02_models_that_cannot_shift_end_with_length() {
    for name in ["deepseek2-yarn", "mamba-dense", "falcon-h1-dense"] {
        let zoo = model(name);
        let engine = start(&zoo, 1, 48, shifting());
        let found = ask(&engine, &zoo.tokens, 300);
        assert_eq!(found.end.unwrap().0, FinishReason::Length, "{name}");
        assert!((25..=300).contains(&found.tokens.len()), "{name}: {}", found.tokens.len());
        assert_eq!(ask(&engine, &zoo.tokens, 4).tokens, fresh(&zoo, &zoo.tokens, 4), "{name} afterwards");
    }
}

#[test]
fn k05_turns_go_on_from_what_is_there() {
    // The same prompt, a longer conversation, another last message.
    for name in ["gemma3-window8", "gemma2-window8", "falcon-h1-dense", "mamba-dense"] {
        let zoo = model(name);
        let engine = start(&zoo, 1, 512, EngineOptions { step_tokens: 16, ..EngineOptions::default() });
        let prompt: Vec<u32> = zoo.tokens.iter().cycle().take(160).copied().collect();
        let answer = ask(&engine, &prompt, 8).tokens;
        let again = ask(&engine, &prompt, 8);
        assert_eq!(again.tokens, answer, "{name}");
        let shared = prompt.len() * 9 / 10;
        assert!(cached(&again) >= shared, "{name}: {} of {shared}", cached(&again));
        let appended = [&prompt[..], &answer, &zoo.tokens].concat();
        let longer = ask(&engine, &appended, 8);
        assert!(cached(&longer) >= (prompt.len() + 8) * 9 / 10, "{name}: {}", cached(&longer));
        // The last message of ten tokens differs: what comes before it is shared.
        let mut edited = appended.clone();
        let from = edited.len() - 10;
        edited[from..].reverse();
        let found = ask(&engine, &edited, 8);
        assert!(cached(&found) >= from * 9 / 10, "{name}: {} of {from}", cached(&found));
        assert_eq!(found.tokens, fresh(&zoo, &edited, 8), "{name}");
    }
}

#[test]
fn k07_a_damaged_sequence_changes_nothing() {
    let zoo = model("llama-dense");
    let engine = start(&zoo, 2, 256, shifting());
    ask(&engine, &zoo.tokens, 4);
    let saved = save(&engine, 0).unwrap();
    for place in 0..100 {
        let mut damaged = saved.clone();
        damaged[place * saved.len() / 100] ^= 1 << (place % 8);
        assert!(restore(&engine, 1, &damaged).is_err(), "{place}");
    }
    assert_eq!(ask(&engine, &zoo.tokens, 8).tokens, zoo.greedy[..8]);
    restore(&engine, 1, &saved).unwrap();
    assert_eq!(ask(&engine, &zoo.tokens, 8).tokens, zoo.greedy[..8]);
}

#[test]
fn k08_restored_sequences_are_used() {
    for name in ["llama-dense", "gemma3-window8", "falcon-h1-dense"] {
        let zoo = model(name);
        let first = start(&zoo, 1, 256, shifting());
        let answer = ask(&first, &zoo.tokens, 6).tokens;
        let (saved, held) = (save(&first, 0).unwrap(), first.held(0).unwrap());
        drop(first);
        let second = start(&zoo, 1, 256, shifting());
        assert_eq!(restore(&second, 0, &saved).unwrap(), held);
        let longer = [&zoo.tokens[..], &answer].concat();
        let found = ask(&second, &longer, 2);
        let whole = fresh(&zoo, &zoo.tokens, 8);
        assert_eq!((cached(&found), &found.tokens[..]), (held.len(), &whole[6..]), "{name}");
    }
}

#[test]
fn k11_k13_neighbours_and_steps_do_not_change_the_text() {
    let zoo = model("llama-dense");
    for step_tokens in [1, 7, 23, 24, 25, 512] {
        let options = EngineOptions { step_tokens, ..EngineOptions::default() };
        let engine = start(&zoo, 8, 512, options);
        // Ragged: beginnings of the prompt, which go on as it does if they are long enough to be known.
        let alone: Vec<Vec<u32>> = (1..=8)
            .map(|length| ask(&start(&zoo, 1, 512, options), &zoo.tokens[..3 * length], 6).tokens)
            .collect();
        let receivers: Vec<_> =
            (1..=8).map(|length| engine.submit(greedy(&zoo.tokens[..3 * length], 6)).1).collect();
        for (receiver, alone) in receivers.into_iter().zip(alone) {
            assert_eq!(collect(receiver).tokens, alone, "{step_tokens}");
        }
        assert_eq!(ask(&engine, &zoo.tokens, 8).tokens, zoo.greedy[..8], "{step_tokens}");
    }
}

#[test]
fn a08_one_token_and_strict_beginnings() {
    let engine = Engine::start(Arithmetic::new(64, 1), EngineOptions::default()).unwrap();
    for (prompt, wanted) in [(&[1, 2, 3][..], 0), (&[1, 2, 3], 2), (&[1, 2], 1), (&[1], 0), (&[1], 0)] {
        let found = ask(&engine, prompt, 3);
        assert_eq!((cached(&found), found.tokens), (wanted, arithmetic::expected(prompt, 3)), "{prompt:?}");
    }
}
