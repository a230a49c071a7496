//! Adapters whose strength changes while the model runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo;
use puna_gguf::File;
use puna_runtime::{Adapter, Batch, Extras, Model, ModelOptions, OutputRows, Placement, RuntimeError, Work};

fn base() -> Arc<File> {
    let zoo = zoo::models().into_iter().find(|zoo| zoo.name == "llama-dense").unwrap();
    Arc::new(zoo.open())
}

fn adapter(file: &File, folder: &Path, seed: f32) -> PathBuf {
    let path = folder.join(format!("adapter{seed}.gguf"));
    puna_conformance::write_adapter(file, &path, seed);
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
    model.run(&Batch::of(vec![work])).unwrap().logits.into_vec()
}

#[test]
fn strengths_change_between_steps() {
    let folder = tempfile::tempdir().unwrap();
    let file = base();
    let paths = [adapter(&file, folder.path(), 1.0), adapter(&file, folder.path(), 1.7)];
    let open = |scales: [f32; 2]| -> Vec<Adapter> {
        paths.iter().zip(scales).map(|(path, scale)| Adapter::open(path, scale).unwrap()).collect()
    };
    let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
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
            assert_eq!(
                change > 1e-6,
                strengths != [0.0, 0.0],
                "{} {strengths:?}: {change:e}",
                backend.name()
            );
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
