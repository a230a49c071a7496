//! Draft heads that read the model's states: the text stays what it is, and heads that are right save steps.

mod common;

use std::sync::Arc;

use common::{Collected, collect, greedy, restore, save};
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::pairs::{Pair, pairs};
use puna_engine::{
    Aids, Draft, Engine, EngineError, EngineOptions, Evaluated, GUESSED_ROWS, Request, SpeculationSettings,
    Text, Timings, proposers,
};
use puna_runtime::{
    Batch, DraftHead, HeadInputs, HeadKind, Model, ModelOptions, OutputRows, Placement, RuntimeError, Work,
};
use puna_sampling::Parameters;

fn options(sequences: u32, context: u32) -> ModelOptions {
    let outputs = sequences + GUESSED_ROWS;
    ModelOptions { context, sequences, outputs, micro_batch: 64, ..ModelOptions::default() }
}

fn backends() -> [Arc<dyn Backend>; 1] {
    [Arc::new(Reference)]
}

fn head(pair: &Pair, options: &ModelOptions) -> Result<DraftHead, RuntimeError> {
    DraftHead::load(&pair.head, &pair.target, &backends(), &Placement::default(), options, &mut |_| true)
}

fn inputs(pair: &Pair) -> HeadInputs {
    DraftHead::inputs(&pair.head.metadata).expect("the keys are good")
}

fn kind(head: &DraftHead) -> String {
    let name = match head.kind() {
        HeadKind::Stepwise => "draft-eagle3",
        HeadKind::Ahead => "draft-mtp",
        HeadKind::Block { .. } => "draft-dflash",
    };
    name.to_owned()
}

fn model(pair: &Pair, options: &ModelOptions, head_inputs: HeadInputs) -> Model {
    let options = ModelOptions { head_inputs, ..options.clone() };
    Model::load(pair.target.clone(), &backends(), &Placement::default(), &options, &mut |_| true)
        .expect("loads")
}

fn settings() -> SpeculationSettings {
    SpeculationSettings { draft_most: 5, ..SpeculationSettings::default() }
}

/// An engine that guesses with the head, and one that does not.
fn engines(pair: &Pair, sequences: u32, context: u32) -> [Engine; 2] {
    let options = options(sequences, context);
    let head = head(pair, &options).expect("the head loads");
    let name = kind(&head);
    let draft = Some(Draft::Head(Box::new(head)));
    let proposers = proposers(&[name], &settings(), draft).expect("the kind suits the head");
    let settings = EngineOptions { step_tokens: 48, context_shift: true, store_bytes: 1 << 20 };
    let with = model(pair, &options, inputs(pair));
    let with = Engine::start_with(with, settings, Aids { proposers, ..Aids::default() });
    let without = Engine::start(model(pair, &options, HeadInputs::None), settings);
    [with.expect("starts"), without.expect("starts")]
}

fn run(engine: &Engine, request: Request) -> Collected {
    collect(engine.submit(request).1)
}

fn timings(found: &Collected) -> Timings {
    found.end.unwrap_or_else(|| panic!("{found:?}")).1
}

/// A text by chance, of tokens that every head can guess.
fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|place| 4 + (place * place * 7 + place * 13 + seed * 31) % 58).collect()
}

#[test]
fn texts_stay_and_right_heads_save_steps() {
    for pair in pairs() {
        let [with, without] = engines(&pair, 2, 200);
        let mut guessed = 0;
        // Prompts in one step, in several, and one that goes on from what the first left.
        for (seed, length) in [(1, 7), (2, 90), (1, 20)] {
            let found = run(&with, greedy(&prompt(seed, length), 60));
            let wanted = run(&without, greedy(&prompt(seed, length), 60));
            assert_eq!(found.tokens, wanted.tokens, "{} {length}: {:?}", pair.name, found.error);
            guessed += timings(&found).guessed_tokens;
            let Some(_) = pair.right else { continue };
            let mut last = *prompt(seed, length).last().expect("a token");
            for token in &found.tokens {
                last = pair.next(last);
                assert_eq!(*token, last, "{}", pair.name);
            }
        }
        assert!(guessed > 0, "{} never guessed", pair.name);
    }
}

