//! What every model of the zoo that makes embeddings or has an encoder has to pass, on the CPU back end.
#![allow(dead_code)] // the report and the tests use a part each

use std::sync::Arc;

use puna_backend::Backend;
use puna_conformance::normalised_squared_error;
use puna_conformance::zoo::EmbeddingModel;
use puna_gguf::File;
use puna_quant::DType;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Placement, Pooling, Purpose, Work};

use crate::checks::{NOTHING, Outcome, SAME, alone, as_recorded, beside_share, eight_bits, outcome, rounded};

/// Every check of a model with what it found: each recorded kind of pooling (or logits), texts together against alone, the
/// greedy continuation if one is recorded, and weights of eight bits.
pub fn check(model: &EmbeddingModel, cpu: &Arc<dyn Backend>) -> Vec<(String, Outcome)> {
    let file = Arc::new(model.open());
    let mut found: Vec<(String, Outcome)> = Vec::new();
    for (kind, right) in &model.recorded {
        let error = values(model, file.clone(), cpu, kind, right.len());
        let error = error.map(|values| normalised_squared_error(&values, right));
        found.push((kind.clone(), outcome(error, model.tolerance())));
    }
    found.push(("together".into(), together(model, &file, cpu)));
    if !model.greedy.is_empty() {
        found.push(("greedy".into(), greedy(model, &file, cpu)));
    }
    let reencoded = eight_bits(&file);
    let largest = |backend: &Arc<dyn Backend>| {
        let quantised = reencoded.as_ref()?;
        let errors = model.recorded.iter().map(|(kind, right)| {
            let values = values(model, quantised.clone(), backend, kind, right.len())?;
            Ok(normalised_squared_error(&values, right))
        });
        let errors = errors.collect::<Result<Vec<f64>, String>>();
        Some(errors.map(|errors| errors.into_iter().fold(0.0, f64::max)))
    };
    let quantised = largest(&alone()).map_or(NOTHING, |error| beside_share(&model.name, error));
    found.push(("Q8_0".into(), quantised));
    let evaluator: Arc<dyn Backend> = Arc::new(puna_backend::reference::Reference);
    let share = largest(&evaluator);
    let listed = share.clone().map_or(NOTHING, |error| as_recorded(&model.name, error));
    found.push(("its weights".into(), listed));
    let fast = largest(cpu).zip(share).map_or(NOTHING, |(error, share)| rounded(&file, error, share));
    found.push(("Q8_0 fast".into(), fast));
    found
}

fn load(file: Arc<File>, cpu: &Arc<dyn Backend>, purpose: Purpose) -> Result<Model, String> {
    let options = ModelOptions {
        context: 256,
        sequences: 4,
        micro_batch: 256,
        keys: DType::F32,
        values: DType::F32,
        purpose,
        ..ModelOptions::default()
    };
    let backends = [cpu.clone()];
    let loaded = Model::load(file, &backends, &Placement::default(), &options, &mut |_| true);
    loaded.map_err(|error| error.to_string())
}

/// Embeddings of the text and of the batch in one step, or logits, as many as were recorded.
fn values(
    model: &EmbeddingModel,
    file: Arc<File>,
    cpu: &Arc<dyn Backend>,
    kind: &str,
    count: usize,
) -> Result<Vec<f32>, String> {
    let Some(pooling) = Pooling::from_name(kind) else {
        let mut loaded = load(file, cpu, Purpose::Generate)?;
        let tokens = begin(model, &mut loaded)?;
        let logits = run(&mut loaded, &tokens, OutputRows::All)?;
        return Ok(model.select(&logits, logits.len() / tokens.len()));
    };
    let mut loaded = load(file, cpu, Purpose::Embed(Some(pooling)))?;
    let texts: Vec<Vec<u32>> = std::iter::once(&model.tokens).chain(&model.batch).cloned().collect();
    let mut found = loaded.embed(&texts).map_err(|error| error.to_string())?.concat();
    // Of some the text alone was recorded.
    found.truncate(count);
    Ok(found)
}

/// Lets an encoder read the text; tokens that are left to run.
fn begin(model: &EmbeddingModel, loaded: &mut Model) -> Result<Vec<u32>, String> {
    if !loaded.has_encoder() {
        return Ok(model.tokens.clone());
    }
    loaded.encode(0, &model.tokens).map_err(|error| error.to_string())?;
    Ok(model.decoder_tokens.clone())
}

fn run(loaded: &mut Model, tokens: &[u32], outputs: OutputRows) -> Result<Vec<f32>, String> {
    let work = vec![Work { sequence: 0, tokens: tokens.to_vec(), outputs }];
    loaded.run(&Batch::of(work)).map(|outputs| outputs.logits.into_vec()).map_err(|error| error.to_string())
}

/// Texts of unequal length in one step, against each in a step of its own.
fn together(model: &EmbeddingModel, file: &Arc<File>, cpu: &Arc<dyn Backend>) -> Outcome {
    let pooling = if model.recorded.contains_key("mean") { Pooling::Mean } else { Pooling::None };
    let error = load(file.clone(), cpu, Purpose::Embed(Some(pooling))).and_then(|mut loaded| {
        let mut embed = |texts: &[Vec<u32>]| loaded.embed(texts).map_err(|error| error.to_string());
        let alone = model.batch.iter().map(|text| Ok(embed(std::slice::from_ref(text))?.concat()));
        let alone: Vec<f32> = alone.collect::<Result<Vec<_>, String>>()?.concat();
        Ok(normalised_squared_error(&embed(&model.batch)?.concat(), &alone))
    });
    outcome(error, SAME)
}

fn greedy(model: &EmbeddingModel, file: &Arc<File>, cpu: &Arc<dyn Backend>) -> Outcome {
    let found = load(file.clone(), cpu, Purpose::Generate).and_then(|mut loaded| {
        let mut next = begin(model, &mut loaded)?;
        let mut found = Vec::new();
        while found.len() < model.greedy.len() {
            let logits = run(&mut loaded, &next, OutputRows::Last)?;
            let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            found.push(best.ok_or("there are no logits")? as u32);
            next = found[found.len() - 1..].to_vec();
        }
        Ok(found)
    });
    match found {
        Ok(found) if found == model.greedy => Outcome::Pass(found.len().to_string()),
        Ok(found) => Outcome::Fail(format!("{found:?}")),
        Err(error) => Outcome::Fail(error),
    }
}
