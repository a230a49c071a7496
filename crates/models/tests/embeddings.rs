//! Every zoo model that makes embeddings or has an encoder against its recorded values, on the evaluator: all of a
//! batch of unequal texts in one step.

use std::collections::HashMap;
use std::sync::Arc;

use puna_conformance::zoo::EmbeddingModel;
use puna_conformance::{normalised_squared_error, steps, zoo};
use puna_graph::evaluate::{Context, Memory, Weights, run};
use puna_graph::{Array, Graph, Output, PooledRows, Step, WeightId};
use puna_models::{ARCHITECTURES, BuildOptions, ModelError, Pooling, Purpose, build};

struct FileWeights<'a> {
    file: &'a puna_gguf::File,
    graph: &'a Graph,
}

impl Weights for FileWeights<'_> {
    fn decode(&self, weight: WeightId) -> Arc<Array> {
        let declared = &self.graph.weights[weight.index()];
        let bytes = self.file.bytes(self.file.tensors.get(&declared.name).expect("declared weights exist"));
        let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Arc::new(Array::f32(declared.shape.iter().map(|n| *n as usize).collect(), floats))
    }
}

fn built(file: &puna_gguf::File, purpose: Purpose) -> Result<Graph, ModelError> {
    let options = BuildOptions { context: 256, purpose, ..BuildOptions::default() };
    build(&file.metadata, &file.tensors, &options)
}

/// Runs one step on empty caches.
fn evaluate(file: &puna_gguf::File, graph: &Graph, step: &Step, output: puna_graph::ValueId) -> Vec<f32> {
    let cells = step.tokens.len().max(step.encoder_tokens.len());
    let mut memory: Vec<Memory> = graph.states.iter().map(|state| Memory::new(state, cells)).collect();
    let weights = FileWeights { file, graph };
    let mut context = Context { graph, step, memory: &mut memory };
    let mut values = HashMap::new();
    run(0..graph.nodes.len(), &weights, &mut context, &mut values);
    values.remove(&output).expect("the output was computed").into_floats()
}

/// Embeddings of these texts in one step.
fn embed(file: &puna_gguf::File, pooling: Pooling, texts: &[&[u32]]) -> Result<Vec<f32>, ModelError> {
    let graph = built(file, Purpose::Embed(Some(pooling)))?;
    let (step, value) = steps::embedding(&graph, texts);
    Ok(evaluate(file, &graph, &step, value))
}

/// Logits of the decoder, which sees what the encoder makes of the text, or of a decoder alone.
fn logits(model: &EmbeddingModel, file: &puna_gguf::File) -> Result<Vec<f32>, ModelError> {
    let graph = built(file, Purpose::Generate)?;
    let (encoder, tokens) = model.encoder_and_decoder(&graph);
    let step = steps::encoder_and_decoder(&graph, encoder, tokens);
    let value = graph.output(Output::Logits).expect("the model has logits");
    let logits = evaluate(file, &graph, &step, value);
    Ok(model.select(&logits, logits.len() / tokens.len()))
}

#[test]
fn embeddings_and_logits_equal_the_recorded_ones() {
    let mut faults = Vec::new();
    let mut tested = Vec::new();
    for model in zoo::embedding_models() {
        let file = model.open();
        for (kind, right) in &model.recorded {
            let found = if kind == "logits" {
                logits(&model, &file)
            } else {
                let pooling = Pooling::from_name(kind).expect("a kind of pooling");
                embed(&file, pooling, &[&model.tokens]).and_then(|mut alone| {
                    // Some have the text alone only.
                    if alone.len() < right.len() {
                        let texts: Vec<&[u32]> = model.batch.iter().map(Vec::as_slice).collect();
                        alone.extend(embed(&file, pooling, &texts)?);
                    }
                    Ok(alone)
                })
            };
            let (wrong, line) = match found {
                Ok(found) => {
                    let error = normalised_squared_error(&found, right);
                    (
                        error.is_nan() || error > model.tolerance(),
                        format!("{} {kind} {error:.2e}", model.name),
                    )
                }
                Err(error) => (true, format!("{} {kind}: {error}", model.name)),
            };
            println!("{line}");
            if wrong {
                faults.push(line);
            }
        }
        tested.push(model.architecture());
    }
    assert!(faults.is_empty(), "wrong models:\n{}", faults.join("\n"));
    assert_eq!(tested.len(), 26);
    assert!(tested.iter().all(|name| ARCHITECTURES.iter().any(|row| row.name == name)));
}

#[test]
fn what_a_model_cannot_do_is_an_error() {
    let models = zoo::embedding_models();
    let open = |name: &str| models.iter().find(|model| model.name == name).expect("a zoo model").open();
    let bert = open("bert");
    assert!(matches!(built(&bert, Purpose::Generate), Err(ModelError::NoLogits { .. })));
    assert!(matches!(built(&bert, Purpose::Embed(Some(Pooling::Rank))), Err(ModelError::NoClassifier)));
    let (_, rows) = built(&bert, Purpose::Embed(None)).expect("it builds").embeddings().expect("embeddings");
    assert_eq!(rows, PooledRows::First, "the file's own pooling");
}
