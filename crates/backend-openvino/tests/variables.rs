//! What each variable of the environment changes, on a small model.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, WeightSource};
use puna_backend_openvino::OpenVino;
use puna_conformance::run::{FileWeights, group_step};
use puna_conformance::zoo;
use puna_graph::{Graph, Step, WeightId};
use puna_models::{BuildOptions, build};
use puna_quant::DType;

mod common;

/// Weights that count how often they are given back.
struct Counted {
    weights: FileWeights,
    released: Arc<AtomicU32>,
}

impl WeightSource for Counted {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        self.weights.bytes(weight)
    }

    fn release(&self, weight: WeightId) {
        self.released.fetch_add(1, Ordering::Relaxed);
        self.weights.release(weight);
    }
}

/// A loaded model of the zoo.
struct Loaded {
    graph: Arc<Graph>,
    partition: Box<dyn Partition>,
    released: u32,
}

const CELLS: u32 = 512;

fn graph_of(name: &str) -> (Arc<puna_gguf::File>, Arc<Graph>) {
    let model = zoo::models().into_iter().find(|model| model.name == name).expect("the zoo has it");
    let file = Arc::new(model.open());
    let options = BuildOptions { context: CELLS, ..BuildOptions::default() };
    let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
    (file, Arc::new(graph))
}

fn load(backend: &OpenVino) -> Result<Loaded, puna_backend::BackendError> {
    let (file, graph) = graph_of("llama-gqa4-tied");
    let released = Arc::new(AtomicU32::new(0));
    let weights = FileWeights::new(file, graph.clone());
    let weights = Arc::new(Counted { weights, released: released.clone() });
    let cells = vec![CELLS; graph.groups().len()];
    let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 1, cells };
    let (_, segment) = partition(&graph, |_| 0).remove(0);
    let mut partition = backend.load(DeviceId(0), segment, weights, &caches, &mut |_| true)?;
    let program = partition.compile(Bounds { tokens: 32, outputs: 1 })?;
    let step = Step {
        tokens: vec![3, 5, 7],
        positions: vec![0, 1, 2],
        output_rows: vec![2],
        groups: graph.groups().into_iter().map(|group| group_step(group, 0, 3)).collect(),
        sequences: std::iter::once(0..3).collect(),
        ..Step::default()
    };
    partition.run(program, &step, &mut Boundary::default())?;
    Ok(Loaded { graph, partition, released: released.load(Ordering::Relaxed) })
}

/// Files that a variable asks for go into a folder of the tests' own.
fn into_a_folder() -> std::path::PathBuf {
    static ONCE: Once = Once::new();
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("openvino-variables");
    ONCE.call_once(|| {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::env::set_current_dir(&folder).expect("the folder is there");
    });
    folder
}

type Lines = Arc<Mutex<Vec<String>>>;

fn start(variables: &[(&str, &str)]) -> Option<(OpenVino, Lines)> {
    let mut all = vec![common::NO_SHIM];
    all.extend_from_slice(variables);
    common::start(&all)
}

fn said(lines: &Lines, part: &str) -> usize {
    lines.lock().expect("no panic").iter().filter(|line| line.contains(part)).count()
}

#[test]
fn switches_log_what_they_promise() {
    for (variable, part) in [
        ("GGML_OPENVINO_PROFILING", "run of 3 rows"),
        ("GGML_OPENVINO_PROFILING", "translated in"),
        ("GGML_OPENVINO_DEBUG_INPUT", "step.tokens [3]"),
        ("GGML_OPENVINO_DEBUG_OUTPUT", "new.0.keys"),
        ("GGML_OPENVINO_PRINT_CGRAPH_TENSOR_ADDRESS", "step.tokens at 0x"),
    ] {
        for (value, is_on) in [("1", true), ("0", false)] {
            let Some((backend, lines)) = start(&[(variable, value)]) else { return };
            load(&backend).expect("it runs");
            assert_eq!(said(&lines, part) > 0, is_on, "{variable}={value}: {part}");
        }
    }
}

#[test]
fn dumps_are_written() {
    let folder = into_a_folder();
    let Some((backend, _)) = start(&[("GGML_OPENVINO_DUMP_CGRAPH", "1"), ("GGML_OPENVINO_DUMP_IR", "1")])
    else {
        return;
    };
    let loaded = load(&backend).expect("it runs");
    let graph = std::fs::read_to_string(folder.join("cgraph_ov.txt")).expect("the graph is there");
    assert_eq!(graph, loaded.graph.to_string());
    let text = std::fs::read_to_string(folder.join("model_0_dynamic.xml")).expect("the translation is there");
    assert!(text.starts_with("<?xml") && text.contains("ScaledDotProductAttention"));
    // Attention as products, and fixed extents of a chunk and a row.
    let more = [
        ("GGML_OPENVINO_DUMP_IR", "1"),
        ("GGML_OPENVINO_MANUAL_GQA_ATTN", "1"),
        ("GGML_OPENVINO_FORCE_STATIC", "1"),
        ("GGML_OPENVINO_PREFILL_CHUNK_SIZE", "20"),
    ];
    let Some((backend, _)) = start(&more) else { return };
    load(&backend).expect("it runs");
    for name in ["model_0_20.xml", "model_0_1.xml"] {
        let text = std::fs::read_to_string(folder.join(name)).expect("the translation is there");
        assert!(!text.contains("ScaledDotProductAttention") && !text.contains("shape=\"?"), "{name}");
    }
}

