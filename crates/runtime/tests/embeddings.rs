//! Embedding, scoring and encoder-decoder models through the runtime.

mod support;

use std::sync::Arc;

use puna_conformance::zoo::{self, EmbeddingModel};
use puna_quant::DType;
use puna_runtime::{Model, ModelOptions, OutputRows, Placement, Pooling, Purpose, RuntimeError};
use support::{normalised_squared_error, reference, run, work};

fn load(model: &EmbeddingModel, purpose: Purpose, micro_batch: u32, sequences: u32) -> Model {
    try_load(model, purpose, micro_batch, sequences).expect("loads")
}

fn try_load(
    model: &EmbeddingModel,
    purpose: Purpose,
    micro_batch: u32,
    sequences: u32,
) -> Result<Model, RuntimeError> {
    let options = ModelOptions {
        context: 256,
        sequences,
        micro_batch,
        keys: DType::F32,
        values: DType::F32,
        purpose,
        ..ModelOptions::default()
    };
    Model::load(Arc::new(model.open()), &reference(), &Placement::default(), &options, &mut |_| true)
}

fn named(name: &str) -> EmbeddingModel {
    zoo::embedding_models().into_iter().find(|model| model.name == name).expect("a zoo model")
}

/// One of each: an encoder, windows to both sides, a causal model, a reranker of either direction.
#[test]
fn texts_of_unequal_length_share_steps() {
    for name in ["bert", "modern-bert-silu", "qwen3-embedding", "bert-rerank", "qwen3-rerank", "t5encoder"] {
        let model = named(name);
        let texts: Vec<Vec<u32>> = std::iter::once(&model.tokens).chain(&model.batch).cloned().collect();
        for (kind, right) in &model.recorded {
            let pooling = Pooling::from_name(kind).expect("a kind of pooling");
            // All in one step, and two steps for the four of them.
            for (micro_batch, sequences) in [(256, 4), (40, 2), (40, 1)] {
                let mut loaded = load(&model, Purpose::Embed(Some(pooling)), micro_batch, sequences);
                let found = loaded.embed(&texts).expect("embeds").concat();
                let error = normalised_squared_error(&found, right);
                assert!(error <= model.tolerance(), "{name} {kind} {micro_batch} {sequences}: {error:e}");
                assert_eq!(loaded.length(0), 0, "nothing is kept");
            }
        }
    }
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let bert = named("bert");
    assert!(matches!(try_load(&bert, Purpose::Generate, 64, 1), Err(RuntimeError::Model(_))));
    let mut loaded = load(&bert, Purpose::Embed(None), 8, 2);
    assert!(loaded.needs_whole_texts());
    let long = loaded.embed(&[vec![1; 3], vec![1; 9]]);
    assert!(matches!(long, Err(RuntimeError::TextTooLong { tokens: 9, most: 8 })), "{long:?}");
    assert!(matches!(loaded.embed(&[vec![1], vec![]]), Err(RuntimeError::EmptyText { index: 1 })));
    assert!(matches!(loaded.embed(&[vec![128]]), Err(RuntimeError::TokenOutOfRange { .. })));
    assert_eq!(loaded.embed(&[]).expect("nothing to do"), Vec::<Vec<f32>>::new());

    // A causal model is cut into steps as usual, unless a mean is asked for.
    let model = named("qwen3-embedding");
    let long = vec![5; 20];
    let mut last = load(&model, Purpose::Embed(Some(Pooling::Last)), 8, 1);
    let mut whole = load(&model, Purpose::Embed(Some(Pooling::Last)), 64, 1);
    let found = last.embed(std::slice::from_ref(&long)).expect("embeds");
    assert!(
        normalised_squared_error(&found[0], &whole.embed(std::slice::from_ref(&long)).expect("embeds")[0])
            < 1e-12
    );
    let mut mean = load(&model, Purpose::Embed(Some(Pooling::Mean)), 8, 1);
    assert!(matches!(mean.embed(&[long]), Err(RuntimeError::TextTooLong { .. })));
    let mut generating = load(&model, Purpose::Generate, 8, 1);
    assert!(matches!(generating.embed(&[vec![1]]), Err(RuntimeError::Purpose { .. })));
}

