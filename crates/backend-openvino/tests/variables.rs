//! What each variable of the environment changes, on a small model.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, WeightSource};
use puna_backend_openvino::OpenVino;
use puna_backend_openvino::settings::{Settings, VARIABLES};
use puna_conformance::run::{FileWeights, group_step};
use puna_conformance::{normalised_squared_error, zoo};
use puna_graph::ops::GatherRows;
use puna_graph::{Graph, Input, Operand, Output, Step, WeightDecl, WeightId};
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

/// A loaded model of the zoo after a step.
struct Loaded {
    graph: Arc<Graph>,
    partition: Box<dyn Partition>,
    released: u32,
    logits: Vec<f32>,
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
    let mut boundary = Boundary::default();
    partition.run(program, &step, &mut boundary)?;
    let logits = graph.output(Output::Logits).and_then(|logits| boundary.values.remove(&logits));
    let logits = logits.expect("logits leave the model").into_floats();
    Ok(Loaded { graph, partition, released: released.load(Ordering::Relaxed), logits })
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
        ("GGML_OPENVINO_DEBUG_INPUT", "step.tokens i32 [3]: 3 5 7"),
        ("GGML_OPENVINO_DEBUG_OUTPUT", "new.0.keys"),
        ("GGML_OPENVINO_DEBUG_INPUT", "past.0.keys f32 ["),
        ("GGML_OPENVINO_PRINT_CGRAPH_TENSOR_ADDRESS", "step.tokens at 0x"),
        ("GGML_OPENVINO_PRINT_CGRAPH_TENSOR_ADDRESS", "past.0.keys at 0x"),
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
    let mut graph = Graph::default();
    let table = WeightDecl { name: "table".into(), dtype: DType::F32, shape: vec![5, 4], layer: Some(0) };
    graph.weights.push(table);
    for input in [Input::Tokens, Input::EncoderTokens] {
        let operands = vec![Operand::Weight(WeightId(0)), Operand::Input(input)];
        graph.push(GatherRows, operands, Some(0), "rows").expect("it fits");
    }
    for (value, count) in [("1", 1), ("0", 0)] {
        let Some((backend, lines)) = start(&[("GGML_OPENVINO_LOG_UNSUPPORTED_OPS", value)]) else { return };
        let supported: Vec<bool> =
            (0..graph.nodes.len()).map(|node| backend.supports(&graph, node)).collect();
        assert_eq!(supported, [true, false]);
        assert_eq!(said(&lines, "GatherRows 'rows' of "), count);
        assert_eq!(said(&lines, "runs elsewhere: rows of an encoder"), count);
    }
}

/// Starts the back end in one of the places for caches.
type Start = fn(&[(&str, &str)]) -> Option<(OpenVino, Lines)>;

fn start_stateful(variables: &[(&str, &str)]) -> Option<(OpenVino, Lines)> {
    start(&[&[("GGML_OPENVINO_STATEFUL_EXECUTION", "1")], variables].concat())
}

#[test]
fn a_compiled_model_is_kept_in_a_folder_and_found_again() {
    let exact = common::EXACT.1;
    let other = exact.replace("DYNAMIC_QUANTIZATION_GROUP_SIZE=0", "DYNAMIC_QUANTIZATION_GROUP_SIZE=32");
    // A model that is read back keeps its properties: the numbers are the same to the last bit.
    for (form, properties) in [
        (start as Start, exact),
        (start, ""),
        (start_stateful, exact),
        (start_stateful, &other),
        (common::start_with_shim, exact),
        (common::start_with_shim, ""),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("text");
        let variables = [
            ("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", path),
            ("GGML_OPENVINO_PROFILING", "1"),
            ("GGML_OPENVINO_PROPERTIES", properties),
        ];
        let mut logits = Vec::new();
        for is_second in [false, true] {
            let Some((backend, lines)) = form(&variables) else { return };
            logits.push(load(&backend).expect("it runs").logits);
            assert_eq!(said(&lines, "found in the cache") > 0, is_second, "{properties}");
            for work in ["translated in", "compiled in"] {
                assert_eq!(said(&lines, work) > 0, !is_second, "{properties}: {work}");
            }
        }
        assert_eq!(logits[0], logits[1], "{properties}");
    }
}

#[test]
fn damaged_compiled_models_are_told_and_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let variables = [("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", path), ("GGML_OPENVINO_PROFILING", "1")];
    let Some((backend, _)) = start(&variables) else { return };
    let right = load(&backend).expect("it runs").logits;
    for (kind, damage) in [("blob", "damaged"), ("blob", ""), ("manifest", "damaged")] {
        for entry in std::fs::read_dir(path).expect("a folder").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == kind) {
                std::fs::write(entry.path(), damage).expect("it is written");
            }
        }
        let Some((backend, lines)) = start(&variables) else { return };
        assert_eq!(load(&backend).expect("it runs").logits, right);
        assert!(said(&lines, "compiled in") > 0);
        assert_eq!(said(&lines, "the compiled model is made again: ") > 0, kind == "blob");
        // What was made again is whole.
        let Some((backend, lines)) = start(&variables) else { return };
        assert_eq!(load(&backend).expect("it runs").logits, right);
        assert!(said(&lines, "found in the cache") > 0);
    }
    // A file where the folder should be.
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("it is written");
    let file = file.to_str().expect("text");
    let Some((backend, lines)) = start(&[("GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR", file)]) else { return };
    assert_eq!(load(&backend).expect("it runs").logits, right);
    assert_eq!(said(&lines, "the compiled model is not kept: "), 1);
}

