//! What slots held before is kept in memory and used again.

mod arithmetic;
mod common;

use arithmetic::*;
use common::*;
use puna_engine::{Engine, EngineOptions, Request};

fn prompt(start: u32, count: u32) -> Vec<u32> {
    (0..count).map(|index| (start + index * 7) % 40).collect()
}

fn engine(model: Arithmetic, store_bytes: usize) -> Engine {
    let options = EngineOptions { step_tokens: 16, store_bytes, ..EngineOptions::default() };
    Engine::start(model, options).expect("starts")
}

/// Asks, checks the answer, and returns how many tokens came from the cache.
#[track_caller]
fn ask(engine: &Engine, request: Request) -> usize {
    let wanted = expected(&request.prompt, request.predict as usize);
    let found = collect(engine.submit(request).1);
    assert_eq!(found.tokens, wanted, "{found:?}");
    found.end.unwrap().1.cached_tokens
}

#[test]
fn prompts_come_back_after_others_had_the_slot() {
    for (bytes, again) in [(0, 0), (10_000, 29)] {
        let engine = engine(Arithmetic::new(64, 1), bytes);
        let (one, two) = (prompt(0, 30), prompt(5, 30));
        assert_eq!(ask(&engine, greedy(&one, 4)), 0);
        assert_eq!(ask(&engine, greedy(&two, 4)), 0);
        assert_eq!(ask(&engine, greedy(&one, 4)), again);
        assert_eq!(ask(&engine, greedy(&two, 4)), again);
        // A longer prompt goes on from all that was held: the prompt and the answer but for its last token.
        let mut more = one.clone();
        more.extend(expected(&one, 4));
        more.extend([1, 2, 3]);
        assert_eq!(ask(&engine, greedy(&more, 4)), if bytes > 0 { 33 } else { 0 });
        // A part of it, too.
        assert_eq!(ask(&engine, greedy(&two[..20], 4)), if bytes > 0 { 19 } else { 0 });
        // Whoever wants no reuse gets none.
        assert_eq!(ask(&engine, Request { reuse: false, ..greedy(&one, 4) }), 0);
    }
}

#[test]
fn the_store_is_bounded() {
    // One of 33 tokens takes 165 bytes.
    let engine = engine(Arithmetic::new(64, 1), 400);
    let prompts: Vec<Vec<u32>> = (0..4).map(|start| prompt(start, 30)).collect();
    for prompt in &prompts {
        assert_eq!(ask(&engine, greedy(prompt, 4)), 0);
    }
    // The slot has the last one, the store the two before it.
    assert_eq!(ask(&engine, greedy(&prompts[0], 4)), 0);
    assert_eq!(ask(&engine, greedy(&prompts[3], 4)), 29);
}

#[test]
fn cells_taken_from_idle_sequences_are_kept() {
    // Cells for one and a half of three sequences.
    let engine = engine(Arithmetic { cells: 100, ..Arithmetic::new(64, 3) }, 100_000);
    let prompts: Vec<Vec<u32>> = (0..6).map(|start| prompt(start, 40)).collect();
    for prompt in &prompts {
        assert_eq!(ask(&engine, greedy(prompt, 4)), 0);
    }
    for prompt in prompts.iter().chain(&prompts) {
        assert_eq!(ask(&engine, greedy(prompt, 4)), 39);
    }
}

#[test]
fn a_panic_empties_the_store() {
    let engine = engine(Arithmetic::new(64, 1), 10_000);
    let (one, two) = (prompt(0, 30), prompt(5, 30));
    ask(&engine, greedy(&one, 4));
    ask(&engine, greedy(&two, 4));
    let failed = collect(engine.submit(greedy(&[PANICS], 4)).1);
    assert!(failed.error.is_some_and(|error| error.contains("internal error")));
    assert_eq!(ask(&engine, greedy(&one, 4)), 0);
    assert_eq!(ask(&engine, greedy(&one, 4)), 29);
}