/// The decoder's logits, in one step and token by token, of two sequences with inputs of their own, and after saving
/// and restoring.
#[test]
fn a_decoder_sees_what_its_encoder_read() {
    for name in ["t5", "t5-gated"] {
        let model = named(name);
        let right = &model.recorded["logits"];
        let check = |found: &[f32], what: &str| {
            let error = normalised_squared_error(found, right);
            assert!(error <= model.tolerance(), "{name}, {what}: {error:e}");
        };
        let mut loaded = load(&model, Purpose::Generate, 64, 3);
        assert!(loaded.has_encoder());
        let early = loaded.run(&puna_runtime::Batch::of(vec![work(0, &[1], OutputRows::All)]));
        assert!(matches!(early, Err(RuntimeError::NotEncoded { sequence: 0 })));
        loaded.encode(0, &model.batch[0]).expect("reads");
        loaded.encode(1, &model.tokens).expect("reads");
        let other = run(&mut loaded, vec![work(0, &[0, 7], OutputRows::All)]).logits;
        check(&run(&mut loaded, vec![work(1, &model.decoder_tokens, OutputRows::All)]).logits, "at once");
        assert_eq!(loaded.length(1), 6);

        // Again, token by token, the first sequence in the same steps.
        loaded.truncate(1, 0).expect("the decoder starts over");
        let mut single = Vec::new();
        for (index, token) in model.decoder_tokens.iter().enumerate() {
            let mut batch = vec![work(1, &[*token], OutputRows::All)];
            if index < 2 {
                batch.push(work(0, &[5], OutputRows::None));
            }
            single.extend(run(&mut loaded, batch).logits.into_vec());
        }
        check(&single, "token by token");

        // Copies share what was read.
        loaded.copy(1, 2);
        loaded.truncate(2, 0).expect("the decoder starts over");
        check(&run(&mut loaded, vec![work(2, &model.decoder_tokens, OutputRows::All)]).logits, "copied");

        let saved = loaded.save(1, &model.decoder_tokens).expect("saves");
        let mut fresh = load(&model, Purpose::Generate, 64, 1);
        assert_eq!(fresh.restore(0, &saved).expect("restores"), model.decoder_tokens);
        let next =
            |model: &mut Model, sequence| run(model, vec![work(sequence, &[9], OutputRows::All)]).logits;
        assert!(normalised_squared_error(&next(&mut fresh, 0), &next(&mut loaded, 1)) < 1e-12);

        loaded.clear(0);
        assert!(loaded.run(&puna_runtime::Batch::of(vec![work(0, &[1], OutputRows::All)])).is_err());
        loaded.encode(0, &model.batch[0]).expect("reads");
        let again = run(&mut loaded, vec![work(0, &[0, 7], OutputRows::All)]).logits;
        assert!(normalised_squared_error(&again, &other) < 1e-12);
    }
    let mut llama = load(&named("chameleon"), Purpose::Generate, 8, 1);
    assert!(matches!(llama.encode(0, &[1]), Err(RuntimeError::NoEncoder { .. })));
}

#[test]
fn greedy_answers_equal_the_recorded_ones() {
    for name in ["t5", "t5-gated", "chameleon"] {
        let model = named(name);
        let mut loaded = load(&model, Purpose::Generate, 64, 1);
        let mut next = if loaded.has_encoder() {
            loaded.encode(0, &model.tokens).expect("reads");
            model.decoder_tokens.clone()
        } else {
            model.tokens.clone()
        };
        let mut found = Vec::new();
        while found.len() < model.greedy.len() {
            let outputs = run(&mut loaded, vec![work(0, &next, OutputRows::Last)]);
            let logits = outputs.last(0).expect("has a row");
            let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            found.push(best.expect("there are logits") as u32);
            next = vec![*found.last().expect("one was found")];
        }
        assert_eq!(found, model.greedy, "{name}");
    }
}
