//! Layers that guess tokens further ahead against their forward passes in numpy, on the evaluator and on the processor.

mod support;

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo::{DraftModel, ahead_models};
use puna_gguf::{Bytes, File, Value};
use puna_graph::Output;
use puna_quant::DType;
use puna_runtime::{
    Batch, DraftHead, DraftOutputs, HeadInputs, HeadKind, Model, ModelOptions, OutputRows, Outputs,
    Placement, Purpose, RuntimeError, Work,
};
use support::normalised_squared_error;

/// Squared error against `float64`: sums in `f32`.
const EXACT: f64 = 1e-10;

fn backends() -> Vec<Arc<dyn Backend>> {
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("threads start");
    vec![Arc::new(Reference), Arc::new(cpu)]
}

fn options(head_inputs: HeadInputs) -> ModelOptions {
    ModelOptions {
        context: 256,
        sequences: 3,
        micro_batch: 64,
        keys: DType::F32,
        values: DType::F32,
        head_inputs,
        ..ModelOptions::default()
    }
}

fn load(file: &Arc<File>, backend: &Arc<dyn Backend>, options: &ModelOptions) -> Result<Model, RuntimeError> {
    let backends = [backend.clone()];
    Model::load(file.clone(), &backends, &Placement::default(), options, &mut |_| true)
}

fn head(file: &Arc<File>, backend: &Arc<dyn Backend>, micro_batch: u32) -> Result<DraftHead, RuntimeError> {
    let options = ModelOptions { micro_batch, ..options(HeadInputs::None) };
    DraftHead::load(file, file, std::slice::from_ref(backend), &Placement::default(), &options, &mut |_| true)
}

fn work(sequence: u32, tokens: &[u32], outputs: OutputRows) -> Work {
    Work { sequence, tokens: tokens.to_vec(), outputs }
}

fn run(model: &mut Model, work: Vec<Work>) -> Outputs {
    model.run(&Batch::of(work)).expect("the batch runs")
}

fn guess(head: &mut DraftHead, work: Vec<Work>, states: &[Vec<f32>]) -> DraftOutputs {
    head.run(&Batch::of(work), states).expect("the batch runs")
}

#[track_caller]
fn same(found: &[f32], model: &DraftModel, kind: &str) {
    let error = normalised_squared_error(found, &model.expected[kind]);
    assert!(error <= EXACT, "{} {kind}: {error:.1e}", model.name);
}

#[test]
fn every_architecture_with_such_layers_is_tried() {
    let mut tried: Vec<String> = ahead_models().iter().map(DraftModel::architecture).collect();
    let with_layers = puna_models::ARCHITECTURES.iter().filter(|row| row.guesses_ahead.is_some());
    let mut known: Vec<&str> = with_layers.map(|row| row.name).collect();
    tried.sort_unstable();
    known.sort_unstable();
    assert_eq!(tried, known);
}

#[test]
fn the_state_that_the_layer_reads_leaves_the_model_and_changes_nothing() {
    for (model, backend) in ahead_models().iter().flat_map(|m| backends().into_iter().map(move |b| (m, b))) {
        let file = Arc::new(model.open());
        assert_eq!(DraftHead::inputs(&file.metadata).expect("the key is good"), HeadInputs::LastState);
        let mut with = load(&file, &backend, &options(HeadInputs::LastState)).expect("the model loads");
        let mut without = load(&file, &backend, &options(HeadInputs::None)).expect("the model loads");
        // Rows apart from those that leave are computed only where there are such rows.
        let last_state = with.graph().output(Output::LastState).expect("it is asked for");
        let (sender, apart) = std::sync::mpsc::channel();
        with.observe(Box::new(move |values| {
            sender.send(values.contains_key(&last_state)).expect("it is heard")
        }));
        // The prompt's last row, then all rows, then several texts of which some ask for nothing.
        let (first, rest) = model.tokens.split_at(17);
        let mut states = Vec::new();
        for (tokens, outputs) in [(first, OutputRows::Last), (rest, OutputRows::All)] {
            let found = run(&mut with, vec![work(0, tokens, outputs)]);
            let wanted = run(&mut without, vec![work(0, tokens, outputs)]);
            assert_eq!(found.logits, wanted.logits, "{}", model.name);
            assert!(wanted.states.is_empty());
            states.extend(found.states);
        }
        assert_eq!(apart.try_iter().collect::<Vec<bool>>(), [true, false], "{}", model.name);
        same(&states, model, "state");
        let both = || vec![work(1, first, OutputRows::None), work(2, &model.tokens, OutputRows::Last)];
        let (found, wanted) = (run(&mut with, both()), run(&mut without, both()));
        assert_eq!(found.logits, wanted.logits, "{}", model.name);
        let error = normalised_squared_error(&found.states[found.states.len() - states.len()..], &states);
        assert!(error <= EXACT, "{}: {error:.1e}", model.name);
    }
}

