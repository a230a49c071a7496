//! The engine on a model by arithmetic.

mod arithmetic;
mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arithmetic::*;
use common::*;
use puna_engine::{
    EmbeddingSender, Engine, EngineError, EngineOptions, Event, FinishReason, Request, UNLIMITED, UNTIL_FULL,
};
use puna_sampling::Parameters;

const PROMPT: [u32; 5] = [1, 2, 3, 4, 5];

fn engine(model: Arithmetic) -> Engine {
    Engine::start(model, EngineOptions { step_tokens: 8, context_shift: false, ..EngineOptions::default() })
        .expect("starts")
}

fn shifting(model: Arithmetic) -> Engine {
    Engine::start(model, EngineOptions { step_tokens: 8, context_shift: true, ..EngineOptions::default() })
        .expect("starts")
}

fn run(engine: &Engine, request: Request) -> Collected {
    collect(engine.submit(request).1)
}

fn reason(collected: &Collected) -> FinishReason {
    collected.end.unwrap_or_else(|| panic!("{collected:?}")).0
}

#[test]
fn generates_as_many_as_asked() {
    let engine = engine(Arithmetic::new(64, 1));
    for count in [1, 2, 20] {
        let found = run(&engine, greedy(&PROMPT, count));
        assert_eq!(found.tokens, expected(&PROMPT, count as usize));
        assert_eq!(reason(&found), FinishReason::Length);
        let timings = found.end.unwrap().1;
        assert_eq!(timings.generated_tokens, count as usize);
        assert_eq!(timings.cached_tokens + timings.prompt_tokens, PROMPT.len());
    }
    let nothing = run(&engine, greedy(&PROMPT, 0));
    assert_eq!((nothing.tokens.len(), reason(&nothing)), (0, FinishReason::Length));
}

#[test]
fn long_prompts_go_in_steps() {
    let model = Arithmetic::new(64, 1);
    let log = model.log.clone();
    let prompt: Vec<u32> = (0..20).collect();
    let found = run(&engine(model), greedy(&prompt, 3));
    assert_eq!(found.tokens, expected(&prompt, 3));
    assert_eq!(found.progress, [(0, 20), (8, 20), (16, 20), (20, 20)]);
    let sizes: Vec<usize> = log.lock().unwrap().iter().map(|batch| batch[0].1).collect();
    assert_eq!(sizes, [8, 8, 4, 1, 1]);
}

#[test]
fn stops_at_end_of_generation_unless_told_not_to() {
    let engine = engine(Arithmetic::new(64, 1));
    let free = expected(&PROMPT, 12);
    let token = free[4];
    let first = free.iter().position(|other| *other == token).unwrap();
    let request = Request { end_of_generation: Arc::from([49, token]), ..greedy(&PROMPT, 12) };
    let found = run(&engine, request.clone());
    assert_eq!(found.tokens, free[..first]);
    assert_eq!(reason(&found), FinishReason::EndOfGeneration { token });
    let ignoring = run(&engine, Request { ignore_end: true, ..request });
    assert_eq!(ignoring.tokens.len(), 12);
    assert!(!ignoring.tokens.contains(&token));
}

#[test]
fn reuses_the_common_prefix_and_evaluates_at_least_one_token() {
    let model = Arithmetic::new(64, 1);
    let log = model.log.clone();
    let engine = engine(model);
    let first = run(&engine, greedy(&PROMPT, 4));
    let check = |prompt: &[u32], cached: usize| {
        let found = run(&engine, greedy(prompt, 4));
        assert_eq!(found.tokens, expected(prompt, 4), "{prompt:?}");
        let timings = found.end.unwrap().1;
        assert_eq!((timings.cached_tokens, timings.prompt_tokens), (cached, prompt.len() - cached));
        assert_eq!(found.progress[0], (cached, prompt.len()));
    };
    check(&PROMPT, 4); // the same again
    check(&PROMPT[..3], 2); // a strict prefix
    check(&PROMPT[..1], 0); // one token
    check(&[1], 0);
    check(&[9, 9, 9], 0); // nothing in common
    check(&[9, 9, 8, 7], 2); // diverging
    // Append-only: the answer is reused too, but for its last token, which was never evaluated.
    let mut chat = PROMPT.to_vec();
    let answer = run(&engine, greedy(&chat, 4)).tokens;
    assert_eq!(answer, first.tokens);
    chat.extend(answer);
    chat.extend([6, 7]);
    check(&chat, PROMPT.len() + 3);
    assert!(log.lock().unwrap().iter().flatten().all(|(_, tokens)| *tokens > 0));
    let cold = run(&engine, Request { reuse: false, ..greedy(&chat, 4) });
    assert_eq!(cold.end.unwrap().1.cached_tokens, 0);
    assert_eq!(cold.tokens, expected(&chat, 4));
}

