//! What layers read, handed out beside the logits.

mod support;

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::pairs::pairs;
use puna_conformance::zoo;
use puna_gguf::File;
use puna_quant::DType;
use puna_runtime::{Batch, HeadInputs, Model, ModelOptions, OutputRows, Outputs, Placement, RuntimeError};
use support::{normalised_squared_error, work};

fn load(file: Arc<File>, layers: &[u32], micro_batch: u32, cpu: bool) -> Result<Model, RuntimeError> {
    let backend: Arc<dyn Backend> = match cpu {
        true => {
            Arc::new(Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("threads start"))
        }
        false => Arc::new(Reference),
    };
    let options = ModelOptions {
        context: 128,
        sequences: 2,
        micro_batch,
        keys: DType::F32,
        values: DType::F32,
        head_inputs: HeadInputs::Layers(layers.to_vec()),
        ..ModelOptions::default()
    };
    Model::load(file, &[backend], &Placement::default(), &options, &mut |_| true)
}

#[test]
fn every_token_has_its_rows_in_the_batchs_order() {
    let pair = &pairs()[0];
    let tokens: Vec<u32> = (0..20).map(|place| (place * 13 + 5) % 64).collect();
    let run = |layers: &[u32], micro_batch: u32, cpu: bool| -> Outputs {
        let mut model = load(pair.target.clone(), layers, micro_batch, cpu).expect("the model loads");
        let batch = vec![work(1, &tokens[..9], OutputRows::None), work(0, &tokens[9..], OutputRows::Last)];
        model.run(&Batch::of(batch)).expect("the batch runs")
    };
    let whole = run(&[0, 2, 1], 64, false);
    let width = 32;
    assert_eq!((whole.states.len(), whole.rows.len()), (20 * 3 * width, 1));
    // The first layer reads the embeddings.
    let table = pair.target.tensors.get("token_embd.weight").expect("a table");
    let table: Vec<f32> =
        pair.target.bytes(table).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for (token, row) in tokens.iter().zip(whole.states.chunks(3 * width)) {
        assert_eq!(row[..width], table[*token as usize * width..][..width]);
        assert_ne!(row[width..2 * width], row[2 * width..]);
    }
    for (micro_batch, cpu) in [(7, false), (64, true), (3, true)] {
        let found = run(&[0, 2, 1], micro_batch, cpu);
        let error = normalised_squared_error(&found.states, &whole.states);
        assert!(error < 1e-10, "{error:.1e} by {micro_batch}");
        assert!(normalised_squared_error(&found.logits, &whole.logits) < 1e-10);
    }
    assert!(run(&[], 64, true).states.is_empty());
    assert!(matches!(
        load(pair.target.clone(), &[3], 64, false),
        Err(RuntimeError::NoLayerInput { layer: 3 })
    ));
}

/// Every architecture hands out a row for each token before its second layer, or says that it cannot.
#[test]
fn every_architecture_hands_them_out_or_refuses() {
    let (mut handed, mut refused) = (0, Vec::new());
    for model in zoo::models() {
        let mut loaded = match load(Arc::new(model.open()), &[1], 64, false) {
            Ok(loaded) => loaded,
            Err(RuntimeError::NoLayerInput { layer: 1 }) => {
                refused.push(model.architecture());
                continue;
            }
            Err(other) => panic!("{}: {other}", model.name),
        };
        let batch = Batch::of(vec![work(0, &model.tokens, OutputRows::Last)]);
        let found = loaded.run(&batch).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        let width = loaded.information().embedding as usize;
        assert_eq!(found.states.len(), model.tokens.len() * width, "{}", model.name);
        handed += 1;
    }
    refused.dedup();
    println!("{handed} hand them out, refused by {refused:?}");
    assert!(handed > 150, "{handed}, refused by {refused:?}");
    for several_streams in ["deepseek4", "glm5-next", "hy_v4", "qwen4exp", "gemma3n"] {
        assert!(refused.iter().any(|name| name == several_streams), "{several_streams}");
    }
}
