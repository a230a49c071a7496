//! Operations on sequences: copying, truncating, removing, shifting.

mod support;

use puna_graph::CacheGroup::{self, Full, Window};
use puna_runtime::{ModelOptions, OutputRows, RuntimeError};
use support::*;

const MIXED: [CacheGroup; 3] = [Window(8), Full, Window(8)];

/// Logits of the tokens of `tokens` from `from` on, all in one text.
fn rows_from(handmade: &Handmade, tokens: &[u32], from: usize) -> Vec<f32> {
    let all = ModelOptions { full_window_cache: true, ..options(512, 1, 512) };
    all_rows(&mut handmade.load(&all), 0, tokens)[from * VOCABULARY as usize..].to_vec()
}

#[test]
fn copies_diverge_without_touching_each_other() {
    for layers in [vec![Full, Full], MIXED.to_vec()] {
        let handmade = Handmade::new(&layers, 1);
        let start = text(25, 2);
        let mut model = handmade.load(&options(100, 3, 6));
        all_rows(&mut model, 0, &start);
        model.copy(0, 1);
        model.copy(0, 2);
        assert_eq!(model.free_cells(), 75);
        let ends: Vec<Vec<u32>> = (0..3).map(|sequence| text(15, 30 + sequence)).collect();
        // Interleaved, so that each writes while the others read.
        let mut found = vec![Vec::new(); 3];
        for index in 0..15 {
            let batch =
                (0..3).map(|s| work(s as u32, &ends[s][index..index + 1], OutputRows::Last)).collect();
            let outputs = run(&mut model, batch);
            (0..3).for_each(|s| found[s].extend_from_slice(outputs.last(s as u32).expect("has a row")));
        }
        for (end, found) in ends.iter().zip(&found) {
            assert_same(found, &rows_from(&handmade, &[&start[..], end].concat(), 25));
        }
        model.keep(2);
        assert_eq!((model.length(0), model.length(1), model.length(2)), (0, 0, 40));
        assert_eq!(model.free_cells(), 60);
        let more = text(5, 40);
        let whole = [&start[..], &ends[2], &more].concat();
        assert_same(&all_rows(&mut model, 2, &more), &rows_from(&handmade, &whole, 40));
    }
}

#[test]
fn sequences_that_do_not_exist_are_empty() {
    let mut model = Handmade::new(&MIXED, 3).load(&options(64, 2, 8));
    all_rows(&mut model, 0, &text(5, 4));
    model.copy(0, 2);
    model.clear(9);
    assert_eq!(model.length(0), 5);
    model.copy(7, 0);
    assert_eq!((model.length(0), model.positions(7)), (0, 0..0));
    assert!(matches!(model.truncate(2, 0), Err(RuntimeError::SequenceOutOfRange { .. })));
    assert!(model.shift(2, 0, 0).is_err() && model.save(2, &[]).is_err() && model.restore(2, &[]).is_err());
}

#[test]
fn truncated_sequences_regenerate() {
    let handmade = Handmade::new(&MIXED, 5);
    let tokens = text(40, 6);
    let mut model = handmade.load(&options(64, 2, 4));
    all_rows(&mut model, 0, &tokens);
    for from in [39, 37, 36] {
        model.truncate(0, from).expect("the window has what is needed");
        assert_eq!(model.length(0), from);
        let end = text(4, 100 + from as u64);
        let whole = [&tokens[..from as usize], &end].concat();
        assert_same(&all_rows(&mut model, 0, &end), &rows_from(&handmade, &whole, from as usize));
        model.truncate(0, from).expect("the window has what is needed");
    }
    // The same prompt again, of which only the last token is run again.
    model.truncate(0, 35).expect("the window has what is needed");
    let again = all_rows(&mut model, 0, &tokens[35..36]);
    assert_same(&again, &rows_from(&handmade, &tokens[..36], 35));
    model.truncate(0, 100).expect("nothing to do");
    assert_eq!(model.length(0), 36);
}

#[test]
fn a_window_refuses_to_go_back_further_than_it_remembers() {
    let handmade = Handmade::new(&MIXED, 7);
    let tokens = text(60, 8);
    let mut model = handmade.load(&options(64, 1, 4));
    all_rows(&mut model, 0, &tokens);
    let kept = model.positions(0);
    let earliest = model.earliest_truncation(0);
    assert_eq!(kept.end, 60);
    assert_eq!(earliest as i32, kept.start + 7);
    let refused = model.truncate(0, earliest - 1);
    let expected = (earliest - 1, earliest);
    assert!(
        matches!(refused, Err(RuntimeError::PositionsLost { sequence: 0, position, earliest, nearest: 0 })
            if (position, earliest) == expected),
        "{refused:?}"
    );
    assert_eq!((model.length(0), model.positions(0)), (60, kept));
    model.truncate(0, earliest).expect("that much is remembered");
    let rest = all_rows(&mut model, 0, &tokens[earliest as usize..]);
    assert_same(&rest, &rows_from(&handmade, &tokens, earliest as usize));
    model.truncate(0, 0).expect("from the start is always possible");
    assert_eq!(model.earliest_truncation(0), 0);
    assert_same(&all_rows(&mut model, 0, &tokens), &rows_from(&handmade, &tokens, 0));
    // With full window caches nothing is ever lost.
    let all = ModelOptions { full_window_cache: true, ..options(64, 1, 4) };
    let mut model = handmade.load(&all);
    all_rows(&mut model, 0, &tokens);
    model.truncate(0, 3).expect("everything is remembered");
    assert_same(&all_rows(&mut model, 0, &tokens[3..]), &rows_from(&handmade, &tokens, 3));
}

