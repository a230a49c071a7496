//! A text that grows beyond the room that caches begin with.

use std::sync::Arc;

use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

mod common;
mod sequences;

use sequences::Sequences;

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

/// Prompts that share a beginning, one after the other, beside a text that stays: the variables of the model keep no more than is
/// needed, and answers stay right.
#[test]
fn variables_forget_what_no_text_needs() {
    let stateful = ("GGML_OPENVINO_STATEFUL_EXECUTION", "1");
    let Some((host, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let Some((packing, lines)) = common::start_with_shim(&[common::EXACT, stateful]) else { return };
    let Some((growing, told)) = common::start(&[common::EXACT, common::NO_SHIM, stateful]) else { return };
    for name in ["llama-gqa4-tied", "gemma2-window8"] {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("the zoo has it");
        let file = Arc::new(model.open());
        let mut all =
            [&host, &packing, &growing].map(|backend| Sequences::load(backend, &file, 2, DType::F32));
        let tokens =
            |seed: u32, count: u32| -> Vec<u32> { (0..count).map(|i| (i * 7 + seed) % 50).collect() };
        let mut rows = 30 + 10;
        for sequences in &mut all {
            sequences.push(&[(0, &tokens(1, 30)), (1, &tokens(2, 10))]);
        }
        let row_bytes = all[1].cache_bytes() / rows;
        for round in 0..12 {
            let (prompt, answer) = (tokens(round, 40), tokens(round + 5, 1));
            let found = all.each_mut().map(|sequences| {
                sequences.truncate(1, 10);
                let first = sequences.push(&[(1, &prompt)]);
                [first, sequences.push(&[(0, &answer), (1, &answer)])].concat().concat()
            });
            rows += 42;
            for other in &found[1..] {
                let error = normalised_squared_error(other, &found[0]);
                assert!(error < 1e-6, "{name}, round {round}: {error:.1e}");
            }
        }
        // 60 to 81 rows are needed, and as many as the 256 that may lie unused come with a step of 40.
        let kept = all[1].cache_bytes() / row_bytes;
        assert!(kept < 81 + 256 + 42, "{name}: {kept} rows");
        assert_eq!(all[2].cache_bytes() / row_bytes, rows, "{name}");
    }
    let said = |lines: &std::sync::Mutex<Vec<String>>| {
        let lines = lines.lock().expect("no panic");
        lines.iter().filter(|line| line.contains("taking them out needs the shim")).count()
    };
    assert_eq!((said(&lines), said(&told)), (0, 1));
}
