//! Faults of caches that other engines had, each with its number in the list of known faults.

mod support;

use std::sync::Arc;

use puna_conformance::zoo;
use puna_graph::CacheGroup::Full;
use puna_quant::DType;
use puna_runtime::{Model, ModelOptions, OutputRows, Placement};
use support::*;

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn k10_cells_may_be_shifted_a_hundred_times() {
    let handmade = Handmade::new(&[Full], 21);
    let tokens = text(124, 22);
    for (format, bound) in [(DType::F32, 0.999_999), (DType::F16, 0.999)] {
        let load = || handmade.load(&ModelOptions { keys: format, values: format, ..options(256, 1, 16) });
        let mut model = load();
        all_rows(&mut model, 0, &tokens);
        for _ in 0..100 {
            model.shift(0, 4, 1).expect("there is enough");
        }
        let found = all_rows(&mut model, 0, &[5]);
        let kept = [&tokens[..4], &tokens[104..], &[5]].concat();
        let fresh = all_rows(&mut load(), 0, &kept);
        let fresh = &fresh[fresh.len() - found.len()..];
        assert!(cosine(&found, fresh) > bound, "{format}: {}", cosine(&found, fresh));
    }
}

#[test]
fn k11_many_ragged_sequences_equal_single_ones() {
    let handmade = Handmade::new(&[Full, Full], 31);
    let texts: Vec<Vec<u32>> = (0..32).map(|index| text(1 + 5 * index % 37, 100 + index as u64)).collect();
    for count in [2, 5, 32] {
        let mut model = handmade.load(&options(2048, 32, 64));
        let batch = texts[..count].iter().enumerate();
        let batch = batch.map(|(index, text)| work(index as u32, text, OutputRows::All)).collect();
        let together = run(&mut model, batch).logits;
        let alone: Vec<f32> = texts[..count]
            .iter()
            .flat_map(|text| all_rows(&mut handmade.load(&options(2048, 1, 64)), 0, text))
            .collect();
        assert_same(&together, &alone);
    }
}

#[test]
fn k13_the_size_of_steps_does_not_change_logits() {
    let handmade = Handmade::new(&[Full, Full], 41);
    for length in [31, 32, 33] {
        let tokens = text(length, 42);
        let whole = all_rows(&mut handmade.load(&options(64, 1, 512)), 0, &tokens);
        for step in [1, 7, 31, 32, 33] {
            assert_same(&all_rows(&mut handmade.load(&options(64, 1, step)), 0, &tokens), &whole);
        }
    }
}

#[test]
fn k14_a_larger_context_does_not_change_short_texts() {
    // Not those with long and short factors (Phi-3), which are chosen by the context, as the peer does.
    for name in ["llama-yarn", "gemma3-window8"] {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("the zoo has it");
        let logits = |context: u32| {
            let file = Arc::new(model.open());
            let options = options(context, 1, 64);
            let loaded = Model::load(file, &reference(), &Placement::default(), &options, &mut |_| true);
            all_rows(&mut loaded.expect("loads"), 0, &model.tokens)
        };
        let (small, large) = (logits(64), logits(4096));
        assert!(normalised_squared_error(&large, &small) < 1e-12, "{name}");
    }
}
