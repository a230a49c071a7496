//! Saving and restoring sequences, and refusing what is no saved sequence.

mod support;

use puna_graph::CacheGroup::{self, Full, Window};
use puna_quant::DType;
use puna_runtime::{Checksum, Model, ModelOptions, OutputRows, RuntimeError, SavedError};
use support::*;

const MIXED: [CacheGroup; 3] = [Window(8), Full, Window(8)];

#[test]
fn a_restored_sequence_goes_on_like_one_that_was_never_saved() {
    for layers in [vec![Full, Full], MIXED.to_vec(), vec![Window(8)]] {
        let handmade = Handmade::new(&layers, 1);
        let tokens = text(60, 2);
        let mut model = handmade.load(&options(100, 2, 7));
        all_rows(&mut model, 1, &tokens[..45]);
        let saved = model.save(1, &tokens[..45]).expect("saves");
        let expected = all_rows(&mut model, 1, &tokens[45..]);
        // Other sizes, other sequence, something in the way.
        for (context, sequences, micro_batch) in [(100, 2, 7), (200, 4, 50), (70, 1, 1)] {
            let mut other = handmade.load(&options(context, sequences, micro_batch));
            all_rows(&mut other, 0, &text(9, 3));
            let restored = other.restore(0, &saved).expect("restores");
            assert_eq!(restored, tokens[..45]);
            assert_eq!(other.length(0), 45);
            // Everything counts as cached: a prompt that was saved as a whole needs its last token only.
            other.truncate(0, 44).expect("the last token can be run again");
            let last = all_rows(&mut other, 0, &tokens[44..45]);
            assert_eq!(last.len(), VOCABULARY as usize);
            assert_same(&all_rows(&mut other, 0, &tokens[45..]), &expected);
        }
    }
}

#[test]
fn empty_sequences_can_be_saved() {
    let handmade = Handmade::new(&MIXED, 4);
    let mut model = handmade.load(&options(64, 2, 8));
    let saved = model.save(0, &[]).expect("saves");
    all_rows(&mut model, 1, &text(5, 5));
    assert_eq!(model.restore(1, &saved).expect("restores"), [0_u32; 0]);
    assert_eq!((model.length(1), model.free_cells()), (0, 64));
}

/// A sequence in parts of about so many bytes; between them another sequence goes on, unless its steps took something
/// from this one (what a window does not need any more): then the first part tells, and all is saved again at once.
fn parts(model: &mut Model, tokens: &[u32], bytes: u32, other: &[u32]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while parts.len() < model.saved_parts(1, bytes) {
        parts.push(model.save_part(1, tokens, bytes, parts.len()).expect("saves"));
        all_rows(model, 0, &other[parts.len() % other.len()..][..1]);
    }
    let first = model.save_part(1, tokens, bytes, 0).expect("saves");
    if first != parts[0] {
        parts = (0..model.saved_parts(1, bytes))
            .map(|part| model.save_part(1, tokens, bytes, part).expect("saves"))
            .collect();
    }
    assert!(model.save_part(1, tokens, bytes, parts.len()).is_err(), "there is no other part");
    parts
}

#[test]
fn parts_can_be_restored_between_steps_of_others() {
    for layers in [vec![Full, Full], MIXED.to_vec(), vec![Window(8)]] {
        let handmade = Handmade::new(&layers, 1);
        let (tokens, other) = (text(60, 2), text(20, 3));
        let mut model = handmade.load(&options(400, 2, 7));
        all_rows(&mut model, 1, &tokens[..45]);
        let saved: Vec<_> =
            [1, 300, 1 << 20].iter().map(|bytes| parts(&mut model, &tokens[..45], *bytes, &other)).collect();
        assert!(saved[0].len() > saved[1].len() && saved[1].len() > layers.len() + 1);
        assert_eq!(saved[2].len(), layers.len() + 1);
        let expected = all_rows(&mut model, 1, &tokens[45..]);
        for (context, sequences, micro_batch) in [(400, 2, 7), (70, 1, 1), (300, 3, 50)] {
            for saved in &saved {
                let mut model = handmade.load(&options(context, sequences, micro_batch));
                all_rows(&mut model, 0, &text(9, 3));
                let last = sequences - 1;
                for part in 0..saved.len() {
                    model.restore_part(last, saved, part).expect("restores");
                    if last > 0 {
                        all_rows(&mut model, 0, &other[part % other.len()..][..1]);
                    }
                }
                assert_eq!(model.length(last), 45);
                assert_same(&all_rows(&mut model, last, &tokens[45..]), &expected);
            }
        }
    }
}

