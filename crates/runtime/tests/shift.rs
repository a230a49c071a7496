//! Context shift of every zoo model, cut to one layer: there a shifted text equals a fresh one, or the shift is refused.

mod support;

use std::sync::Arc;

use puna_conformance::zoo;
use puna_quant::DType;
use puna_runtime::{Model, ModelOptions, Placement, RuntimeError};
use support::*;

/// What a shift of a model's only layer came to.
enum Outcome {
    /// The model cannot be cut to one layer, or has recurrent ones.
    Skipped,
    Refused,
    /// Normalised error against a fresh text.
    Shifted(f64),
}

fn outcome(model: &zoo::ZooModel) -> Outcome {
    let mut file = model.open();
    file.metadata.set(format!("{}.block_count", model.architecture()), 1_u32);
    let file = Arc::new(file);
    let options =
        ModelOptions { keys: DType::F32, values: DType::F32, full_window_cache: true, ..options(64, 1, 64) };
    let load = || Model::load(file.clone(), &reference(), &Placement::default(), &options, &mut |_| true);
    let Ok(mut shifted) = load() else { return Outcome::Skipped };
    let tokens = &model.tokens[..model.tokens.len().min(12)];
    let (start, last) = tokens.split_at(tokens.len() - 1);
    all_rows(&mut shifted, 0, start);
    match shifted.shift(0, 2, 3) {
        Ok(()) => {}
        Err(RuntimeError::Recurrent { .. }) => return Outcome::Skipped,
        Err(RuntimeError::Unshiftable { layer: 0 }) => return Outcome::Refused,
        Err(other) => panic!("{}: {other}", model.name),
    }
    let found = all_rows(&mut shifted, 0, last);
    let fresh = [&start[..2], &start[5..], last].concat();
    let expected = all_rows(&mut load().expect("it was loaded before"), 0, &fresh);
    let expected = &expected[expected.len() - found.len()..];
    Outcome::Shifted(normalised_squared_error(&found, expected))
}

#[test]
fn a_shift_is_right_or_refused() {
    let (mut refused, mut wrong, mut right, mut skipped) = (Vec::new(), Vec::new(), 0, 0);
    for model in zoo::models() {
        match outcome(&model) {
            Outcome::Skipped => skipped += 1,
            Outcome::Refused => refused.push(model.architecture().to_owned()),
            Outcome::Shifted(error) if error < 1e-9 => right += 1,
            Outcome::Shifted(error) => wrong.push(format!("{}: {error:.1e}", model.name)),
        }
    }
    refused.dedup();
    println!("{right} right, {skipped} skipped, refused: {refused:?}");
    assert!(wrong.is_empty(), "wrong: {wrong:#?}");
    assert!(right > 60, "{right} right, {skipped} skipped, refused: {refused:?}");
    // A norm after the rotation, and positions that are learned.
    for known in ["hunyuan-dense", "maincoder", "gpt2"] {
        assert!(refused.iter().any(|name| name == known), "{known} is not among {refused:?}");
    }
}