#[test]
fn a_cache_that_cannot_be_cut_is_started_over() {
    let engine = engine(Arithmetic { truncates: false, ..Arithmetic::new(64, 1) });
    run(&engine, greedy(&PROMPT, 4));
    let found = run(&engine, greedy(&PROMPT, 4));
    assert_eq!(found.end.unwrap().1.cached_tokens, 0);
    assert_eq!(found.tokens, expected(&PROMPT, 4));
}

#[test]
fn a_full_context_ends_with_length() {
    for predict in [UNLIMITED, UNTIL_FULL, 2000] {
        let found = run(&engine(Arithmetic::new(16, 1)), greedy(&PROMPT, predict));
        // 5 + 11 fill the context; the logits of the last cell give one more.
        assert_eq!(found.tokens, expected(&PROMPT, 12));
        assert_eq!(reason(&found), FinishReason::Length);
        assert!(found.end.unwrap().1.full, "it ended before its limit");
    }
    let full: Vec<u32> = (0..16).collect();
    let found = run(&engine(Arithmetic::new(16, 1)), greedy(&full, UNLIMITED));
    assert_eq!((found.tokens.len(), reason(&found)), (1, FinishReason::Length));
}

#[test]
fn the_context_shifts_when_allowed() {
    let engine = shifting(Arithmetic::new(16, 1));
    // At 16 tokens, half of those after the first two go, or as many as asked for, or all.
    for (discard, gone) in [(0, 7), (3, 3), (100, 14)] {
        let found = run(&engine, Request { keep: 2, discard, ..greedy(&PROMPT, 100) });
        assert_eq!((found.tokens.len(), reason(&found)), (100, FinishReason::Length));
        assert!(found.end.unwrap().1.full);
        let mut held = PROMPT.to_vec();
        let mut tokens = Vec::new();
        for _ in 0..100 {
            if held.len() > 16 {
                held.drain(2..2 + gone);
            }
            let token = following(&held);
            tokens.push(token);
            held.push(token);
        }
        assert_eq!(found.tokens, tokens, "{discard}");
    }
    assert!(!run(&engine, greedy(&PROMPT, 5)).end.unwrap().1.full);
    // A new, short request works afterwards, and so does one that keeps more than there is room for.
    assert_eq!(run(&engine, greedy(&[7], 3)).tokens, expected(&[7], 3));
    let found = run(&engine, Request { keep: -1, ..greedy(&(0..16).collect::<Vec<_>>(), 50) });
    assert_eq!(found.tokens.len(), 50);
    // Until full means without shifting.
    assert_eq!(run(&engine, greedy(&PROMPT, UNTIL_FULL)).tokens.len(), 12);
}

#[test]
fn a_model_that_cannot_shift_computes_the_rest_anew() {
    let unmovable = Arithmetic { shifts: false, ..Arithmetic::new(16, 1) };
    let log = unmovable.log.clone();
    let request = || Request { keep: 2, ..greedy(&PROMPT, 100) };
    let (found, moved) =
        (run(&shifting(unmovable), request()), run(&shifting(Arithmetic::new(16, 1)), request()));
    assert_eq!((&found.tokens, reason(&found)), (&moved.tokens, FinishReason::Length));
    let again =
        log.lock().unwrap().iter().filter(|works| works.iter().any(|(_, tokens)| *tokens > 5)).count();
    assert!(again > 5, "{again} times the rest was computed anew");
    // Until full is until full.
    let unmovable = Arithmetic { shifts: false, ..Arithmetic::new(16, 1) };
    assert_eq!(run(&shifting(unmovable), greedy(&PROMPT, UNTIL_FULL)).tokens, expected(&PROMPT, 12));
}

