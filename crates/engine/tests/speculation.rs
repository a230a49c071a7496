//! Guesses change how many steps a text takes, and nothing else.

mod arithmetic;
mod common;

use std::time::Duration;

use arithmetic::*;
use common::*;
use puna_engine::{
    Aids, Draft, DraftFile, Engine, EngineError, EngineOptions, FinishReason, NgramSettings, Proposer,
    Request, SPECULATIONS, SpeculationSettings, SpeculationSpec, Text, Timings, proposers,
};
use puna_sampling::Parameters;

const PROMPT: [u32; 5] = [1, 2, 3, 4, 5];

fn settings() -> SpeculationSettings {
    let ngram = NgramSettings { size: 3, most: 8, hits: 1 };
    SpeculationSettings {
        simple: ngram,
        map_k: ngram,
        map_k4v: ngram,
        mod_match: 3,
        mod_least: 2,
        mod_most: 8,
        draft_most: 5,
        ..SpeculationSettings::default()
    }
}

fn draft(name: &str, model: Arithmetic) -> Option<Draft> {
    (name == "draft-simple").then(|| Draft::Model(Box::new(model)))
}

/// Kinds that need nothing of the model but its tokens; the others are in `heads.rs`.
fn kinds() -> impl Iterator<Item = &'static SpeculationSpec> {
    SPECULATIONS.iter().filter(|spec| matches!(spec.draft, DraftFile::None | DraftFile::Model))
}

fn start(model: Arithmetic, aids: Aids, step_tokens: u32) -> Engine {
    let options = EngineOptions { step_tokens, context_shift: true, ..EngineOptions::default() };
    Engine::start_with(model, options, aids).expect("starts")
}

/// An engine with one kind of speculation; a draft model is right in most cases.
fn speculating(name: &str, model: Arithmetic) -> Engine {
    let sometimes_wrong = |held: &[u32]| if held.len().is_multiple_of(7) { 0 } else { repeating(held) };
    let small = Arithmetic { following: sometimes_wrong, ..Arithmetic::new(model.context, model.held.len()) };
    let proposers = proposers(&[name.to_owned()], &settings(), draft(name, small)).unwrap();
    start(model, Aids { proposers, ..Aids::default() }, 64)
}

/// A step takes its time whatever is in it, so that guesses pay.
fn repeated(context: u32, sequences: usize) -> Arithmetic {
    let delay = Duration::from_micros(200);
    Arithmetic { following: repeating, delay, ..Arithmetic::new(context, sequences) }
}

fn run(engine: &Engine, request: Request) -> Collected {
    collect(engine.submit(request).1)
}

fn timings(found: &Collected) -> Timings {
    found.end.unwrap_or_else(|| panic!("{found:?}")).1
}

/// What every kind is compared with.
fn plain(model: Arithmetic) -> Engine {
    start(model, Aids::default(), 64)
}

#[test]
fn every_kind_gives_the_same_text_in_fewer_steps() {
    for spec in kinds() {
        let (with, without) = (repeated(2000, 2), repeated(2000, 2));
        let logs = [with.log.clone(), without.log.clone()];
        let (with, without) = (speculating(spec.name, with), plain(without));
        for count in [1, 2, 3, 200] {
            let found = run(&with, greedy(&PROMPT, count));
            let wanted = run(&without, greedy(&PROMPT, count));
            assert_eq!(found.tokens, wanted.tokens, "{} {count}", spec.name);
            let timings = timings(&found);
            assert_eq!(timings.generated_tokens, count as usize);
            assert!(timings.accepted_tokens <= timings.guessed_tokens, "{timings:?}");
            assert!(count < 200 || timings.accepted_tokens > 60, "{} {timings:?}", spec.name);
            assert_eq!(with.held(0).unwrap(), without.held(0).unwrap(), "{} {count}", spec.name);
        }
        let [with, without] = logs.map(|log| log.lock().unwrap().len());
        assert!(with + 60 < without, "{}: {with} steps, without {without}", spec.name);
    }
}

#[test]
fn draws_and_log_probabilities_are_the_same() {
    let request = |seed| Request {
        sampling: Parameters { temperature: 1.2, seed, repeat_penalty: 1.1, ..Parameters::default() },
        log_probabilities: Some(3),
        after_sampling: seed % 2 == 0,
        ..greedy(&PROMPT, 120)
    };
    for spec in kinds() {
        let (with, without) = (speculating(spec.name, repeated(2000, 1)), plain(repeated(2000, 1)));
        for seed in 0..4 {
            let (found, wanted) = (run(&with, request(seed)), run(&without, request(seed)));
            assert_eq!(found.tokens, wanted.tokens, "{} {seed}", spec.name);
            assert_eq!(found.log_probabilities, wanted.log_probabilities, "{} {seed}", spec.name);
        }
    }
}

