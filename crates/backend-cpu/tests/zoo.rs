//! Every zoo model of a known architecture on the CPU back end, per instruction set, on one to three threads.

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::run::SingleSequence;
use puna_conformance::{normalised_squared_error, zoo};
use puna_gguf::{File, TensorSpec};
use puna_graph::ops::MaskRule;
use puna_graph::{Graph, Op};
use puna_models::{ARCHITECTURES, BuildOptions, build};
use puna_quant::DType;

/// Whether rows see later ones, so that a prompt cannot be cut.
fn sees_later_rows(graph: &Graph) -> bool {
    let sees = |op: &Op| matches!(op, Op::Attention(attention) if attention.mask == MaskRule::Bidirectional);
    graph.nodes.iter().any(|node| sees(&node.op))
}

/// What is wrong with a model on one back end; `steps`: whether it is also run token by token.
fn faults(cpu: &Cpu, steps: bool, model: &zoo::ZooModel, file: &Arc<File>, graph: &Graph) -> Option<String> {
    let load =
        || SingleSequence::load(cpu, file.clone(), graph.clone(), DType::F32, model.tokens.len() as u32);
    let whole = load().push(&model.tokens);
    let error = normalised_squared_error(&whole, &model.logits);
    if error.is_nan() || error > model.tolerance() {
        return Some(format!("{error:.2e}"));
    }
    if !steps || sees_later_rows(graph) {
        return None;
    }
    let mut stepped = load();
    let single: Vec<f32> = model.tokens.iter().flat_map(|token| stepped.push(&[*token])).collect();
    let difference = normalised_squared_error(&single, &whole);
    (difference.is_nan() || difference > 1e-10).then(|| format!("token by token {difference:.2e}"))
}

#[test]
fn logits_equal_the_recorded_ones() {
    // Every instruction set with two threads; the best one with others and token by token too.
    let levels = Features::detect().levels();
    let (best, _) = *levels.last().expect("there is a level");
    let mut cpus = Vec::new();
    for (level, features) in levels {
        for threads in if level == best { vec![1, 2, 3] } else { vec![2] } {
            let cpu =
                Cpu::new(CpuOptions { threads, features, ..CpuOptions::default() }).expect("threads start");
            let steps = level == best && threads < 3;
            cpus.push((format!("{level}, {threads} threads"), steps, cpu));
        }
    }
    let mut wrong = Vec::new();
    let mut count = 0;
    for model in zoo::models() {
        if !ARCHITECTURES.iter().any(|row| row.name == model.architecture()) {
            continue;
        }
        count += 1;
        let file = Arc::new(model.open());
        let graph = build(
            &file.metadata,
            &file.tensors,
            &BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() },
        )
        .expect("the model builds");
        for (name, steps, cpu) in &cpus {
            if let Some(fault) = faults(cpu, *steps, &model, &file, &graph) {
                wrong.push(format!("{} on {name}: {fault}", model.name));
            }
        }
    }
    assert!(count > 0);
    assert!(wrong.is_empty(), "wrong models:\n{}", wrong.join("\n"));
}

/// A file of Qwen 3 TTS has more tokens than codes: the codes come last, and the text before them is never said.
#[test]
fn a_model_that_says_only_its_last_tokens_never_chooses_the_others() {
    const MORE: usize = 1000;
    let model = zoo::models().into_iter().find(|model| model.name == "qwen3tts-dense").expect("a zoo model");
    let small = model.open();
    let mut metadata = small.metadata.clone();
    metadata.remove("tokenizer.ggml.tokens");
    let tensors: Vec<(TensorSpec, Vec<u8>)> = small
        .tensors
        .iter()
        .map(|tensor| {
            let (mut spec, mut bytes) = (TensorSpec::from(tensor), small.bytes(tensor).to_vec());
            if tensor.name == "token_embd.weight" {
                spec.shape[0] += MORE as u64;
                // Further rows, which none of the model's tokens is.
                bytes.extend_from_within(..MORE * 4 * spec.shape[1] as usize);
            }
            (spec, bytes)
        })
        .collect();
    let parts: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    puna_gguf::write(&path, &metadata, &parts).expect("the model is written");
    let file =
        File::from_bytes(std::fs::read(&path).expect("the model is there")).expect("the model is good");
    let file = Arc::new(file);
    let graph =
        build(&file.metadata, &file.tensors, &BuildOptions { context: 256, ..BuildOptions::default() })
            .expect("the model builds");
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("threads start");
    let load = |backend: &dyn Backend| {
        SingleSequence::load(backend, file.clone(), graph.clone(), DType::F32, model.tokens.len() as u32)
    };
    let codes = model.logits.len() / model.tokens.len();
    for (name, found) in
        [("cpu", load(&cpu).push(&model.tokens)), ("evaluator", load(&Reference).push(&model.tokens))]
    {
        assert_eq!(found.len(), model.tokens.len() * (MORE + codes), "{name}");
        let rows = found.chunks(MORE + codes);
        assert!(rows.clone().flat_map(|row| &row[..MORE]).all(|logit| *logit == f32::NEG_INFINITY), "{name}");
        let said: Vec<f32> = rows.flat_map(|row| row[MORE..].iter().copied()).collect();
        let error = normalised_squared_error(&said, &model.logits);
        assert!(error <= model.tolerance(), "{name}: {error:.1e}");
    }
}