#[test]
fn the_layer_guesses_from_states_and_then_from_its_own() {
    for (model, backend) in ahead_models().iter().flat_map(|m| backends().into_iter().map(move |b| (m, b))) {
        let file = Arc::new(model.open());
        let mut ahead = head(&file, &backend, 64).expect("the layer loads");
        assert_eq!(ahead.kind(), HeadKind::Ahead);
        let width = ahead.state_width();
        let states = &model.expected["state"][..(model.tokens.len() - 1) * width];
        let tokens = &model.tokens[1..];
        let found = guess(&mut ahead, vec![work(0, tokens, OutputRows::All)], &[states.to_vec()]);
        same(&found.rows.logits, model, "logits");
        assert_eq!(found.hidden.len(), states.len());
        let last = found.hidden[states.len() - width..].to_vec();
        same(&last, model, "hidden");
        let next = guess(&mut ahead, vec![work(0, &[model.best], OutputRows::Last)], &[last]);
        same(&next.rows.logits, model, "next.logits");

        // In small steps, beside another text, and after going back.
        let mut ahead = head(&file, &backend, 5).expect("the layer loads");
        guess(&mut ahead, vec![work(1, tokens, OutputRows::None)], &[states.to_vec()]);
        ahead.model().truncate(1, 20).expect("it can go back");
        let (first, rest) = (tokens.split_at(9).0, tokens.split_at(20).1);
        let batch = vec![work(2, first, OutputRows::None), work(1, rest, OutputRows::All)];
        let found = guess(&mut ahead, batch, &[states[..9 * width].to_vec(), states[20 * width..].to_vec()]);
        let wanted = &model.expected["logits"][20 * found.rows.width..];
        let error = normalised_squared_error(&found.rows.logits, wanted);
        assert!(error <= EXACT, "{}: {error:.1e}", model.name);
    }
}

/// The file with another number of layers that guess ahead, or without some tensors.
fn changed(file: &File, ahead: u32, without: &str) -> Arc<File> {
    with_key(file, "nextn_predict_layers", ahead, without)
}

/// The file with a key of the architecture set, without some tensors.
fn with_key(file: &File, key: &str, value: u32, without: &str) -> Arc<File> {
    let mut metadata = file.metadata.clone();
    let architecture = metadata.str("general.architecture").expect("it has one").to_owned();
    metadata.set(format!("{architecture}.{key}"), Value::U32(value));
    let kept = file.tensors.iter().filter(|tensor| !tensor.name.contains(without));
    let parts = kept.map(|tensor| (tensor.into(), Bytes::Owned(file.bytes(tensor).to_vec()))).collect();
    Arc::new(File::from_parts(metadata, parts).expect("the tensors are good"))
}