#[test]
fn bad_requests_are_refused_with_their_numbers() {
    let engine = engine(Arithmetic::new(16, 2));
    let error = |request: Request| run(&engine, request).error.unwrap();
    assert_eq!(error(greedy(&[], 1)), EngineError::EmptyPrompt.to_string());
    let long = error(greedy(&[1; 17], 1));
    assert_eq!(long, EngineError::PromptTooLong { tokens: 17, context: 16, learned: false }.to_string());
    assert!(error(greedy(&[50], 1)).contains("token 50 is outside the vocabulary of 50"));
    assert!(error(Request { sequence: Some(2), ..greedy(&[1], 1) }).contains("sequence 2 does not exist"));
    let sampling = Parameters { repeat_penalty: -1.0, ..Parameters::greedy() };
    assert!(error(Request { sampling, ..greedy(&[1], 1) }).contains("repeat_penalty"));
    let biased = Parameters { logit_bias: vec![(50, 1.0)], ..Parameters::greedy() };
    assert!(error(Request { sampling: biased, ..greedy(&[1], 1) }).contains("token 50"));
    assert_eq!(run(&engine, greedy(&PROMPT, 2)).tokens, expected(&PROMPT, 2));
}

#[test]
fn many_requests_share_the_slots() {
    let engine = engine(Arithmetic { delay: Duration::from_millis(1), ..Arithmetic::new(64, 3) });
    let prompts: Vec<Vec<u32>> = (0..10u32).map(|n| (0..=n * 2).map(|token| token % 40).collect()).collect();
    let receivers: Vec<_> = prompts.iter().map(|prompt| engine.submit(greedy(prompt, 15)).1).collect();
    for (prompt, receiver) in prompts.iter().zip(receivers) {
        assert_eq!(collect(receiver).tokens, expected(prompt, 15), "{prompt:?}");
    }
}

#[test]
fn one_slot_serves_a_queue_in_order() {
    let engine = engine(Arithmetic::new(64, 1));
    let receivers: Vec<_> = (0..10).map(|n| engine.submit(greedy(&[n, 3], 5)).1).collect();
    for (n, receiver) in (0..).zip(receivers) {
        assert_eq!(collect(receiver).tokens, expected(&[n, 3], 5));
    }
}

#[test]
fn requests_share_steps() {
    let model = Arithmetic { delay: Duration::from_millis(3), ..Arithmetic::new(64, 2) };
    let log = model.log.clone();
    let engine = engine(model);
    let (_, one) = engine.submit(greedy(&[1; 20], 10));
    let (_, two) = engine.submit(greedy(&[2; 30], 10));
    for events in [one, two] {
        collect(events);
    }
    let log = log.lock().unwrap();
    assert!(log.iter().any(|batch| batch.len() == 2), "{log:?}");
    assert!(log.iter().all(|batch| batch.iter().map(|work| work.1).sum::<usize>() <= 8), "{log:?}");
}

#[test]
fn a_failing_request_fails_alone() {
    for (bad, text) in [
        (REFUSED, "token 40"),
        (PANICS, "internal error: the evaluation of token 41 went wrong"),
        (NOT_A_NUMBER, "NaN"),
        (NOTHING, "no token is left"),
    ] {
        let engine = engine(Arithmetic { delay: Duration::from_millis(1), ..Arithmetic::new(64, 3) });
        let (_, before) = engine.submit(greedy(&PROMPT, 30));
        std::thread::sleep(Duration::from_millis(10));
        let (_, failing) = engine.submit(greedy(&[7, 8, bad], 30));
        let (_, beside) = engine.submit(greedy(&[6; 12], 30));
        let failed = collect(failing);
        assert!(failed.error.as_ref().is_some_and(|error| error.contains(text)), "{bad}: {failed:?}");
        assert!(failed.tokens.is_empty());
        assert_eq!(collect(before).tokens, expected(&PROMPT, 30), "{bad}");
        assert_eq!(collect(beside).tokens, expected(&[6; 12], 30), "{bad}");
        // Later requests are served too, also with the same beginning.
        assert_eq!(run(&engine, greedy(&[7, 8], 5)).tokens, expected(&[7, 8], 5));
    }
}