#[test]
fn constants_lie_in_a_folder_that_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let Some((backend, lines)) = start(&[("GGML_OPENVINO_SPILL_DIR", path)]) else { return };
    let loaded = load(&backend).expect("it runs");
    assert_eq!(said(&lines, "constants stay in memory"), 0);
    // The file has no name in the folder, but the process has it in its memory.
    if let Ok(maps) = std::fs::read_to_string("/proc/self/maps") {
        assert!(maps.contains(path), "{maps}");
    }
    let Some((backend, lines)) = start(&[("GGML_OPENVINO_SPILL_DIR", "/no/such/folder")]) else { return };
    assert_eq!(load(&backend).expect("it runs").logits, loaded.logits);
    // Once, however many models the segment has.
    assert_eq!(said(&lines, "constants stay in memory: /no/such/folder"), 1);
}

#[test]
fn a_cache_in_the_model_is_out_of_reach() {
    for (value, is_in_model) in [("1", true), ("0", false)] {
        let Some((backend, _)) = start(&[("GGML_OPENVINO_STATEFUL_EXECUTION", value)]) else { return };
        let mut loaded = load(&backend).expect("it runs");
        let states = loaded.partition.states();
        let state = states.states()[0];
        assert_eq!(states.save(state, &[0, 1]).is_err(), is_in_model);
    }
    let both = [("GGML_OPENVINO_STATEFUL_EXECUTION", "1"), ("GGML_OPENVINO_FORCE_STATIC", "1")];
    let Some((_, lines)) = start(&both) else { return };
    assert_eq!(said(&lines, "GGML_OPENVINO_STATEFUL_EXECUTION has no effect with fixed extents"), 1);
}

#[test]
fn properties_of_an_npu_can_be_given() {
    let lookup = |name: &str| (name == "GGML_OPENVINO_NPU_COMPILE_CONFIG").then(|| "level=3".to_owned());
    let properties = |device| Settings::read(&lookup).properties(device, 2);
    let given = ("NPU_COMPILATION_MODE_PARAMS".to_owned(), "level=3".to_owned());
    assert!(properties("NPU").contains(&given) && !properties("CPU").contains(&given));
}

#[test]
fn every_variable_has_a_test_and_a_row() {
    let tests = include_str!("variables.rs");
    let page = include_str!("../../../docs/openvino.md");
    for variable in VARIABLES {
        assert!(tests.contains(&format!("\"{}\"", variable.name)), "{}", variable.name);
        let row = format!("| `{}` | {} |", variable.name, variable.effect);
        assert!(page.contains(&row), "docs/openvino.md lacks: {row}");
    }
}

#[test]
fn wrong_values_are_told() {
    let wrong = [("GGML_OPENVINO_PROFILING", "yes"), ("GGML_OPENVINO_PREFILL_CHUNK_SIZE", "many")];
    let Some((_, lines)) = start(&wrong) else { return };
    assert_eq!(said(&lines, "GGML_OPENVINO_PROFILING=yes: a positive integer means on"), 1);
    assert_eq!(said(&lines, "GGML_OPENVINO_PREFILL_CHUNK_SIZE=many: that is no positive integer"), 1);
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
    // At these settings prompts have no model of their own, whose constants would give back once more.
    let start = |variables: &[(&str, &str)]| start(&[&[common::EXACT], variables].concat());
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
    // Elsewhere it is told that it does nothing.
    let stateful = [("GGML_OPENVINO_STATEFUL_EXECUTION", "1"), ("GGML_OPENVINO_DISABLE_KV_SLICE", "1")];
    let Some((_, lines)) = start(&stateful) else { return };
    assert_eq!(
        said(&lines, "GGML_OPENVINO_DISABLE_KV_SLICE has no effect on keys and values that the model"),
        1
    );
}

#[test]
fn attention_is_written_out_where_the_model_keeps_its_cache_and_not_in_pages() {
    let manual = ("GGML_OPENVINO_MANUAL_GQA_ATTN", "1");
    let exact = [common::EXACT, manual];
    let Some((backend, _)) = start_stateful(&[common::EXACT]) else { return };
    let right = load(&backend).expect("it runs").logits;
    let Some((backend, lines)) = start_stateful(&exact) else { return };
    let found = load(&backend).expect("it runs").logits;
    assert!(found != right, "another way to compute the same");
    assert!(normalised_squared_error(&found, &right) < 1e-8);
    assert_eq!(said(&lines, "has no effect"), 0);
    let Some((_, lines)) = common::start_with_shim(&exact) else { return };
    assert_eq!(said(&lines, "GGML_OPENVINO_MANUAL_GQA_ATTN has no effect on keys and values in pages"), 1);
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
    for (name, missing) in [("NPU.7", 1), ("nonsense", 1), ("cpu", 0)] {
        let Some((backend, lines)) = start(&[("GGML_OPENVINO_DEVICE", name)]) else { return };
        assert_eq!(said(&lines, "; using CPU"), missing, "{name}");
        assert_eq!(said(&lines, &format!("there is no device {} (", name.to_uppercase())), missing);
        assert!(backend.devices()[0].description.contains(" on CPU"));
    }
}
