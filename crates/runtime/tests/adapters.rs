//! Adapters whose strength changes while the model runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::{Cpu, Options};
use puna_conformance::zoo;
use puna_gguf::{File, Metadata, TensorSpec, Value};
use puna_quant::DType;
use puna_runtime::{Adapter, Batch, Extras, Model, ModelOptions, OutputRows, Placement, RuntimeError, Work};

fn base() -> Arc<File> {
    let zoo = zoo::models().into_iter().find(|zoo| zoo.name == "llama-dense").unwrap();
    Arc::new(zoo.open())
}

/// An adapter of rank 2 for one matrix of the model.
fn adapter(file: &File, folder: &Path, seed: f32) -> PathBuf {
    let weight = "blk.0.ffn_up.weight";
    let shape = file.tensors.get(weight).unwrap().shape.clone();
    let mut metadata = Metadata::new();
    metadata.set("general.type", "adapter");
    metadata.set("general.architecture", "llama");
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", Value::F32(4.0));
    let numbers = |count: u64, step: f32| -> Vec<u8> {
        (0..count).flat_map(|x| (((x + 1) as f32 * step * seed).sin() * 0.3).to_le_bytes()).collect()
    };
    let (down, up) = (numbers(2 * shape[1], 0.7), numbers(2 * shape[0], 0.9));
    let spec = |ending: &str, shape| TensorSpec { name: format!("{weight}.{ending}"), dtype: DType::F32, shape };
    let tensors =
        [(spec("lora_a", vec![2, shape[1]]), &down[..]), (spec("lora_b", vec![shape[0], 2]), &up[..])];
    let path = folder.join(format!("adapter{seed}.gguf"));
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

fn load(backend: &Arc<dyn Backend>, file: &Arc<File>, adapters: Vec<Adapter>, switchable: bool) -> Model {
    let extras = Extras { adapters, switchable, ..Extras::default() };
    let options = ModelOptions { context: 64, ..ModelOptions::default() };
    let backends = std::slice::from_ref(backend);
    let watch = |_: &puna_graph::Graph| Vec::new();
    Model::load_with(file.clone(), backends, &Placement::default(), &options, &extras, &watch, &mut |_| true)
        .unwrap()
}

fn logits(model: &mut Model) -> Vec<f32> {
    model.clear(0);
    let work = Work { sequence: 0, tokens: vec![5, 17, 3, 8], outputs: OutputRows::Last };
    model.run(&Batch { work: vec![work] }).unwrap().logits
}

#[test]
fn strengths_change_between_steps() {
    let folder = tempfile::tempdir().unwrap();
    let file = base();
    let paths = [adapter(&file, folder.path(), 1.0), adapter(&file, folder.path(), 1.7)];
    let open = |scales: [f32; 2]| -> Vec<Adapter> {
        paths.iter().zip(scales).map(|(path, scale)| Adapter::open(path, scale).unwrap()).collect()
    };
    let cpu = Cpu::new(Options { threads: 1, ..Options::default() }).unwrap();
    let backends: [Arc<dyn Backend>; 2] = [Arc::new(Reference), Arc::new(cpu)];
    for backend in backends {
        let mut model = load(&backend, &file, open([1.0, 0.0]), true);
        assert_eq!(model.adapters(), [1.0, 0.0]);
        let plain = logits(&mut load(&backend, &file, Vec::new(), false));
        for strengths in [[1.0, 0.0], [0.0, 0.0], [0.5, 2.0], [-1.0, 1.0], [1.0, 0.0]] {
            model.set_adapters(&strengths).unwrap();
            let found = logits(&mut model);
            let fixed = logits(&mut load(&backend, &file, open(strengths), false));
            let error = puna_conformance::normalised_squared_error(&found, &fixed);
            assert!(error < 1e-10, "{} {strengths:?}: {error:e}", backend.name());
            let change = puna_conformance::normalised_squared_error(&found, &plain);
            assert_eq!(change > 1e-6, strengths != [0.0, 0.0], "{} {strengths:?}: {change:e}", backend.name());
        }
        for wrong in [&[][..], &[1.0], &[1.0, f32::NAN], &[1.0; 3]] {
            assert!(matches!(model.set_adapters(wrong), Err(RuntimeError::Adapters { expected: 2, .. })));
        }
        assert_eq!(load(&backend, &file, open([1.0, 1.0]), false).adapters(), [0.0; 0]);
    }
}

#[test]
fn saved_sequences_belong_to_their_strengths() {
    let folder = tempfile::tempdir().unwrap();
    let file = base();
    let adapter = Adapter::open(&adapter(&file, folder.path(), 1.0), 1.0).unwrap();
    let backend: Arc<dyn Backend> = Arc::new(Reference);
    let mut model = load(&backend, &file, vec![adapter], true);
    logits(&mut model);
    let bytes = model.save(0, &[5, 17, 3, 8]).unwrap();
    model.restore(0, &bytes).unwrap();
    model.set_adapters(&[0.5]).unwrap();
    assert!(model.restore(0, &bytes).is_err());
    model.set_adapters(&[1.0]).unwrap();
    assert_eq!(model.restore(0, &bytes).unwrap(), [5, 17, 3, 8]);
}
