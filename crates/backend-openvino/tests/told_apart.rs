//! Compiled models of other weights are told apart, in the folder of compiled models and in a process.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, WeightSource};
use puna_backend_openvino::OpenVino;
use puna_conformance::run::{FileWeights, group_step};
use puna_conformance::zoo;
use puna_gguf::{File, OpenOptions};
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

    fn identity(&self, weight: WeightId) -> Option<String> {
        let is_other = self.other.as_ref().is_some_and(|(other, _)| *other == weight);
        if is_other { None } else { self.weights.identity(weight) }
    }
}

/// A model after a step, with its logits. `changed`: the sign of the number in the middle of one tensor is the other one.
fn ran(backend: &OpenVino, changed: bool) -> (Box<dyn Partition>, Vec<f32>) {
    ran_of(backend, model().open(), changed)
}

fn model() -> zoo::ZooModel {
    let model = zoo::models().into_iter().find(|model| model.name == "llama-gqa4-tied");
    model.expect("the zoo has it")
}

/// The same of a file.
fn ran_of(backend: &OpenVino, file: File, changed: bool) -> (Box<dyn Partition>, Vec<f32>) {
    let file = Arc::new(file);
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

/// Weights are read to tell compiled models apart only if their file has changed, whatever its times of writing say.
#[cfg(unix)]
#[test]
fn an_unchanged_file_is_not_read_again_and_a_changed_one_is() {
    use std::os::unix::fs::FileExt;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let kept = folder.path().join("kept");
    let variables =
        [common::EXACT, common::NO_SHIM, PROFILE, ("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", text(&kept))];
    let Some((plain, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let right = [false, true].map(|changed| ran(&plain, changed).1);
    let open = || File::open(&path, &OpenOptions::default()).expect("the model opens");
    // Runs the file, with the logits that it should have, and says whether weights were read and a model was found.
    let run = |changed: bool| {
        let (backend, lines) = common::start(&variables).expect("it started before");
        assert!(ran_of(&backend, open(), false).1 == right[changed as usize], "{changed}");
        assert_eq!(said(&lines, "sums of all weights"), 1);
        (said(&lines, ", 0 of them read") == 0, said(&lines, "found in the cache") == 1)
    };
    // What was written this moment may change again without another time.
    let settled = || std::thread::sleep(Duration::from_millis(2_100));

    std::fs::write(&path, model().bytes()).expect("it is written");
    let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
    assert_eq!(run(false), (true, false));
    assert_eq!(run(false), (true, true), "it is not remembered yet");
    settled();
    assert_eq!(run(false), (true, true));
    assert_eq!(run(false), (false, true));

    // One sign in the middle of a tensor, in place and with the old time.
    let changed = open();
    let tensor = changed.tensors.iter().find(|tensor| tensor.name.contains("ffn_down")).expect("it has one");
    let bytes = changed.bytes(tensor);
    let mut whole = model().bytes();
    let start = whole.windows(bytes.len()).position(|part| part == bytes).expect("the file has its tensors");
    let place = start + bytes.len() / 8 * 4 + 3;
    whole[place] ^= 0x80;
    drop(changed);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    file.write_all_at(&whole[place..=place], place as u64).expect("it is written");
    file.set_modified(modified).expect("it gets a time");
    drop(file);
    assert_eq!(run(true), (true, false));
    settled();
    assert_eq!(run(true), (true, true));
    assert_eq!(run(true), (false, true));

    // A damaged memory of sums is not believed.
    for file in std::fs::read_dir(&kept).expect("a folder").flatten() {
        if file.path().extension().is_some_and(|extension| extension == "sums") {
            let mut bytes = std::fs::read(file.path()).expect("it is there");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(file.path(), bytes).expect("it is written");
        }
    }
    assert_eq!(run(true), (true, true));
    assert_eq!(run(true), (false, true));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
