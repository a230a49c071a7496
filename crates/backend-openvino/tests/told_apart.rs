//! Compiled models of other weights are told apart, in the folder of compiled models and in a process.

use std::sync::{Arc, Mutex};

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, WeightSource};
use puna_backend_openvino::OpenVino;
use puna_conformance::run::{FileWeights, group_step};
use puna_conformance::zoo;
use puna_graph::{Output, Step, WeightId};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

mod common;

/// Weights of a file, one of which may be another.
struct Changed {
    weights: FileWeights,
    other: Option<(WeightId, Vec<u8>)>,
}

impl WeightSource for Changed {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        match &self.other {
            Some((other, bytes)) if *other == weight => bytes,
            _ => self.weights.bytes(weight),
        }
    }

    fn release(&self, weight: WeightId) {
        self.weights.release(weight);
    }
}

/// A model after a step, with its logits. `changed`: the sign of the number in the middle of one tensor is the other one.
fn ran(backend: &OpenVino, changed: bool) -> (Box<dyn Partition>, Vec<f32>) {
    let model = zoo::models().into_iter().find(|model| model.name == "llama-gqa4-tied");
    let file = Arc::new(model.expect("the zoo has it").open());
    let options = BuildOptions { context: 64, ..BuildOptions::default() };
    let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("the model builds"));
    let weights = FileWeights::new(file, graph.clone());
    let down = graph.weights.iter().position(|weight| weight.name.contains("ffn_down"));
    let down = WeightId(down.expect("the model has it") as u32);
    let other = changed.then(|| {
        let mut bytes = weights.bytes(down).to_vec();
        assert_eq!(graph.weights[down.index()].dtype, DType::F32);
        let middle = bytes.len() / 8 * 4;
        bytes[middle + 3] ^= 0x80;
        (down, bytes)
    });
    let weights = Arc::new(Changed { weights, other });
    let cells = vec![64; graph.groups().len()];
    let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 1, cells };
    let (_, segment) = partition(&graph, |_| 0).remove(0);
    let mut partition =
        backend.load(DeviceId(0), segment, weights, &caches, &mut |_| true).expect("the segment loads");
    let program = partition.compile(Bounds { tokens: 8, outputs: 1 }).expect("the segment compiles");
    let step = Step {
        tokens: vec![3, 5, 7],
        positions: vec![0, 1, 2],
        output_rows: vec![2],
        groups: graph.groups().into_iter().map(|group| group_step(group, 0, 3)).collect(),
        sequences: std::iter::once(0..3).collect(),
        ..Step::default()
    };
    let mut boundary = Boundary::default();
    partition.run(program, &step, &mut boundary).expect("the step runs");
    let logits = graph.output(Output::Logits).and_then(|logits| boundary.values.remove(&logits));
    (partition, logits.expect("logits leave the model").into_floats())
}

const PROFILE: (&str, &str) = ("GGML_OPENVINO_PROFILING", "1");

fn said(lines: &Mutex<Vec<String>>, part: &str) -> usize {
    lines.lock().expect("no panic").iter().filter(|line| line.contains(part)).count()
}

#[test]
fn a_changed_middle_of_a_tensor_makes_another_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let kept = ("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", path);
    let Some((plain, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let right = [false, true].map(|changed| ran(&plain, changed).1);
    assert!(right[0] != right[1]);
    // Both compiled, then both found; each time a process of its own, as it were.
    for is_found in [false, true] {
        for changed in [false, true] {
            let variables = [common::EXACT, common::NO_SHIM, PROFILE, kept];
            let (backend, lines) = common::start(&variables).expect("it started before");
            assert!(ran(&backend, changed).1 == right[changed as usize], "{changed} {is_found}");
            assert_eq!(said(&lines, "found in the cache"), is_found as usize, "{changed}");
            assert_eq!(said(&lines, "sums of all weights"), 1, "once, however many models there are");
        }
    }
}

#[test]
fn a_process_shares_compiled_models_of_the_same_weights_only() {
    let Some((backend, lines)) = common::start(&[common::EXACT, common::NO_SHIM, PROFILE]) else { return };
    let shared = "shared within the process";
    let (_first, right) = ran(&backend, false);
    let (_second, other) = ran(&backend, true);
    assert_eq!(said(&lines, shared), 0);
    assert!(other != right);
    // Of the same file, opened again; both models stay to be found.
    assert!(ran(&backend, false).1 == right);
    assert!(ran(&backend, true).1 == other);
    assert_eq!(said(&lines, shared), 2);
}

/// Threads and measuring are set when a compiled model is read, and need none of their own.
#[test]
fn settings_of_runs_do_not_tell_compiled_models_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let kept = ("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", path);
    let exact = common::EXACT.1;
    let one = format!("{exact},INFERENCE_NUM_THREADS=1");
    let mut found = Vec::new();
    for (properties, profiling) in [(exact, "0"), (&one[..], "1")] {
        let variables =
            [common::NO_SHIM, kept, ("GGML_OPENVINO_PROPERTIES", properties), (PROFILE.0, profiling)];
        let Some((backend, lines)) = common::start(&variables) else { return };
        found.push(ran(&backend, false).1);
        if profiling == "1" {
            assert_eq!(said(&lines, "found in the cache"), 1);
            let operations = lines.lock().expect("no panic").iter().any(|line| {
                line.split_once("operations: ").is_some_and(|(_, rest)| rest.contains(" us in "))
            });
            assert!(operations, "a model that is read back measures its operations");
        }
    }
    assert!(found[0] == found[1]);
}
