//! LongRoPE: a text's length decides about its frequencies, and the context that it might have had does not.

mod support;

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo;
use puna_quant::DType;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Placement, Work};
use support::normalised_squared_error;

/// Tokens of the longest short text of the model.
const SHORT: usize = 128;

fn load(backend: &Arc<dyn Backend>, context: u32, only_long_texts: bool) -> Model {
    let found = zoo::models().into_iter().find(|model| model.name == "phi3-longrope-long");
    let file = Arc::new(found.expect("the model is there").open());
    let options = ModelOptions {
        context,
        sequences: 3,
        keys: DType::F32,
        values: DType::F32,
        only_long_texts,
        ..ModelOptions::default()
    };
    let backends = [backend.clone()];
    Model::load(file, &backends, &Placement::default(), &options, &mut |_| true).expect("the model loads")
}

fn backends() -> [Arc<dyn Backend>; 2] {
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("threads start");
    [Arc::new(Reference), Arc::new(cpu)]
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (index * 37 + 11) % 128).collect()
}

fn run(model: &mut Model, work: &[(u32, &[u32])]) -> Vec<f32> {
    let work = work.iter().map(|(sequence, tokens)| Work {
        sequence: *sequence,
        tokens: tokens.to_vec(),
        outputs: OutputRows::All,
    });
    model.run(&Batch::of(work.collect())).expect("the batch runs").logits.into_vec()
}

#[test]
fn the_context_of_a_short_text_does_not_matter() {
    for backend in backends() {
        let text = tokens(100);
        let found: Vec<Vec<f32>> =
            [128, 256, 4096].map(|context| run(&mut load(&backend, context, false), &[(0, &text)])).into();
        assert!(found[0] == found[1] && found[1] == found[2], "on {}", backend.name());
        let long = run(&mut load(&backend, 256, true), &[(0, &text)]);
        let distance = normalised_squared_error(&long, &found[0]);
        assert!(distance > 1e-4, "the two kinds differ by {distance:.1e} only");
    }
}

#[test]
fn a_long_text_is_long_from_its_first_token_on() {
    for backend in backends() {
        let text = tokens(SHORT + 9);
        let expected = run(&mut load(&backend, 256, true), &[(0, &text)]);
        let close = |found: &[f32], what: &str| {
            let error = normalised_squared_error(found, &expected);
            assert!(error < 1e-10, "{what} on {}: {error:.1e}", backend.name());
        };
        let mut model = load(&backend, 512, false);
        close(&run(&mut model, &[(0, &text)]), "at once");
        // Announced, in parts, beside a short one.
        let (first, rest) = text.split_at(40);
        assert!(model.expect(1, text.len() as u32));
        let short = tokens(20);
        let mut found = run(&mut model, &[(1, first), (2, &short)]);
        let beside = found.split_off(first.len() * 128);
        found.extend(run(&mut model, &[(1, rest)]));
        close(&found, "in parts");
        let alone = run(&mut load(&backend, 128, false), &[(0, &short)]);
        assert!(normalised_squared_error(&beside, &alone) < 1e-10, "a short text beside a long one");

        // What is held suits texts of its own kind alone; copies and saved sequences know theirs.
        assert!(!model.expect(2, text.len() as u32) && model.expect(2, SHORT as u32));
        assert!(!model.expect(1, 100) && model.expect(1, text.len() as u32 + 1));
        let saved = model.save(1, &text).expect("it can be saved");
        model.copy(1, 0);
        assert!(!model.expect(0, 100));
        model.clear(0);
        assert!(model.expect(0, 100));
        model.restore(2, &saved).expect("it can be restored");
        assert!(!model.expect(2, 100));
    }
}
