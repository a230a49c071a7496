//! Small models with the logits that `transformers` computes (see `make_models.py`): converted and run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_backend::reference::Reference;
use puna_conformance::normalised_squared_error;
use puna_conformance::run::SingleSequence;
use puna_convert::{Conversion, Options};
use puna_models::BuildOptions;
use puna_quant::DType;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/convert")
}

fn models() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).expect("the fixtures are there");
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("logits.f32").is_file())
        .collect();
    found.sort();
    found
}

fn tokens() -> Vec<u32> {
    let text = std::fs::read_to_string(folder().join("tokens.json")).expect("the tokens are there");
    serde_json::from_str(&text).expect("they are a list")
}

fn recorded(model: &Path) -> Vec<f32> {
    let bytes = std::fs::read(model.join("logits.f32")).expect("a model has logits");
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The error of a model's logits, or why it has none.
fn error_of(model: &Path) -> Result<f64, String> {
    let conversion = Conversion::open(model, &Options::default()).map_err(|error| error.to_string())?;
    let file = conversion.into_file().map_err(|error| error.to_string())?;
    let options = BuildOptions { context: 64, ..BuildOptions::default() };
    let graph =
        puna_models::build(&file.metadata, &file.tensors, &options).map_err(|error| error.to_string())?;
    let mut unused = puna_models::unused_tensors(&graph, &file.tensors);
    // Which factors a graph uses depends on its context.
    // What selects positions is kept for other engines.
    unused.retain(|name| !name.starts_with("rope_factors") && !name.contains(".indexer"));
    if !unused.is_empty() {
        return Err(format!("unused tensors: {unused:?}"));
    }
    let mut sequence = SingleSequence::load(&Reference, Arc::new(file), graph, DType::F32, 64);
    Ok(normalised_squared_error(&sequence.push(&tokens()), &recorded(model)))
}

#[test]
fn converted_models_compute_what_transformers_computes() {
    let mut faults = Vec::new();
    let models = models();
    assert!(models.len() >= 40, "{}", models.len());
    for model in &models {
        let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match error_of(model) {
            Ok(error) if error <= 1e-5 => println!("{name}: {error:.1e}"),
            Ok(error) => faults.push(format!("{name}: error {error:.1e}")),
            Err(reason) => faults.push(format!("{name}: {reason}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