#[test]
fn several_sequences_guess_at_once() {
    for spec in kinds() {
        let with = speculating(spec.name, repeated(400, 4));
        let prompts: Vec<Vec<u32>> = (0..9).map(|n| (n..n + 4 + n * 2).collect()).collect();
        let receivers: Vec<_> = prompts.iter().map(|prompt| with.submit(greedy(prompt, 80)).1).collect();
        let without = plain(repeated(400, 4));
        for (prompt, receiver) in prompts.iter().zip(receivers) {
            let found = collect(receiver);
            assert_eq!(found.tokens, run(&without, greedy(prompt, 80)).tokens, "{} {prompt:?}", spec.name);
        }
    }
}

#[test]
fn contexts_that_fill_up_and_ends_within_a_guess() {
    for spec in kinds() {
        let (with, without) = (speculating(spec.name, repeated(64, 1)), plain(repeated(64, 1)));
        for predict in [-1, -2, 300] {
            let request = |keep| Request {
                keep,
                predict: if predict == -1 { 150 } else { predict },
                ..greedy(&PROMPT, 0)
            };
            let (found, wanted) = (run(&with, request(4)), run(&without, request(4)));
            assert_eq!(found.tokens, wanted.tokens, "{} {predict}", spec.name);
            assert_eq!(found.end.unwrap().0, FinishReason::Length);
        }
        // The end comes in the middle of what repeats itself.
        let end = run(&without, greedy(&PROMPT, 50)).tokens[45];
        let request = || Request { end_of_generation: [end].into(), ..greedy(&PROMPT, 60) };
        let (found, wanted) = (run(&with, request()), run(&without, request()));
        assert_eq!((&found.tokens, found.end.unwrap().0), (&wanted.tokens, wanted.end.unwrap().0));
        assert_eq!(with.held(0).unwrap(), without.held(0).unwrap(), "{}", spec.name);
    }
}

#[test]
fn models_that_go_back_to_checkpoints_only() {
    for spec in kinds() {
        let model = Arithmetic { checkpoints: 6, ..repeated(2000, 1) };
        let with = speculating(spec.name, model);
        let found = run(&with, greedy(&PROMPT, 150));
        assert_eq!(
            found.tokens,
            run(&plain(repeated(2000, 1)), greedy(&PROMPT, 150)).tokens,
            "{}",
            spec.name
        );
        assert!(timings(&found).guessed_tokens > 0, "{}", spec.name);
    }
    // One that cannot go back at all starts over.
    let with = speculating("ngram-simple", Arithmetic { truncates: false, ..repeated(2000, 1) });
    let found = run(&with, greedy(&PROMPT, 60));
    assert_eq!(found.tokens, run(&plain(repeated(2000, 1)), greedy(&PROMPT, 60)).tokens);
}

#[test]
fn what_does_not_pay_is_not_done() {
    // Each token of a step costs as much as the step: only guesses that are nearly always right would pay.
    let row_delay = Duration::from_micros(300);
    let wrong: fn(&[u32]) -> u32 = |held| (following(held) + 1) % 40;
    let aids = |following| {
        let small = Arithmetic { following, ..Arithmetic::new(4000, 1) };
        let name = "draft-simple";
        let proposers = proposers(&[name.to_owned()], &settings(), draft(name, small)).unwrap();
        Aids { proposers, ..Aids::default() }
    };
    let model = || Arithmetic { row_delay, ..Arithmetic::new(4000, 1) };
    let found = run(&start(model(), aids(wrong), 64), greedy(&PROMPT, 400));
    assert_eq!(found.tokens, expected(&PROMPT, 400));
    let guessed = timings(&found).guessed_tokens;
    assert!(guessed > 0 && guessed < 60, "{guessed} of 400 tokens were guessed at");
    // Where rows cost nothing, right guesses are made as long as they may be.
    let model = Arithmetic { delay: Duration::from_millis(1), ..Arithmetic::new(4000, 1) };
    let found = run(&start(model, aids(following), 64), greedy(&PROMPT, 400));
    let timings = timings(&found);
    assert_eq!(found.tokens, expected(&PROMPT, 400));
    assert!(
        timings.accepted_tokens == timings.guessed_tokens && timings.accepted_tokens > 300,
        "{timings:?}"
    );
}