#[test]
fn files_without_such_layers_are_refused_by_name() {
    let backend = &backends()[0];
    let models = ahead_models();
    let model = models.iter().find(|model| model.architecture() == "qwen35").expect("it is there");
    let file = Arc::new(model.open());
    let refused = |file: &Arc<File>| head(file, backend, 64).err().expect("is refused").to_string();
    let text = refused(&changed(&file, 1, "eh_proj"));
    assert!(text.contains("nextn.eh_proj.weight is missing"), "{text}");
    let text = refused(&changed(&file, 0, "nothing"));
    assert!(text.contains("nextn_predict_layers"), "{text}");
    // Asked for all the same, as when another file is said to be the head.
    let none = changed(&file, 0, "nothing");
    let asked = ModelOptions { purpose: Purpose::GuessAhead, ..options(HeadInputs::None) };
    let text = load(&none, backend, &asked).err().expect("is refused").to_string();
    assert!(text.contains("qwen35.nextn_predict_layers is 0"), "{text}");
    let llama = &puna_conformance::pairs::pairs()[0].target;
    for options in [asked, options(HeadInputs::LastState)] {
        let text = load(llama, backend, &options).err().expect("is refused").to_string();
        assert!(text.contains("'llama' cannot have layers that guess tokens ahead"), "{text}");
    }
}

#[test]
fn a_layer_of_another_model_is_refused() {
    let models = ahead_models();
    let file = |name: &str| Arc::new(models.iter().find(|model| model.name == name).expect(name).open());
    let (own, other) = (file("qwen35-dense"), file("hy_v3-moe"));
    let backend: Arc<dyn Backend> = Arc::new(Reference);
    let load = |own: &Arc<File>, target: &Arc<File>| {
        let (backends, placement) = (std::slice::from_ref(&backend), Placement::default());
        let loaded =
            DraftHead::load(own, target, backends, &placement, &options(HeadInputs::None), &mut |_| true);
        loaded.err().map(|error| error.to_string())
    };
    let error = load(&own, &other).expect("another architecture is an error");
    assert!(error.contains("of architecture 'qwen35', the model of 'hy_v3'"), "{error}");
    let wide = with_key(&own, "embedding_length", 96, "nothing");
    let error = load(&own, &wide).expect("another width is an error");
    assert!(error.contains("numbers, those of the model have 96"), "{error}");
}

#[test]
fn a_saved_sequence_fits_with_and_without_what_guesses() {
    let backend = &backends()[0];
    for model in ahead_models() {
        let file = Arc::new(model.open());
        let (first, rest) = model.tokens.split_at(20);
        let kinds = [HeadInputs::None, HeadInputs::LastState];
        let mut loaded = kinds.map(|inputs| load(&file, backend, &options(inputs)).expect("the model loads"));
        let expected = run(&mut loaded[0], vec![work(2, &model.tokens, OutputRows::Last)]);
        let [identity, other] = &mut loaded;
        assert_eq!(identity.identity(), other.identity(), "{}", model.name);
        for (from, to) in [(0, 1), (1, 0)] {
            run(&mut loaded[from], vec![work(0, first, OutputRows::None)]);
            let saved = loaded[from].save(0, first).expect("saves");
            loaded[from].clear(0);
            assert_eq!(loaded[to].restore(1, &saved).expect("restores"), first, "{}", model.name);
            let found = run(&mut loaded[to], vec![work(1, rest, OutputRows::Last)]);
            let error = normalised_squared_error(&found.logits, &expected.logits);
            assert!(error <= EXACT, "{}: {error:.1e}", model.name);
            loaded[to].clear(1);
        }
    }
    // Two models of one architecture are told apart, and how.
    let models = ahead_models();
    let mut models = models.iter().filter(|model| model.architecture().starts_with("qwen35"));
    let (own, other) = (models.next().expect("it is there"), models.next().expect("it is there"));
    let mut own = load(&Arc::new(own.open()), backend, &options(HeadInputs::None)).expect("the model loads");
    let mut other =
        load(&Arc::new(other.open()), backend, &options(HeadInputs::None)).expect("the model loads");
    let saved = own.save(0, &[]).expect("saves");
    let text = other.restore(0, &saved).expect_err("is another model").to_string();
    assert!(text.contains("it was saved from another model: architecture 'qwen35' instead of"), "{text}");
}