#[test]
fn settings_do_not_leak_between_requests() {
    let alone = |presence_penalty: f32| {
        let sampling = Parameters { presence_penalty, ..Parameters::greedy() };
        Request { sampling, ..greedy(&[3, 3, 3, 3], 10) }
    };
    let engine = engine(Arithmetic::new(64, 2));
    let (one, two) = (run(&engine, alone(0.0)).tokens, run(&engine, alone(100.0)).tokens);
    assert_ne!(one, two, "the penalty has an effect");
    for order in [[0.0, 100.0], [100.0, 0.0]] {
        let receivers = order.map(|penalty| engine.submit(alone(penalty)).1);
        let found = receivers.map(|receiver| collect(receiver).tokens);
        assert_eq!(found[usize::from(order[0] != 0.0)], one);
        assert_eq!(found[usize::from(order[0] == 0.0)], two);
    }
}

#[test]
fn cancelling_takes_effect_within_a_step() {
    let slow = || Arithmetic { delay: Duration::from_millis(20), ..Arithmetic::new(100_000, 1) };
    // While the prompt is evaluated, while tokens are generated, while it waits in the queue.
    let prompt = vec![1; 50_000];
    let engine = engine(slow());
    let (running, events) = engine.submit(greedy(&prompt, 10));
    let (queued, waiting) = engine.submit(greedy(&PROMPT, 10));
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    engine.cancel(queued);
    assert_eq!(reason(&collect(waiting)), FinishReason::Cancelled);
    engine.cancel(running);
    let found = collect(events);
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    assert_eq!(reason(&found), FinishReason::Cancelled);
    let (generating, events) = engine.submit(greedy(&PROMPT, 100_000));
    std::thread::sleep(Duration::from_millis(100));
    engine.cancel(generating);
    let found = collect(events);
    assert_eq!(reason(&found), FinishReason::Cancelled);
    assert_eq!(found.tokens, expected(&PROMPT, found.tokens.len()));
    assert!(!found.tokens.is_empty());
    // Nothing of it disturbs the next one.
    assert_eq!(run(&engine, greedy(&PROMPT, 3)).tokens, expected(&PROMPT, 3));
}

#[test]
fn a_request_nobody_listens_to_is_cancelled() {
    let engine = engine(Arithmetic { delay: Duration::from_millis(2), ..Arithmetic::new(100_000, 1) });
    drop(engine.submit(greedy(&PROMPT, 100_000)));
    let start = Instant::now();
    assert_eq!(run(&engine, greedy(&PROMPT, 3)).tokens, expected(&PROMPT, 3));
    assert!(start.elapsed() < Duration::from_secs(2));
}

/// Takes a refusal.
struct Refused<F>(F);

impl<F: FnOnce() + Send> EmbeddingSender for Refused<F> {
    fn is_awaited(&self) -> bool {
        true
    }

    fn send(self: Box<Self>, found: Result<Vec<Vec<f32>>, EngineError>) {
        assert!(found.is_err());
        self.0();
    }
}

