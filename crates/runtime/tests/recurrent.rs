//! What sequences of models with recurrent layers can and cannot do, on a hybrid model of the zoo.

mod support;

use std::sync::Arc;

use puna_conformance::zoo::{self, ZooModel};
use puna_quant::DType;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Placement, Reach, RuntimeError};
use support::*;

fn hybrid() -> (ZooModel, Model) {
    let found = zoo::models().into_iter().find(|model| model.name == "falcon-h1-dense");
    let zoo_model = found.expect("the zoo has it");
    let options = ModelOptions { keys: DType::F32, values: DType::F32, ..options(256, 2, 8) };
    let file = Arc::new(zoo_model.open());
    let model = Model::load(file, &reference(), &Placement::default(), &options, &mut |_| true);
    (zoo_model, model.expect("loads"))
}

#[test]
fn truncation_goes_to_checkpoints_only() {
    let (zoo_model, mut model) = hybrid();
    let tokens = &zoo_model.tokens;
    // Three steps of eight tokens: states after 8, 16 and 24.
    let whole = all_rows(&mut model, 0, tokens);
    let refused = model.truncate(0, 20);
    assert!(
        matches!(refused, Err(RuntimeError::PositionsLost { position: 20, nearest: 16, earliest: 24, .. })),
        "{refused:?}"
    );
    assert_eq!(model.length(0), 24);
    assert_eq!([23, 16, 15, 7].map(|length| model.longest_truncation(0, length)), [16, 16, 8, 0]);
    model.truncate(0, 16).expect("a step began there");
    let width = whole.len() / tokens.len();
    let again = all_rows(&mut model, 0, &tokens[16..]);
    assert_same(&again, &whole[16 * width..]);
    model.truncate(0, 0).expect("from the start is always possible");
    assert_same(&all_rows(&mut model, 0, tokens), &whole);
}

#[test]
fn positions_in_the_middle_cannot_be_lost() {
    let (zoo_model, mut model) = hybrid();
    all_rows(&mut model, 1, &zoo_model.tokens);
    assert!(matches!(model.shift(1, 2, 4), Err(RuntimeError::Recurrent { sequence: 1 })));
    assert!(matches!(model.remove(1, 2..6), Err(RuntimeError::Recurrent { sequence: 1 })));
    assert_eq!((model.length(1), model.positions(1)), (24, 0..24));
    model.shift(1, 2, 0).expect("nothing to do");
}

#[test]
fn a_refused_batch_leaves_states_as_they_were() {
    let (zoo_model, mut model) = hybrid();
    let tokens = &zoo_model.tokens;
    let whole = all_rows(&mut model, 0, tokens);
    model.clear(0);
    all_rows(&mut model, 0, &tokens[..12]);
    let too_long: Vec<u32> = tokens.iter().cycle().take(300).copied().collect();
    let batch = Batch::of(vec![work(0, &too_long, OutputRows::None)]);
    assert!(matches!(model.run(&batch), Err(RuntimeError::ContextFull { .. })));
    let width = whole.len() / tokens.len();
    assert_same(&all_rows(&mut model, 0, &tokens[12..]), &whole[12 * width..]);
}

#[test]
fn a_restored_sequence_keeps_the_states_that_cover_most() {
    let (zoo_model, mut model) = hybrid();
    let (prompt, answer) = (&zoo_model.tokens, [5, 9, 3, 7, 1]);
    let whole = all_rows(&mut model, 0, prompt);
    answer.iter().for_each(|token| drop(all_rows(&mut model, 0, &[*token])));
    let text = [&prompt[..], &answer].concat();
    let saved = model.save(0, &text).expect("saves");
    let parts: Vec<Vec<u8>> = (0..model.saved_parts(0, 1 << 20))
        .map(|part| model.save_part(0, &text, 1 << 20, part).expect("saves"))
        .collect();
    // Ends of steps of the prompt, of the answer only the last one: a model of one sequence has room for three.
    assert_eq!(model.reach(0), Reach { from: u32::MAX, lengths: vec![8, 16, 29] });
    let file = Arc::new(zoo_model.open());
    let options = ModelOptions { keys: DType::F32, values: DType::F32, ..options(256, 1, 8) };
    for by_parts in [false, true] {
        let load = Model::load(file.clone(), &reference(), &Placement::default(), &options, &mut |_| true);
        let mut other = load.expect("loads");
        match by_parts {
            true => (0..parts.len()).for_each(|part| other.restore_part(0, &parts, part).expect("restores")),
            false => drop(other.restore(0, &saved).expect("restores")),
        }
        assert_eq!([29, 28, 15, 7].map(|length| other.longest_truncation(0, length)), [29, 16, 8, 0]);
        for length in [16, 8] {
            other.truncate(0, length as u32).expect("a state is there");
            let again = all_rows(&mut other, 0, &prompt[length..]);
            assert_same(&again, &whole[length * whole.len() / prompt.len()..]);
        }
    }
}