#[test]
fn operations_without_translation_are_named() {
    let Some((backend, lines)) = start(&[("GGML_OPENVINO_LOG_UNSUPPORTED_OPS", "1")]) else { return };
    let names = zoo::models();
    let other = names
        .iter()
        .map(|model| graph_of(&model.name).1)
        .find(|graph| (0..graph.nodes.len()).any(|node| !backend.supports(graph, node)));
    if other.is_some() {
        assert!(said(&lines, "runs elsewhere: ") > 0);
    }
}

#[test]
fn a_compiled_model_is_kept_in_a_folder_and_found_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let variables = [("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", path), ("GGML_OPENVINO_PROFILING", "1")];
    for is_second in [false, true] {
        let Some((backend, lines)) = start(&variables) else { return };
        load(&backend).expect("it runs");
        assert_eq!(said(&lines, "found in the cache") > 0, is_second);
        assert_eq!(said(&lines, "compiled in") > 0, !is_second);
    }
    // What is damaged is made again.
    for entry in std::fs::read_dir(path).expect("a folder").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "blob") {
            std::fs::write(entry.path(), "damaged").expect("it is written");
        }
    }
    let Some((backend, lines)) = start(&variables) else { return };
    load(&backend).expect("it runs");
    assert!(said(&lines, "compiled in") > 0);
}

#[test]
fn compiled_models_are_shared_unless_that_is_off() {
    for (value, shares) in [("0", true), ("1", false)] {
        let variables = [("GGML_OPENVINO_DISABLE_CACHE", value), ("GGML_OPENVINO_PROFILING", "1")];
        let Some((backend, lines)) = start(&variables) else { return };
        let first = load(&backend).expect("it runs");
        let _second = load(&backend).expect("it runs");
        assert_eq!(said(&lines, "shared within the process") > 0, shares, "{value}");
        drop(first);
    }
}

#[test]
fn weights_are_given_back_when_asked_for() {
    let Some((backend, _)) = start(&[]) else { return };
    let loaded = load(&backend).expect("it runs");
    assert_eq!(loaded.released, 0);
    let tensors = loaded.graph.weights.len() as u32;
    // The factors of rotations go into the step's data and not into constants.
    let constants = tensors - 1;
    for (variables, expected) in [
        (&[("GGML_OPENVINO_REDUCE_COMPILE_MEM", "1")][..], constants),
        (&[("GGML_OPENVINO_MEMORY_OPTIMIZE", "1")], constants),
        (&[("GGML_OPENVINO_MEMORY_OPTIMIZE", "1"), ("GGML_OPENVINO_REDUCE_COMPILE_MEM", "0")], 0),
        (&[("GGML_OPENVINO_RELEASE_WEIGHTS", "1")], tensors),
    ] {
        let Some((backend, _)) = start(variables) else { return };
        assert_eq!(load(&backend).expect("it runs").released, expected, "{variables:?}");
    }
}

#[test]
fn caches_have_all_cells_if_they_are_not_sliced() {
    let caches = |variables: &[(&str, &str)]| {
        let (backend, _) = start(variables)?;
        Some(load(&backend).expect("it runs").partition.memory().caches)
    };
    let Some(sliced) = caches(&[]) else { return };
    assert_eq!(caches(&[("GGML_OPENVINO_DISABLE_KV_SLICE", "1")]), Some(2 * sliced));
}

#[test]
fn properties_and_the_plugins_own_cache_reach_the_plugin() {
    let Some((backend, _)) = start(&[("GGML_OPENVINO_PROPERTIES", "NO_SUCH_PROPERTY=1")]) else { return };
    let error = load(&backend).err().expect("the plugin refuses it").to_string();
    assert!(error.contains("NO_SUCH_PROPERTY"), "{error}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let Some((backend, _)) = start(&[("GGML_OPENVINO_CACHE_DIR", path)]) else { return };
    load(&backend).expect("it runs");
    assert!(std::fs::read_dir(path).expect("a folder").next().is_some(), "the plugin keeps nothing");
}

#[test]
fn a_device_that_is_missing_is_named_and_the_processor_taken() {
    let Some((backend, lines)) = start(&[("GGML_OPENVINO_DEVICE", "NPU.7")]) else { return };
    assert_eq!(said(&lines, "there is no device NPU.7"), 1);
    assert!(backend.devices()[0].description.contains(" on CPU"));
}