#[test]
fn steps_go_on_however_much_is_asked_beside_them() {
    let model = Arithmetic { delay: Duration::from_millis(5), ..Arithmetic::new(1000, 1) };
    let log = model.log.clone();
    let engine = engine(model);
    let (_, events) = engine.submit(greedy(&PROMPT, 100));
    // Each is refused, and that takes longer than a step.
    let steps: Arc<Mutex<Vec<usize>>> = Arc::default();
    for _ in 0..20 {
        let (steps, log) = (steps.clone(), log.clone());
        let refused = Refused(move || {
            std::thread::sleep(Duration::from_millis(10));
            steps.lock().unwrap().push(log.lock().unwrap().len());
        });
        engine.embed_to(vec![vec![1]], Box::new(refused));
    }
    assert_eq!(collect(events).tokens, expected(&PROMPT, 100));
    let steps = steps.lock().unwrap();
    assert!(steps.len() == 20 && steps.windows(2).skip(1).all(|pair| pair[0] < pair[1]), "{steps:?}");
}

#[test]
fn dropping_the_engine_ends_everything() {
    let engine = engine(Arithmetic { delay: Duration::from_millis(1), ..Arithmetic::new(100_000, 1) });
    let (_, running) = engine.submit(greedy(&PROMPT, 100_000));
    let (_, queued) = engine.submit(greedy(&PROMPT, 3));
    std::thread::sleep(Duration::from_millis(20));
    drop(engine);
    assert_eq!(reason(&collect(running)), FinishReason::Cancelled);
    assert_eq!(collect(queued).error.unwrap(), EngineError::Stopped.to_string());
}

#[test]
fn sequences_are_saved_restored_and_cleared() {
    let engine = engine(Arithmetic::new(64, 2));
    let in_first = |request: Request| Request { sequence: Some(0), ..request };
    run(&engine, in_first(greedy(&PROMPT, 6)));
    let saved = save(&engine, 0).unwrap();
    let tokens = engine.held(0).unwrap();
    assert_eq!(tokens.len(), PROMPT.len() + 5);
    engine.clear(0).unwrap();
    assert!(engine.held(0).unwrap().is_empty());
    assert_eq!(restore(&engine, 0, &saved).unwrap(), tokens);
    let mut more = tokens.clone();
    more.push(9);
    let found = run(&engine, in_first(greedy(&more, 4)));
    assert_eq!(found.end.unwrap().1.cached_tokens, tokens.len());
    assert_eq!(found.tokens, expected(&more, 4));
    // A refused file changes nothing.
    let held = engine.held(0).unwrap();
    assert!(restore(&engine, 0, &[255]).is_err());
    assert_eq!(engine.held(0).unwrap(), held);
    // One that the model could not undo is known to have emptied the sequence.
    let breaks = Request { sequence: Some(1), ..greedy(&[1, BREAKS, 2], 1) };
    run(&engine, breaks);
    let broken = save(&engine, 1).unwrap();
    assert!(restore(&engine, 0, &broken).is_err());
    assert!(engine.held(0).unwrap().is_empty());
    let again = run(&engine, in_first(greedy(&more, 4)));
    assert_eq!((again.tokens, again.end.unwrap().1.cached_tokens), (found.tokens, 0));
    assert!(matches!(save(&engine, 2), Err(EngineError::NoSequence { sequence: 2, sequences: 2 })));
}

#[test]
fn lower_priorities_go_first_and_nobody_loses_a_slot() {
    let engine = engine(Arithmetic { delay: Duration::from_millis(2), ..Arithmetic::new(1000, 1) });
    let (id, running) = engine.submit(Request { priority: 100, ..greedy(&PROMPT, 500) });
    let ended = Arc::new(Mutex::new(Vec::new()));
    let (sender, done) = std::sync::mpsc::channel();
    for (name, priority) in [("first", 0), ("urgent", -1), ("late", 5), ("second", 0), ("most urgent", -7)] {
        let (ended, sender) = (ended.clone(), sender.clone());
        let hear = move |event| {
            if let Event::Finished { .. } = event {
                ended.lock().unwrap().push(name);
                sender.send(()).unwrap();
            }
            true
        };
        engine.submit_to(Request { priority, ..greedy(&PROMPT, 3) }, Box::new(hear));
    }
    // The one that runs goes on although all others matter more.
    std::thread::sleep(Duration::from_millis(50));
    assert!(ended.lock().unwrap().is_empty());
    engine.cancel(id);
    collect(running);
    (0..5).for_each(|_| done.recv().unwrap());
    assert_eq!(*ended.lock().unwrap(), ["most urgent", "urgent", "first", "second", "late"]);
}

