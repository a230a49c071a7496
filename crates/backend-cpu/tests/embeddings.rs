//! Every zoo model that makes embeddings or has an encoder on the CPU back end, per instruction set: a text alone, and
//! with others of unequal length in one step.

use std::sync::Arc;

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo::EmbeddingModel;
use puna_conformance::{normalised_squared_error, run, steps, zoo};
use puna_gguf::File;
use puna_graph::Output;
use puna_models::{BuildOptions, Pooling, Purpose, build};

/// Values of one kind: of the text alone, then of the batch.
fn values(cpu: &Cpu, model: &EmbeddingModel, file: &Arc<File>, kind: &str, count: usize) -> Vec<f32> {
    let pooling = Pooling::from_name(kind);
    let purpose = pooling.map_or(Purpose::Generate, |pooling| Purpose::Embed(Some(pooling)));
    let options = BuildOptions { context: 256, purpose, ..BuildOptions::default() };
    let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
    if pooling.is_none() {
        let (encoder, tokens) = model.encoder_and_decoder(&graph);
        let step = steps::encoder_and_decoder(&graph, encoder, tokens);
        let value = graph.output(Output::Logits).expect("the model has logits");
        let logits = run::once(cpu, file.clone(), graph, &step, value);
        return model.select(&logits, logits.len() / tokens.len());
    }
    let embed = |texts: &[&[u32]]| {
        let (step, value) = steps::embedding(&graph, texts);
        run::once(cpu, file.clone(), graph.clone(), &step, value)
    };
    let mut found = embed(&[&model.tokens]);
    if found.len() < count {
        let texts: Vec<&[u32]> = model.batch.iter().map(Vec::as_slice).collect();
        found.extend(embed(&texts));
    }
    found
}

#[test]
fn embeddings_and_logits_equal_the_recorded_ones() {
    let mut faults = Vec::new();
    let cpus: Vec<(String, Cpu)> = Features::detect()
        .levels()
        .into_iter()
        .map(|(level, features)| {
            (
                level.to_string(),
                Cpu::new(CpuOptions { threads: 2, features, ..CpuOptions::default() })
                    .expect("threads start"),
            )
        })
        .collect();
    for model in zoo::embedding_models() {
        let file = Arc::new(model.open());
        for (kind, right) in &model.recorded {
            for (level, cpu) in &cpus {
                let found = values(cpu, &model, &file, kind, right.len());
                let error = normalised_squared_error(&found, right);
                if error.is_nan() || error > model.tolerance() {
                    faults.push(format!("{} {kind} {level} {error:.2e}", model.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "wrong models:\n{}", faults.join("\n"));
}