#[test]
fn parts_that_do_not_fit_change_nothing() {
    let handmade = Handmade::new(&MIXED, 1);
    let tokens = text(30, 2);
    let mut model = handmade.load(&options(100, 2, 7));
    all_rows(&mut model, 1, &tokens);
    let saved = parts(&mut model, &tokens, 300, &[1, 2, 3]);
    let refused = |model: &mut Model, saved: &[Vec<u8>]| {
        model.restore_part(0, saved, 0).expect_err("is refused").to_string()
    };
    let held = model.length(0);
    for length in 0..saved.len() {
        assert!(refused(&mut model, &saved[..length]).contains("parts"), "{length}");
    }
    for part in 0..saved.len() {
        let mut short = saved.clone();
        short[part].pop();
        refused(&mut model, &short);
        let mut long = saved.clone();
        long[part].push(0);
        refused(&mut model, &long);
    }
    let other = Handmade::new(&MIXED, 2);
    let error = refused(&mut other.load(&options(100, 2, 7)), &saved);
    assert!(error.contains("model"), "{error}");
    assert_eq!(model.length(0), held, "what is refused changes nothing");
    // Later parts are checked by the first; one that does not exist empties the sequence.
    model.restore_part(0, &saved, 0).expect("restores");
    assert!(model.restore_part(0, &saved, saved.len()).is_err());
    assert_eq!(model.length(0), 0);
}

/// A model with a sequence, a saved one to put in its place, and what the sequence says next.
struct Scene {
    model: Model,
    saved: Vec<u8>,
    prompt: Vec<u32>,
    expected: Vec<f32>,
}

impl Scene {
    fn new() -> Self {
        let handmade = Handmade::new(&[Window(4), Full], 6);
        let prompt = text(9, 7);
        let mut model = handmade.load(&options(32, 2, 4));
        all_rows(&mut model, 1, &text(11, 8));
        let saved = model.save(1, &text(11, 8)).expect("saves");
        model.clear(1);
        all_rows(&mut model, 0, &prompt[..8]);
        let expected = all_rows(&mut model, 0, &prompt[8..]);
        model.truncate(0, 8).expect("one token back");
        Self { model, saved, prompt, expected }
    }

    fn refuse(&mut self, bytes: &[u8]) -> RuntimeError {
        let error = self.model.restore(0, bytes).expect_err("is refused");
        assert_eq!((self.model.length(0), self.model.free_cells()), (8, 24), "{error}");
        error
    }

    fn check_unchanged(&mut self) {
        let found = all_rows(&mut self.model, 0, &self.prompt[8..]);
        assert_same(&found, &self.expected);
        self.model.truncate(0, 8).expect("one token back");
    }
}

#[test]
fn a_damaged_byte_anywhere_is_noticed_and_does_no_harm() {
    let mut scene = Scene::new();
    let saved = scene.saved.clone();
    for at in 0..saved.len() {
        let mut damaged = saved.clone();
        damaged[at] ^= 1 << (at % 8);
        let error = scene.refuse(&damaged);
        match at {
            0..8 => assert!(matches!(error, RuntimeError::Saved(SavedError::Magic))),
            8..12 => assert!(matches!(error, RuntimeError::Saved(SavedError::Version { .. }))),
            12..20 => assert!(matches!(error, RuntimeError::Saved(SavedError::Length { .. }))),
            _ => assert!(matches!(error, RuntimeError::Saved(SavedError::Checksum))),
        }
        if at % 97 == 0 {
            scene.check_unchanged();
        }
    }
    for length in 0..saved.len() {
        scene.refuse(&saved[..length]);
    }
    scene.refuse(&[&saved[..], &[0]].concat());
    scene.check_unchanged();
    scene.model.restore(0, &saved).expect("the sound one still works");
    assert_eq!(scene.model.length(0), 11);
}

/// The checksum and length that a forger would put in.
fn forge(bytes: &mut [u8]) {
    let length = bytes.len() as u64;
    let Some((head, rest)) = bytes.split_at_mut_checked(28) else { return };
    head[12..20].copy_from_slice(&length.to_le_bytes());
    head[20..28].copy_from_slice(&Checksum::of(rest).to_le_bytes());
}

