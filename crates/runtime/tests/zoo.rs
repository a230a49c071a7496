//! Zoo models of every kind, loaded from their files and run on the evaluator.

mod support;

use std::sync::Arc;

use puna_conformance::zoo::{self, ZooModel};
use puna_graph::{CacheGroup, StateDecl};
use puna_quant::DType;
use puna_runtime::{Model, ModelOptions, OutputRows, Placement, estimate};
use support::*;

/// Models with every kind of cache, mask and per-layer shape. All others run in the tests of the models and of
/// the CPU back end.
const CHOSEN: &[&str] = &[
    "llama-dense",
    "qwen2-dense",
    "qwen3-headdim",
    "gemma3-dense",
    "gemma3-window8",
    "gemma4-e-dense",
    "gpt-oss-window8",
    "llama4-interleave",
    "bloom-alibi6",
    "openelm-arrays",
    "granite-moe",
    // Recurrent and hybrid, and latent attention in both forms.
    "mamba-dense",
    "mamba2-heads",
    "falcon-h1-dense",
    "lfm2moe-top2",
    "qwen35-heads",
    "kimi-linear-top2",
    "minimax-01-moe",
    "rwkv6-dense",
    "rwkv7-dense",
    "deepseek2-yarn",
    "plm-dense",
];

fn models() -> Vec<ZooModel> {
    let chosen = |model: &ZooModel| CHOSEN.contains(&model.name.as_str());
    let models: Vec<ZooModel> = zoo::models().into_iter().filter(chosen).collect();
    assert_eq!(models.len(), CHOSEN.len());
    models
}

fn load(model: &ZooModel, options: &ModelOptions) -> Model {
    let file = Arc::new(model.open());
    Model::load(file, &reference(), &Placement::default(), options, &mut |_| true).expect("loads")
}

/// Options with the context and formats of the recorded logits.
fn recorded(sequences: u32, micro_batch: u32) -> ModelOptions {
    ModelOptions { keys: DType::F32, values: DType::F32, ..options(256, sequences, micro_batch) }
}

#[track_caller]
fn assert_golden(model: &ZooModel, found: &[f32], from: usize) {
    let width = model.logits.len() / model.tokens.len();
    let error = normalised_squared_error(found, &model.logits[from * width..]);
    assert!(error <= model.tolerance(), "{}: normalised squared error {error:.2e}", model.name);
}

fn greedy(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.expect("has logits") as u32
}

#[test]
fn logits_equal_the_recorded_ones_however_the_prompt_is_cut() {
    for zoo_model in models() {
        for micro_batch in [1, 7, 512] {
            let mut model = load(&zoo_model, &recorded(1, micro_batch));
            assert_golden(&zoo_model, &all_rows(&mut model, 0, &zoo_model.tokens), 0);
        }
    }
}

#[test]
fn logits_equal_the_recorded_ones_among_other_sequences() {
    for zoo_model in models() {
        let mut model = load(&zoo_model, &recorded(4, 10));
        let tokens = &zoo_model.tokens;
        let batch = vec![
            work(0, &tokens[12..], OutputRows::None),
            work(1, &tokens[..20], OutputRows::None),
            work(2, tokens, OutputRows::All),
        ];
        assert_golden(&zoo_model, &run(&mut model, batch).logits, 0);
        // A copy goes on as the original would, and so does a saved one, after the original was changed.
        model.copy(1, 3);
        let saved = model.save(1, &tokens[..20]).expect("saves");
        all_rows(&mut model, 1, &tokens[..3]);
        assert_golden(&zoo_model, &all_rows(&mut model, 3, &tokens[20..]), 20);
        assert_eq!(model.restore(1, &saved).expect("restores"), tokens[..20]);
        assert_golden(&zoo_model, &all_rows(&mut model, 1, &tokens[20..]), 20);
        // One token back and again, as for a prompt that is already there; recurrent layers can go back to where
        // a step began.
        let length = model.longest_truncation(1, 23);
        let recurrent = model.graph().groups().contains(&CacheGroup::Recurrent);
        assert_eq!(length, if recurrent { 20 } else { 23 }, "{}", zoo_model.name);
        model.truncate(1, length).expect("what is needed is there");
        let length = length as usize;
        assert_golden(&zoo_model, &all_rows(&mut model, 1, &tokens[length..]), length);
    }
}

#[test]
fn greedy_continuations_equal_the_recorded_ones() {
    for zoo_model in models() {
        let mut model = load(&zoo_model, &recorded(1, 512));
        let mut next = zoo_model.tokens.clone();
        let mut found = Vec::new();
        while found.len() < zoo_model.greedy.len() {
            let outputs = run(&mut model, vec![work(0, &next, OutputRows::Last)]);
            let token = greedy(outputs.last(0).expect("has a row"));
            found.push(token);
            next = vec![token];
        }
        assert_eq!(found, zoo_model.greedy, "{}", zoo_model.name);
    }
}

/// Bytes of all caches of a model with this context, for 2 sequences and steps of 16 tokens.
fn cache_bytes(model: &ZooModel, context: u32) -> u64 {
    let model = load(model, &ModelOptions { context, ..recorded(2, 16) });
    model.memory().iter().map(|memory| memory.caches).sum()
}

#[test]
fn windowed_layers_keep_only_their_window() {
    for name in ["gemma3-window8", "gpt-oss-window8", "llama-dense"] {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("the zoo has it");
        let graph = load(&model, &recorded(1, 1)).graph().clone();
        let cell = |state: &StateDecl| match state {
            StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => {
                4 * u64::from(kv_heads * (key_dim + value_dim))
            }
            StateDecl::Recurrent { .. } => 0,
        };
        let full =
            graph.states.iter().filter(|state| state.group() == CacheGroup::Full).map(cell).sum::<u64>();
        let windows =
            graph.states.iter().filter(|state| state.group() != CacheGroup::Full).map(cell).sum::<u64>();
        assert_eq!(windows > 0, name != "llama-dense", "{name}");
        // Two windows of 8, a step of 16, and half a window to go back.
        for context in [64, 1024, 16384] {
            assert_eq!(
                cache_bytes(&model, context),
                u64::from(context) * full + 36 * windows,
                "{name} {context}"
            );
        }
    }
}

#[test]
fn facts_and_memory_are_those_of_the_file() {
    for zoo_model in models() {
        let file = zoo_model.open();
        let options = recorded(2, 16);
        let estimated = estimate(&file.metadata, &file.tensors, &options).expect("can be estimated");
        let model = load(&zoo_model, &options);
        let information = model.information();
        assert_eq!(information.architecture, zoo_model.architecture());
        assert_eq!((information.context, information.vocabulary), (256, 128));
        assert!(information.layers > 0 && information.embedding > 0 && information.context_train > 0);
        assert_eq!(4 * information.parameters, information.file_bytes);
        let caches: u64 = model.memory().iter().map(|memory| memory.caches).sum();
        assert_eq!(estimated.caches, caches, "{}", zoo_model.name);
        let unused = puna_models::unused_tensors(model.graph(), &file.tensors);
        let unused = unused.iter().filter_map(|name| file.tensors.get(name)).map(|tensor| tensor.byte_len());
        assert_eq!(estimated.weights, information.file_bytes - unused.sum::<u64>());
        // At least one residual stream and one set of logits.
        assert!(estimated.work >= 16 * 4 * (information.embedding as u64).max(128));
        assert_eq!(estimated.total(), estimated.weights + estimated.caches + estimated.work);

        let trained = ModelOptions { context: 0, ..options };
        assert_eq!(load(&zoo_model, &trained).options().context, information.context_train);
    }
}