#[test]
fn deadlines_end_answers_prompts_and_waiting() {
    let model = Arithmetic { delay: Duration::from_millis(5), ..Arithmetic::new(100_000, 1) };
    let engine = Engine::start(model, EngineOptions { step_tokens: 10, ..EngineOptions::default() }).unwrap();
    let start = Instant::now();
    let within = |milliseconds| Some(start + Duration::from_millis(milliseconds));
    let running = engine.submit(Request { deadline: within(100), ..greedy(&PROMPT, 100_000) }).1;
    let waiting = engine.submit(Request { deadline: within(50), ..greedy(&PROMPT, 5) }).1;
    let late = |events| {
        let found = collect(events);
        assert_eq!((found.tokens.len(), found.error), (0, Some(EngineError::Late.to_string())));
    };
    late(waiting);
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    let found = collect(running);
    assert_eq!(reason(&found), FinishReason::Length);
    assert!(found.tokens.len() > 3 && found.tokens == expected(&PROMPT, found.tokens.len()));
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    // 1,000 tokens take 500 milliseconds.
    let start = Instant::now();
    let deadline = Some(start + Duration::from_millis(100));
    late(engine.submit(Request { deadline, ..greedy(&[1; 1000], 5) }).1);
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    assert_eq!(run(&engine, greedy(&PROMPT, 3)).tokens, expected(&PROMPT, 3));
}

#[test]
fn a_busy_sequence_cannot_be_saved() {
    let engine = engine(Arithmetic { delay: Duration::from_millis(5), ..Arithmetic::new(1000, 1) });
    let (id, events) = engine.submit(greedy(&PROMPT, 500));
    assert!(matches!(save(&engine, 0), Err(EngineError::Busy { sequence: 0 })));
    assert!(matches!(engine.clear(0), Err(EngineError::Busy { .. })));
    engine.cancel(id);
    collect(events);
    assert!(save(&engine, 0).is_ok());
}

#[test]
fn shared_cells_are_taken_from_idle_sequences_first() {
    let engine = engine(Arithmetic { cells: 24, ..Arithmetic::new(24, 3) });
    for first in [1, 2, 3] {
        let found = run(&engine, greedy(&[first; 10], 5));
        assert_eq!(found.tokens, expected(&[first; 10], 5), "{found:?}");
    }
    // Two that cannot both go on: the larger one ends, the other is served in full.
    let (_, large) = engine.submit(greedy(&[4; 12], 50));
    let (_, small) = engine.submit(greedy(&[5; 6], 10));
    let (large, small) = (collect(large), collect(small));
    assert_eq!(small.tokens, expected(&[5; 6], 10));
    assert_eq!(reason(&large), FinishReason::Length);
    assert_eq!(large.tokens, expected(&[4; 12], large.tokens.len()));
}

#[test]
fn log_probabilities_are_of_the_raw_logits() {
    let engine = engine(Arithmetic::new(64, 1));
    for temperature in [0.0, 2.0] {
        let sampling = Parameters { temperature, seed: 4, ..Parameters::default() };
        let found = run(&engine, Request { sampling, log_probabilities: Some(2), ..greedy(&PROMPT, 4) });
        // One logit of 8 and 49 of 0.
        let best = 8.0 - (8f32.exp() + 49.0).ln();
        for given in found.log_probabilities {
            let given = given.unwrap();
            assert!((given.top[0].1 - best).abs() < 1e-4 && given.top.len() == 2);
        }
    }
    assert!(run(&engine, greedy(&PROMPT, 1)).log_probabilities[0].is_none());
}

#[test]
fn events_can_go_anywhere() {
    let engine = engine(Arithmetic::new(64, 1));
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut seen = 0;
    engine.submit_to(
        greedy(&PROMPT, 10),
        Box::new(move |event| {
            seen += usize::from(matches!(event, Event::Token { .. }));
            let wanted = seen < 3;
            sender.send(seen).unwrap();
            wanted
        }),
    );
    let last = receiver.into_iter().last();
    assert_eq!(last, Some(3), "false cancels, and the end is still reported");
}