#[test]
fn a_bad_draft_is_asked_less_and_less() {
    // As far as times tell guesses cost nothing: only that they are wrong makes them fewer.
    let wrong: fn(&[u32]) -> u32 = |held| (following(held) + 1) % 40;
    let small = Arithmetic { following: wrong, ..Arithmetic::new(4000, 1) };
    let proposers =
        proposers(&["draft-simple".to_owned()], &settings(), draft("draft-simple", small)).unwrap();
    let model = Arithmetic { delay: Duration::from_micros(300), ..Arithmetic::new(4000, 1) };
    let log = model.log.clone();
    let engine = start(model, Aids { proposers, ..Aids::default() }, 64);
    let mut guessed = Vec::new();
    for prompt in [[1, 2, 3], [4, 5, 6], [7, 8, 9]] {
        let found = run(&engine, greedy(&prompt, 400));
        assert_eq!(found.tokens, expected(&prompt, 400));
        guessed.push(timings(&found).guessed_tokens);
    }
    assert!(guessed[0] > 10 && guessed[0] < 50, "{guessed:?}");
    assert!(guessed[1] > 0 && guessed[1] <= 12 && guessed[2] <= 12, "{guessed:?}");
    // Within the first text, too: the last guesses are short and far apart.
    let rows: Vec<usize> = log.lock().unwrap()[1..400].iter().map(|works| works[0].1 - 1).collect();
    let (early, late): (usize, usize) = (rows[..20].iter().sum(), rows[200..].iter().sum());
    assert!(early > 10 && late <= 4, "{early} {late}");
}

#[test]
fn only_steps_with_guesses_are_computed_row_by_row() {
    for checkpoints in [1, 6] {
        let delay = Duration::from_millis(2);
        let model = Arithmetic { checkpoints, delay, ..repeated(2000, 2) };
        let (log, deterministic) = (model.log.clone(), model.deterministic.clone());
        let engine = speculating("ngram-simple", model);
        let receivers = [engine.submit(greedy(&PROMPT, 150)).1, engine.submit(greedy(&[9, 8, 7, 6], 150)).1];
        receivers.into_iter().for_each(|receiver| drop(collect(receiver)));
        let (log, deterministic) = (log.lock().unwrap(), deterministic.lock().unwrap());
        let mut counts = [0, 0];
        for (works, deterministic) in log.iter().zip(deterministic.iter()).skip(4) {
            // After the prompts a sequence has more than one row only where its text is guessed at.
            assert_eq!(*deterministic, works.iter().any(|(_, rows)| *rows > 1), "{works:?}");
            counts[usize::from(*deterministic)] += 1;
        }
        assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    }
}

#[test]
fn a_draft_without_room_guesses_for_those_that_it_has_room_for() {
    // The draft model has room for two of three texts: one does without, and the others are guessed at all the same.
    let small = Arithmetic { following: repeating, cells: 150, ..Arithmetic::new(2000, 3) };
    let proposers =
        proposers(&["draft-simple".to_owned()], &settings(), draft("draft-simple", small)).unwrap();
    let engine = start(repeated(2000, 3), Aids { proposers, ..Aids::default() }, 64);
    let prompts: [Vec<u32>; 3] =
        [(0..30).collect(), (5..35).collect(), (0..120).map(|n| n * 7 % 40).collect()];
    let receivers = prompts.each_ref().map(|prompt| engine.submit(greedy(prompt, 40)).1);
    let found = receivers.map(collect);
    for (prompt, found) in prompts.iter().zip(&found) {
        assert_eq!(found.tokens, run(&plain(repeated(2000, 1)), greedy(prompt, 40)).tokens);
    }
    let accepted = found.each_ref().map(|found| timings(found).accepted_tokens);
    assert!(accepted[0] > 10 && accepted[1] > 10, "{accepted:?}");
}

/// Guesses nonsense: tokens that do not exist, that fail, too many, or panics.
struct Nonsense(u32);

impl Proposer for Nonsense {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        self.0 += 1;
        match self.0 % 6 {
            0 => vec![vec![u32::MAX; 3]; texts.len()],
            1 => Vec::new(),
            2 => vec![vec![REFUSED]; texts.len() + 3],
            3 => vec![vec![PANICS]; texts.len()],
            4 => vec![vec![NOT_A_NUMBER, NOTHING, VOCABULARY]; texts.len()],
            _ => panic!("no guess"),
        }
    }
}

#[test]
fn nonsense_does_no_harm() {
    let aids = Aids { proposers: vec![Box::new(Nonsense(0))], ..Aids::default() };
    let engine = start(Arithmetic::new(400, 2), aids, 64);
    let receivers = [[1, 2], [3, 4], [5, 6]].map(|prompt| (prompt, engine.submit(greedy(&prompt, 60)).1));
    for (prompt, receiver) in receivers {
        let found = collect(receiver);
        assert_eq!(found.tokens, expected(&prompt, 60), "{found:?}");
    }
}

#[test]
fn kinds_are_found_by_name() {
    let error = |name: &str| proposers(&[name.to_owned()], &settings(), None).err().unwrap();
    assert!(matches!(error("draft-simple"), EngineError::NoDraftModel { name: "draft-simple" }));
    let unknown = error("oracle").to_string();
    assert!(unknown.contains("'oracle'") && unknown.contains("ngram-map-k4v"), "{unknown}");
}