#[test]
fn removed_positions_leave_a_hole() {
    // In a single layer keys and values depend on nothing but the token and its position.
    let handmade = Handmade::new(&[Full], 9);
    let tokens = text(20, 10);
    let mut model = handmade.load(&options(64, 2, 16));
    all_rows(&mut model, 0, &tokens);
    model.copy(0, 1);
    model.remove(0, 5..9).expect("exists");
    assert_eq!((model.length(0), model.free_cells()), (20, 44));
    let with_hole = all_rows(&mut model, 0, &[3]);
    let without = all_rows(&mut model, 1, &[3]);
    assert!(normalised_squared_error(&with_hole, &without) > 1e-6);
    // The hole hides what was there: other tokens at its positions make no difference.
    let mut other = tokens.clone();
    other[5..9].copy_from_slice(&text(4, 11));
    let mut model = handmade.load(&options(64, 1, 16));
    all_rows(&mut model, 0, &other);
    model.remove(0, 5..9).expect("exists");
    assert_same(&all_rows(&mut model, 0, &[3]), &with_hole);
    model.remove(0, -5..i32::MAX).expect("exists");
    assert_eq!((model.length(0), model.free_cells()), (0, 64));
}

#[test]
fn shifted_keys_equal_those_of_a_fresh_text() {
    for group in [Full, Window(16)] {
        let handmade = Handmade::new(&[group], 12);
        let mut tokens = text(40, 13);
        let mut model = handmade.load(&options(64, 1, 8));
        all_rows(&mut model, 0, &tokens);
        for round in 0..100 {
            model.shift(0, 4, 3).expect("exists");
            tokens.drain(4..7);
            assert_eq!(model.length(0) as usize, tokens.len());
            let more = text(3, 1000 + round);
            tokens.extend(&more);
            let found = all_rows(&mut model, 0, &more);
            let error = normalised_squared_error(&found, &rows_from(&handmade, &tokens, tokens.len() - 3));
            assert!(error < 1e-9, "round {round}: {error:e}");
        }
    }
}

#[test]
fn a_shift_does_not_touch_copies() {
    for layers in [vec![Full, Full], MIXED.to_vec()] {
        let handmade = Handmade::new(&layers, 14);
        let tokens = text(30, 15);
        let mut model = handmade.load(&options(60, 2, 8));
        all_rows(&mut model, 0, &tokens);
        model.copy(0, 1);
        model.shift(0, 2, 6).expect("has room for copies");
        assert_eq!((model.length(0), model.length(1)), (24, 30));
        let more = text(4, 16);
        let whole = [&tokens[..], &more].concat();
        assert_same(&all_rows(&mut model, 1, &more), &rows_from(&handmade, &whole, 30));
        // The shifted one equals a sequence that was shifted without being shared.
        let mut alone = handmade.load(&options(60, 2, 8));
        all_rows(&mut alone, 0, &tokens);
        alone.shift(0, 2, 6).expect("exists");
        assert_same(&all_rows(&mut model, 0, &more), &all_rows(&mut alone, 0, &more));
    }
}

#[test]
fn a_shift_that_has_no_room_changes_nothing() {
    let handmade = Handmade::new(&[Full], 17);
    let tokens = text(30, 18);
    let mut model = handmade.load(&options(40, 2, 8));
    all_rows(&mut model, 0, &tokens);
    model.copy(0, 1);
    let refused = model.shift(0, 2, 6);
    assert!(
        matches!(refused, Err(RuntimeError::ContextFull { needed: 22, free: 10, context: 40 })),
        "{refused:?}"
    );
    let outside = model.shift(0, 20, 11);
    assert!(matches!(outside, Err(RuntimeError::ShiftRange { keep: 20, discard: 11, length: 30 })));
    assert!(model.shift(0, u32::MAX, u32::MAX).is_err());
    model.shift(0, 30, 0).expect("nothing to do");
    assert_eq!((model.length(0), model.length(1), model.free_cells()), (30, 30, 10));
    let whole = [&tokens[..], &[1]].concat();
    assert_same(&all_rows(&mut model, 0, &[1]), &rows_from(&handmade, &whole, 30));
}

#[test]
fn a_full_context_goes_on_after_a_shift() {
    let handmade = Handmade::new(&MIXED, 19);
    let mut model = handmade.load(&options(32, 1, 8));
    for token in text(500, 20) {
        if model.free_cells() == 0 {
            model.shift(0, 4, 14).expect("exists");
        }
        assert!(all_rows(&mut model, 0, &[token]).iter().all(|logit| logit.is_finite()));
    }
}
