//! What slots held before is kept in memory and on disk, and used again; parts of it are moved.

mod arithmetic;
mod common;

use arithmetic::*;
use common::*;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use puna_engine::{Aids, DiskCache, Engine, EngineError, EngineOptions, Event, FinishReason, Request};

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
    // One of 33 tokens takes 206 bytes.
    let engine = engine(Arithmetic::new(64, 1), 500);
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

/// Moments at which a request heard of tokens.
fn token_times(engine: &Engine, request: Request) -> std::sync::mpsc::Receiver<Instant> {
    let (sender, times) = std::sync::mpsc::channel();
    let hear = move |event| match event {
        Event::Token { .. } => sender.send(Instant::now()).is_ok(),
        _ => true,
    };
    engine.submit_to(request, Box::new(hear));
    times
}

#[test]
fn nobody_waits_until_a_large_sequence_is_kept_or_fetched() {
    // Keeping or fetching 400 tokens takes 40 parts of 4 milliseconds.
    let folder = tempfile::tempdir().unwrap();
    let part_delay = Duration::from_millis(4);
    let model =
        Arithmetic { part: 10, part_delay, delay: Duration::from_millis(2), ..Arithmetic::new(2000, 2) };
    let options = EngineOptions { step_tokens: 512, store_bytes: 100_000, ..EngineOptions::default() };
    let disk = DiskCache::open(folder.path(), 1_000_000, Box::new(|_| ())).expect("a folder");
    let engine = Engine::start_with(model, options, Aids { disk: Some(disk), ..Aids::default() }).unwrap();
    let other = |request: Request| Request { sequence: Some(1), ..request };
    ask(&engine, other(greedy(&prompt(0, 400), 2)));
    let times = token_times(&engine, Request { sequence: Some(0), ..greedy(&[1, 2, 3], 1500) });
    times.recv().unwrap();
    let start = Instant::now();
    // The slot's 400 tokens are kept; then the next ones, and the first come back; then the sequence is asked for.
    assert_eq!(ask(&engine, other(greedy(&prompt(5, 400), 2))), 0);
    assert_eq!(ask(&engine, other(greedy(&prompt(0, 400), 2))), 399);
    let saved = save(&engine, 1).unwrap();
    assert_eq!(restore(&engine, 1, &saved).unwrap().len(), 401);
    let moved = start.elapsed();
    assert!(moved > 5 * 40 * part_delay, "five times that much was moved: {moved:?}");
    let mut times: Vec<Instant> = times.try_iter().collect();
    times.insert(0, start);
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    // Two parts and a step, and what a busy machine adds; at once it would be 160 milliseconds.
    assert!(longest < Duration::from_millis(120), "{longest:?} of {} tokens", times.len());
    assert!(times.len() > 60, "{} tokens in {moved:?}", times.len());
}

#[test]
fn what_steps_of_others_change_is_saved_again() {
    let model = Arithmetic {
        part: 10,
        restless: true,
        part_delay: Duration::from_millis(1),
        ..Arithmetic::new(2000, 2)
    };
    let engine = engine(model, 100_000);
    let times = token_times(&engine, Request { sequence: Some(0), ..greedy(&[1, 2, 3], 1500) });
    times.recv().unwrap();
    let other = |request: Request| Request { sequence: Some(1), ..request };
    assert_eq!(ask(&engine, other(greedy(&prompt(0, 400), 2))), 0);
    assert_eq!(ask(&engine, other(greedy(&prompt(5, 400), 2))), 0);
    assert_eq!(ask(&engine, other(greedy(&prompt(0, 400), 2))), 399);
}

#[test]
fn requests_that_wait_for_a_copy_can_leave_and_fail() {
    let model = Arithmetic { part: 1, part_delay: Duration::from_millis(3), ..Arithmetic::new(500, 2) };
    let engine = engine(model, 100_000);
    let in_first = |request: Request| Request { sequence: Some(0), ..request };
    ask(&engine, in_first(greedy(&prompt(0, 100), 2)));
    // It takes 300 milliseconds until what the slot holds is kept.
    let start = Instant::now();
    let (id, events) = engine.submit(in_first(greedy(&prompt(5, 100), 2)));
    assert!(matches!(save(&engine, 0), Err(EngineError::Busy { .. })));
    engine.cancel(id);
    let left = collect(events);
    assert!(matches!(left.end, Some((FinishReason::Cancelled, _))), "{left:?}");
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
    // What was kept is there, and the slot's content.
    assert_eq!(ask(&engine, in_first(greedy(&prompt(0, 100), 2))), 99);
    // Whoever asks for the sequence while it is copied waits for that.
    let saving = engine.submit(in_first(greedy(&prompt(9, 100), 2))).1;
    assert_eq!(collect(saving).tokens, expected(&prompt(9, 100), 2));
    // A step of another sequence panics meanwhile: nothing is trusted any more, and the request starts over.
    let waits = engine.submit(in_first(greedy(&prompt(0, 100), 2))).1;
    let failed = collect(engine.submit(Request { sequence: Some(1), ..greedy(&[PANICS], 4) }).1);
    assert!(failed.error.is_some_and(|error| error.contains("internal error")));
    let found = collect(waits);
    assert_eq!((found.tokens, found.end.unwrap().1.cached_tokens), (expected(&prompt(0, 100), 2), 0));
}

/// With a folder and nothing in memory.
fn with_folder(model: Arithmetic, folder: &Path, limit: u64) -> Engine {
    let options = EngineOptions { step_tokens: 16, ..EngineOptions::default() };
    let disk = DiskCache::open(folder, limit, Box::new(|_| ())).expect("a folder");
    let aids = Aids { disk: Some(disk), ..Aids::default() };
    Engine::start_with(model, options, aids).expect("starts")
}