/// A disk that is full.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_cannot_be_written_or_read_changes_nothing() {
    let engine = engine(Arithmetic::new(64, 1));
    run(&engine, greedy(&PROMPT, 6));
    let held = engine.held(0).unwrap();
    assert!(matches!(engine.save(0, &mut Full), Err(EngineError::NotWritten { .. })));
    let bytes = save(&engine, 0).unwrap();
    // A file that grows or shrinks while it is read.
    for length in [0, bytes.len() as u64 - 1, bytes.len() as u64 + 1, u64::MAX] {
        let read = engine.restore(0, &mut &bytes[..], length, [].into());
        assert!(matches!(read, Err(EngineError::NotSaved { .. })), "{length}");
    }
    assert_eq!(engine.held(0).unwrap(), held);
    assert_eq!(restore(&engine, 0, &bytes).unwrap(), held);
}

/// Logits of many values that depend on all of the text.
fn many_valued(held: &[u32], _: &[Script]) -> Vec<f32> {
    let value = |token: u32| (following(&[held, &[token]].concat()) % 13) as f32 / 2.0;
    (0..VOCABULARY).map(value).collect()
}

#[test]
fn the_highest_logits_give_the_same_texts() {
    let base = || Parameters { seed: 7, temperature: 1.3, min_p: 0.0, ..Parameters::default() };
    let penalties = Parameters { top_k: 8, repeat_penalty: 1.4, penalty_last_n: 6, ..base() };
    let request = |sampling| Request { sampling, ..greedy(&PROMPT, 24) };
    let raw = Request { log_probabilities: Some(3), ..request(Parameters { top_k: 8, ..base() }) };
    // With how many suffice for the first token.
    let requests = [
        (request(Parameters::greedy()), Some(1)),
        (request(base()), Some(40)),
        (request(penalties), Some(13)),
        (Request { after_sampling: true, ..raw.clone() }, Some(8)),
        (Request { ignore_end: true, end_of_generation: [3, 4].into(), ..greedy(&PROMPT, 24) }, Some(3)),
        (raw, None),
        (request(Parameters { top_k: 0, ..base() }), None),
        (request(Parameters { top_k: 60, ..base() }), None),
    ];
    for (request, suffices) in requests {
        let [few, all] = [true, false].map(|gives_best| {
            let model =
                Arithmetic { gives_best, faults: false, logits: Some(many_valued), ..Arithmetic::new(64, 1) };
            let asked = model.best.clone();
            let found = run(&engine(model), request.clone());
            assert_eq!(asked.lock().unwrap()[0], suffices, "{:?}", request.sampling);
            (found.tokens, found.log_probabilities)
        });
        assert_eq!(few.0.len(), 24, "{:?}", request.sampling);
        assert_eq!(few, all, "{:?}", request.sampling);
    }
}

#[test]
fn who_needs_all_logits_gets_them_among_those_who_do_not() {
    let model = Arithmetic { faults: false, logits: Some(many_valued), ..Arithmetic::new(64, 2) };
    let asked = model.best.clone();
    let engine = engine(model);
    let raw = Request { log_probabilities: Some(2), sequence: Some(0), ..greedy(&PROMPT, 6) };
    let plain = Request { sequence: Some(1), ..greedy(&PROMPT, 40) };
    let alone = run(&engine, Request { reuse: false, ..plain.clone() }).tokens;
    let (plain, raw) = (engine.submit(Request { reuse: false, ..plain }).1, engine.submit(raw).1);
    let (plain, raw) = (collect(plain), collect(raw));
    assert_eq!(plain.tokens, alone);
    assert!(raw.tokens.len() == 6 && raw.log_probabilities.iter().all(Option::is_some), "{raw:?}");
    let asked = asked.lock().unwrap();
    assert!(asked.contains(&None) && asked.contains(&Some(1)), "{asked:?}");
}