/// What comes of guessing at the next 40 tokens of a text without an engine, which guesses only where it pays: guesses, their
/// tokens, and how many were right. Of the first tokens the head does not hear, as of a text that was restored.
fn guesses(pair: &Pair, text: &[u32], unheard: usize) -> (usize, usize, usize) {
    let options = options(1, 256);
    let head = head(pair, &options).expect("the head loads");
    let name = kind(&head);
    let draft = Some(Draft::Head(Box::new(head)));
    let mut proposer = proposers(&[name], &settings(), draft).expect("the kind suits the head").remove(0);
    let mut model = model(pair, &options, inputs(pair));
    let (mut text, end) = (text.to_vec(), text.len() + 40);
    let (mut held, mut made, mut tokens, mut right) = (unheard, 0, 0, 0);
    let work = Work { sequence: 0, tokens: text[..unheard].to_vec(), outputs: OutputRows::None };
    model.run(&Batch::of(vec![work])).expect("it runs");
    let mut guess: Vec<u32> = Vec::new();
    while text.len() < end {
        let evaluated: Vec<u32> = text.iter().chain(&guess).copied().collect();
        let work = Work { sequence: 0, tokens: evaluated[held..].to_vec(), outputs: OutputRows::All };
        let outputs = model.run(&Batch::of(vec![work])).expect("it runs");
        let (rows, states) = (evaluated.len() - held, &outputs.states[..]);
        proposer.learn(&Evaluated { sequence: 0, tokens: &evaluated, rows, states });
        let best = |row: usize| {
            let logits = outputs.row(row);
            (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("logits") as u32
        };
        let first = text.len() - 1 - held;
        let said: Vec<u32> = (first..rows).map(best).collect();
        let accepted = said.iter().zip(&guess).take_while(|(said, guess)| said == guess).count();
        (tokens, right) = (tokens + guess.len(), right + accepted);
        text.extend(&said[..=accepted]);
        // A recurrent model goes back to where the step began, unless all was right.
        held = model.longest_truncation(0, text.len() as u32 - 1) as usize;
        model.truncate(0, held as u32).expect("goes back");
        guess = proposer.propose(&[Text { sequence: 0, tokens: &text, most: 5 }]).remove(0);
        made += usize::from(!guess.is_empty());
    }
    (made, tokens, right)
}

#[test]
fn guesses_of_right_heads_are_right() {
    for pair in pairs() {
        for text in [prompt(3, 12), vec![9; 100]] {
            let (made, tokens, right) = guesses(&pair, &text, 0);
            println!("{}: {right} of {tokens} right in {made} guesses", pair.name);
            assert!(made >= 5, "{}: {made} guesses", pair.name);
            match pair.right {
                Some(1) => assert!(right * 10 >= made * 8, "{}: {right} in {made} guesses", pair.name),
                // The block says what most of the text is, which a text by chance becomes only after some guesses.
                Some(_) if pair.name.starts_with("dflash") && text.len() < 100 => {
                    assert!(right * 10 >= tokens * 5, "{}: {right} of {tokens}", pair.name);
                }
                // Tokens that the head does not know are guessed wrong.
                Some(_) => assert!(right * 10 >= tokens * 6, "{}: {right} of {tokens}", pair.name),
                None => {}
            }
        }
    }
}

#[test]
fn several_texts_draws_and_full_contexts() {
    for pair in pairs() {
        let [with, without] = engines(&pair, 3, 200);
        let request = |seed: u32| Request {
            sampling: Parameters { temperature: 1.5, seed, ..Parameters::default() },
            log_probabilities: Some(2),
            keep: 3,
            ..greedy(&prompt(seed, 5 + 9 * seed), 20 + 10 * (seed as i32 % 3))
        };
        let receivers: Vec<_> = (0..5).map(|seed| with.submit(request(seed)).1).collect();
        for (seed, receiver) in (0..5).zip(receivers) {
            let (found, wanted) = (collect(receiver), run(&without, request(seed)));
            assert_eq!(found.tokens, wanted.tokens, "{} {seed}: {:?}", pair.name, found.error);
            assert_eq!(found.log_probabilities, wanted.log_probabilities, "{} {seed}", pair.name);
        }
        // Shifts move what the model holds; the head begins anew and goes on guessing.
        let long = |engine: &Engine| run(engine, Request { keep: 4, ..greedy(&prompt(8, 20), 260) });
        let (found, wanted) = (long(&with), long(&without));
        assert_eq!(found.tokens, wanted.tokens, "{}", pair.name);
    }
}

#[test]
fn a_text_that_was_saved_and_restored_goes_on_as_without_guesses() {
    for pair in pairs() {
        let [with, without] = engines(&pair, 1, 200);
        let first = run(&with, greedy(&prompt(2, 30), 10));
        let saved = save(&with, 0).expect("it is saved");
        run(&with, greedy(&prompt(5, 40), 10));
        let held = restore(&with, 0, &saved).expect("it is restored");
        assert!(held.len() >= 30, "{}: {}", pair.name, held.len());
        let text = [prompt(2, 30), first.tokens, prompt(4, 6)].concat();
        let (found, wanted) = (run(&with, greedy(&text, 60)), run(&without, greedy(&text, 60)));
        assert_eq!(found.tokens, wanted.tokens, "{}: {:?}", pair.name, found.error);
    }
}

#[test]
fn right_heads_go_on_in_texts_whose_beginning_they_have_not_heard_of() {
    for pair in pairs().iter().filter(|pair| pair.right == Some(usize::MAX)) {
        let text = [prompt(3, 12), vec![9; 30]].concat();
        let (made, tokens, right) = guesses(pair, &text, 30);
        assert!(made >= 5 && right * 10 >= tokens * 6, "{}: {right} of {tokens} in {made}", pair.name);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let all = pairs();
    let (eagle, flash) = (&all[0], &all[3]);
    let options = options(1, 64);
    let refused = |pair: &Pair| head(pair, &options).err().expect("is refused").to_string();
    let changed =
        |pair: &Pair, change: &dyn Fn(&mut puna_conformance::pairs::Keys)| pair.with_head_keys(change);
    let text = refused(&changed(eagle, &|keys| drop(keys.remove("eagle3.target_layers"))));
    assert!(text.contains("target_layers"), "{text}");
    let text = refused(&changed(flash, &|keys| drop(keys.remove("dflash.block_size"))));
    assert!(text.contains("dflash.block_size"), "{text}");
    let text = refused(&changed(flash, &|keys| drop(keys.set("dflash.block_size", 1_u32))));
    assert!(text.contains("dflash.block_size is 1"), "{text}");
    let text = refused(&changed(flash, &|keys| drop(keys.remove("tokenizer.ggml.mask_token_id"))));
    assert!(text.contains("tokenizer.ggml.mask_token_id"), "{text}");
    let text = refused(&changed(flash, &|keys| drop(keys.set("tokenizer.ggml.mask_token_id", 64_u32))));
    assert!(text.contains("token 64"), "{text}");
    // A kind for the other head.
    let other = |name: &str, pair: &Pair| {
        let head = head(pair, &options).expect("loads");
        proposers(&[name.to_owned()], &settings(), Some(Draft::Head(Box::new(head))))
            .err()
            .expect("is refused")
    };
    let ahead = all.iter().find(|pair| pair.name == "ahead by chance").expect("it is there");
    for (name, pair) in [
        ("draft-eagle3", flash),
        ("draft-dflash", eagle),
        ("draft-simple", eagle),
        ("draft-mtp", eagle),
        ("draft-eagle3", ahead),
    ] {
        assert!(matches!(other(name, pair), EngineError::NoDraftModel { .. }), "{name}");
    }
    // A layer that the model does not have.
    let layers = ModelOptions { head_inputs: HeadInputs::Layers(vec![1, 3]), ..options.clone() };
    let loaded =
        Model::load(eagle.target.clone(), &backends(), &Placement::default(), &layers, &mut |_| true);
    let text = loaded.err().expect("is refused").to_string();
    assert!(text.contains("layer 3"), "{text}");
}