#[test]
fn prompts_come_back_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let prompts: Vec<Vec<u32>> = (0..4).map(|start| prompt(start, 30)).collect();
    let start = || with_folder(Arithmetic::new(64, 2), folder.path(), 100_000);
    let engine = start();
    for prompt in &prompts {
        assert_eq!(ask(&engine, greedy(prompt, 4)), 0);
    }
    // Two are in slots, two on their way to the disk.
    for prompt in &prompts {
        assert_eq!(ask(&engine, greedy(prompt, 4)), 29);
    }
    drop(engine);
    let engine = start();
    for prompt in &prompts {
        assert_eq!(ask(&engine, greedy(prompt, 4)), 29);
    }
    let mut more = prompts[2].clone();
    more.extend(expected(&prompts[2], 4));
    assert_eq!(ask(&engine, greedy(&more, 4)), 33);
    drop(engine);
    // A damaged file is not there; the others are.
    let files = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(files().count(), 4);
    let damaged = files().next().unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    let end = bytes.len() - 1;
    bytes[end] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let engine = start();
    let cached: Vec<usize> = prompts.iter().map(|prompt| ask(&engine, greedy(prompt, 4))).collect();
    assert_eq!(cached.iter().filter(|cached| **cached == 29).count(), 3, "{cached:?}");
    assert_eq!(cached.iter().filter(|cached| **cached == 0).count(), 1, "{cached:?}");
}

#[test]
fn an_idle_engine_needs_no_orderly_end() {
    let folder = tempfile::tempdir().unwrap();
    let engine = with_folder(Arithmetic::new(64, 2), folder.path(), 100_000);
    ask(&engine, greedy(&prompt(0, 30), 4));
    let start = Instant::now();
    let finished = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_string_lossy().ends_with(".sequence")
    };
    while !std::fs::read_dir(folder.path()).unwrap().any(finished) {
        assert!(start.elapsed() < Duration::from_secs(10), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    // As if the program had been killed: nothing of the first engine's end has happened.
    let second = with_folder(Arithmetic::new(64, 2), folder.path(), 100_000);
    assert_eq!(ask(&second, greedy(&prompt(0, 30), 4)), 29);
}

/// Different prompts of the two tests below: the folder has room for about as many.
const DIFFERENT: u32 = 6;

/// Asks for ever, until it is killed. It is this test program, started again by the test below.
#[test]
fn is_killed_by_another_test() {
    let Some(folder) = std::env::var_os("PUNA_TEST_FOLDER") else { return };
    let engine = with_folder(Arithmetic::new(2000, 1), Path::new(&folder), 70_000);
    for start in (0..DIFFERENT).cycle() {
        ask(&engine, greedy(&prompt(start, 1900), 4));
    }
}

#[test]
fn killing_the_program_leaves_nothing_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = 0;
    for round in 0..8 {
        let program = std::env::current_exe().unwrap();
        let started = SystemTime::now();
        let mut child = Command::new(program)
            .args(["--exact", "is_killed_by_another_test", "--test-threads=1"])
            .env("PUNA_TEST_FOLDER", folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Killed some time after it wrote three files: a machine may be slow to start a program.
        let written = || {
            let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
            let times = entries.filter_map(|entry| entry.metadata().ok()?.modified().ok());
            times.filter(|time| *time > started).count() >= 3
        };
        while !written() && started.elapsed().is_ok_and(|waited| waited < Duration::from_secs(20)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20 + 17 * round));
        // On Unix this is signal 9.
        child.kill().unwrap();
        child.wait().unwrap();
        let size: u64 = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        // What was being written when it was killed comes on top.
        assert!(size < 70_000 + 8 * 14_000, "{size}");
        let engine = with_folder(Arithmetic::new(2000, 1), folder.path(), 70_000);
        // Answers are checked, so whatever is served is right.
        served +=
            (0..DIFFERENT).filter(|start| ask(&engine, greedy(&prompt(*start, 1900), 4)) > 1000).count();
    }
    assert!(served > 8, "{served}");
}

#[test]
fn later_parts_of_a_prompt_are_moved() {
    let parts: Vec<Vec<u32>> =
        [0, 11, 23].iter().map(|start| (0..10).map(|n| (start + n * n) % 40).collect()).collect();
    let [one, two, three] = [&parts[0], &parts[1], &parts[2]].map(|part| &part[..]);
    let before = [one, two, three, &[1, 2, 3]].concat();
    // The arithmetic of the model depends on what is held only, so moved parts change nothing here.
    let check = |least: usize, prompt: &[u32], cached: usize| {
        let engine = engine(Arithmetic::new(64, 1), 0);
        ask(&engine, greedy(&before, 1));
        let found = ask(&engine, Request { move_parts: least, ..greedy(prompt, 3) });
        assert_eq!(found, cached, "{least} {prompt:?}");
        assert_eq!(engine.held(0).unwrap().len(), prompt.len() + 2);
    };
    let without_two = [one, three, &[7, 8]].concat();
    check(0, &without_two, 10);
    check(5, &without_two, 20);
    check(11, &without_two, 10);
    // The beginning is gone, too; and a part of the middle.
    check(5, &[three, &[9]].concat(), 10);
    check(5, &[&one[..3], &two[4..], three, &[9]].concat(), 3 + 6 + 10);
    // What is new in between stays where it is, and what follows it is not found behind it.
    check(5, &[one, &[39, 38], three, &[7]].concat(), 10);
    check(5, &before, before.len() - 1);
    let unmovable = engine(Arithmetic { shifts: false, ..Arithmetic::new(64, 1) }, 0);
    ask(&unmovable, greedy(&before, 1));
    assert_eq!(ask(&unmovable, Request { move_parts: 5, ..greedy(&without_two, 3) }), 10);
}
