//! A text that grows beyond the room that caches begin with.

use std::sync::Arc;

use puna_conformance::run::SingleSequence;
use puna_conformance::zoo;
use puna_models::{BuildOptions, build};
use puna_quant::DType;

mod common;

#[test]
fn nothing_is_compiled_again_when_a_text_grows() {
    let profile = ("GGML_OPENVINO_PROFILING", "1");
    let stateful = ("GGML_OPENVINO_STATEFUL_EXECUTION", "1");
    let model = zoo::models().into_iter().find(|model| model.name == "llama-gqa4-tied");
    let model = model.expect("the zoo has it");
    for (form, started) in [
        ("host", common::start(&[common::EXACT, common::NO_SHIM, profile])),
        ("model", common::start(&[common::EXACT, common::NO_SHIM, profile, stateful])),
        ("pages", common::start_with_shim(&[common::EXACT, profile])),
    ] {
        let Some((backend, lines)) = started else { continue };
        let file = Arc::new(model.open());
        let options = BuildOptions { context: 1024, ..BuildOptions::default() };
        let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
        let mut sequence = SingleSequence::load(&backend, file, graph, DType::F32, 1024);
        let lengths = [3, 1, 300, 1, 1, 400, 1, 290, 1];
        for length in lengths {
            let tokens: Vec<u32> = (0..length).map(|place| place * 7 % 50).collect();
            let logits = sequence.push(&tokens);
            assert!(logits.iter().all(|logit| logit.is_finite()), "{form}: step of {length}");
        }
        let lines = lines.lock().expect("no panic");
        let said = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!((said(" compiled in "), said("run of ")), (1, lengths.len()), "{form}: {lines:?}");
    }
}