#[test]
fn forged_bytes_are_refused_or_taken_but_never_harm() {
    let mut scene = Scene::new();
    let saved = scene.saved.clone();
    let mut refused = 0;
    for at in 28..saved.len() {
        for value in [0, 1, 0x7F, 0x80, 0xFF] {
            let mut forged = saved.clone();
            forged[at] = value;
            forge(&mut forged);
            // Contents of caches cannot be told from other contents; everything else is checked.
            match scene.model.restore(1, &forged) {
                Ok(_) => assert!(scene.model.length(1) <= 32),
                Err(_) => refused += 1,
            }
            if scene.model.length(1) < 32 && scene.model.free_cells() > 0 {
                run(&mut scene.model, vec![work(1, &[1], OutputRows::Last)]);
            }
            scene.model.clear(1);
            assert_eq!(scene.model.free_cells(), 24);
        }
    }
    assert!(refused > 500, "{refused}");
    for length in 28..saved.len() {
        let mut forged = saved[..length].to_vec();
        forge(&mut forged);
        scene.refuse(&forged);
    }
    scene.check_unchanged();
}

#[test]
fn another_model_or_format_or_context_is_refused() {
    let mut scene = Scene::new();
    let refuse = |handmade: Handmade, options: &ModelOptions| {
        let mut model = handmade.load(options);
        model.restore(0, &scene.saved).expect_err("is refused")
    };
    let other = |error: RuntimeError, what: &str| {
        assert!(matches!(error, RuntimeError::Saved(SavedError::OtherModel { .. })), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    // The same graph with other weights, and another graph.
    other(refuse(Handmade::new(&[Window(4), Full], 60), &options(32, 2, 4)), "other numbers in its weights");
    other(refuse(Handmade::new(&[Full, Full], 6), &options(32, 2, 4)), "other operations");
    let formats = ModelOptions { keys: DType::Q8_0, ..options(32, 2, 4) };
    let error = refuse(Handmade::new(&[Window(4), Full], 6), &formats);
    let text = error.to_string();
    assert!(text.contains("f16 and f16") && text.contains("q8_0 and f16"), "{text}");
    let error = refuse(Handmade::new(&[Window(4), Full], 6), &options(10, 2, 4));
    assert!(matches!(error, RuntimeError::ContextFull { needed: 11, free: 10, context: 10 }));
    // No room because of another sequence: refused, and both stay.
    all_rows(&mut scene.model, 1, &support::text(20, 9));
    let saved = scene.saved.clone();
    scene.model.truncate(0, 0).expect("can be emptied");
    all_rows(&mut scene.model, 0, &support::text(4, 9));
    all_rows(&mut scene.model, 1, &support::text(4, 9));
    let error = scene.model.restore(0, &saved).expect_err("has no room");
    assert!(matches!(error, RuntimeError::ContextFull { needed: 11, free: 8, context: 32 }), "{error}");
    assert_eq!((scene.model.length(0), scene.model.length(1)), (4, 24));
}

#[test]
fn there_is_one_token_for_each_position() {
    let mut scene = Scene::new();
    for count in [0, 7, 9] {
        let tokens = support::text(count, 7);
        let error = scene.model.save(0, &tokens).expect_err("is refused");
        assert!(matches!(error, RuntimeError::TokenCount { sequence: 0, length: 8, .. }), "{error}");
    }
    // The list of tokens follows architecture, sizes and checksums, formats, next position and kind of text.
    let at = 28 + 4 + "handmade".len() + 2 * 4 + 4 * 8 + 8 + 4 + 4;
    let saved = scene.saved.clone();
    let count = u32::from_le_bytes(saved[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(count, 11);
    let mut shorter = saved.clone();
    shorter.drain(at + 4..at + 8);
    shorter[at..at + 4].copy_from_slice(&10_u32.to_le_bytes());
    let mut longer = saved;
    longer.splice(at + 4..at + 4, [0; 4]);
    longer[at..at + 4].copy_from_slice(&12_u32.to_le_bytes());
    for mut forged in [shorter, longer] {
        forge(&mut forged);
        let error = scene.refuse(&forged);
        let part = "numbers of tokens and positions";
        assert!(
            matches!(error, RuntimeError::Saved(SavedError::Inconsistent { part: found }) if found == part),
            "{error}"
        );
    }
    scene.check_unchanged();
}
