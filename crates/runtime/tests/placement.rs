//! Models on several devices: what is where, and that it makes no difference.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_backend::reference::Reference;
use puna_backend::{Backend, DeviceId};
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo::{self, ZooModel};
use puna_graph::ops::OpDef;
use puna_graph::{Op, Operand};
use puna_quant::DType;
use puna_runtime::{Fit, Model, ModelOptions, OutputRows, Place, Placement, RuntimeError};
use support::*;

const HOST: Place = Place { backend: 0, device: DeviceId(0) };
const FIRST: Place = Place { backend: 1, device: DeviceId(0) };
const SECOND: Place = Place { backend: 2, device: DeviceId(0) };

/// The evaluator three times.
fn three() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Reference), Arc::new(Reference), Arc::new(Reference)]
}

fn sizes() -> ModelOptions {
    ModelOptions { keys: DType::F32, values: DType::F32, full_window_cache: true, ..options(64, 2, 5) }
}

fn named(name: &str) -> ZooModel {
    zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model")
}

fn try_load(
    model: &ZooModel,
    backends: &[Arc<dyn Backend>],
    placement: &Placement,
) -> Result<Model, RuntimeError> {
    Model::load(Arc::new(model.open()), backends, placement, &sizes(), &mut |_| true)
}

fn load(model: &ZooModel, backends: &[Arc<dyn Backend>], placement: &Placement) -> Model {
    try_load(model, backends, placement).unwrap_or_else(|error| panic!("{}: {error}", model.name))
}

fn on_first(layers: u32) -> Placement {
    Placement { devices: vec![FIRST], layers: Some(layers), ..Placement::default() }
}

/// Layers whose nodes with weights of their own are all on the device, and whether embeddings and output are.
fn on_device(model: &Model, place: Place) -> (Vec<u32>, bool, bool) {
    let graph = model.graph();
    let mut of: BTreeMap<Option<u32>, bool> = BTreeMap::new();
    for (node, here) in graph.nodes.iter().zip(&model.plan().nodes) {
        *of.entry(node.layer).or_insert(true) &= *here == place;
    }
    let layers = of.iter().filter(|(layer, here)| layer.is_some() && **here);
    let edge = |place_of: Option<&Place>| place_of == Some(&place);
    (
        layers.filter_map(|(layer, _)| *layer).collect(),
        edge(model.plan().nodes.first()),
        edge(model.plan().nodes.last()),
    )
}

#[test]
fn the_last_layers_go_to_the_device() {
    let zoo = named("llama-dense");
    let layers = load(&zoo, &three(), &Placement::default()).information().layers;
    assert!(layers >= 2, "{layers}");
    for count in [0, 1, 2, layers, layers + 1, 99] {
        let model = load(&zoo, &three(), &on_first(count));
        let (found, embeddings, output) = on_device(&model, FIRST);
        let first = (layers + 1).saturating_sub(count);
        assert_eq!(found, (first..layers).collect::<Vec<_>>(), "{count}");
        assert_eq!((embeddings, output), (count > layers, count > 0), "{count}");
    }
}

#[test]
fn shares_divide_layers_between_devices() {
    let zoo = named("llama-dense");
    let placement = |shares: &[f32]| Placement {
        devices: vec![FIRST, SECOND],
        layers: Some(99),
        shares: shares.to_vec(),
        ..Placement::default()
    };
    let layers = load(&zoo, &three(), &Placement::default()).information().layers as usize;
    for (shares, of_first) in [
        (&[1.0, 1.0][..], (layers + 2) / 2),
        (&[1.0, 0.0], layers),
        (&[0.0, 3.0], 0),
        (&[], (layers + 2) / 2),
    ] {
        let model = load(&zoo, &three(), &placement(shares));
        let (first, second) = (on_device(&model, FIRST), on_device(&model, SECOND));
        assert_eq!(first.0.len(), of_first.min(layers), "{shares:?}: {first:?} {second:?}");
        assert_eq!(first.0.len() + second.0.len(), layers, "{shares:?}");
    }
}

/// Ways to cut a model, for one with so many layers.
fn ways(model: &Model) -> Vec<(&'static str, Placement)> {
    let layers = model.information().layers;
    let half = layers.div_ceil(2);
    let all = on_first(u32::MAX);
    let tensor = |part: &str| {
        let names = model.graph().weights.iter().map(|weight| &weight.name);
        names.filter(|name| name.contains(part)).map(|name| (name.clone(), HOST)).collect()
    };
    vec![
        ("half", on_first(half)),
        ("two", Placement { devices: vec![FIRST, SECOND], ..on_first(layers) }),
        ("experts", Placement { experts_on_host: u32::MAX, ..all.clone() }),
        ("networks", Placement { feed_forward_on_host: half, ..all.clone() }),
        ("caches", Placement { caches_on_host: true, ..all.clone() }),
        ("keys", Placement { tensors: tensor("attn_k"), ..all.clone() }),
        ("half of all", Placement { tensors: tensor(".1."), experts_on_host: 1, ..on_first(half) }),
    ]
}

/// Runs a prompt in steps and then single tokens.
fn logits(model: &mut Model, tokens: &[u32]) -> Vec<f32> {
    let (prompt, rest) = tokens.split_at(tokens.len() - 2);
    let mut found = all_rows(model, 0, prompt);
    rest.iter().for_each(|token| found.extend(all_rows(model, 0, &[*token])));
    found
}

#[test]
fn a_cut_model_computes_what_the_whole_one_does() {
    let mut cut = 0;
    for (index, zoo) in zoo::models().into_iter().enumerate() {
        let tokens = &zoo.tokens[..zoo.tokens.len().min(9)];
        let Ok(mut whole) = try_load(&zoo, &three(), &Placement::default()) else { continue };
        if whole.has_encoder() {
            whole.encode(0, tokens).expect("reads");
        }
        let expected = logits(&mut whole, tokens);
        // Each in half, and in one of the other ways in turn.
        let mut ways = ways(&whole);
        let other = ways.remove(1 + index % (ways.len() - 1));
        for (way, placement) in [ways.remove(0), other] {
            let mut model = load(&zoo, &three(), &placement);
            if model.has_encoder() {
                model.encode(0, tokens).expect("reads");
            }
            let found = logits(&mut model, tokens);
            assert!(found == expected, "{} {way}: {}", zoo.name, normalised_squared_error(&found, &expected));
            cut += usize::from(model.plan().devices.len() > 1);
        }
    }
    assert!(cut > 200, "{cut}");
}

#[test]
fn caches_are_where_their_layers_run() {
    let zoo = named("gemma3-dense");
    for (way, placement) in ways(&load(&zoo, &three(), &Placement::default())) {
        let mut model = load(&zoo, &three(), &placement);
        all_rows(&mut model, 0, &zoo.tokens[..5]);
        let graph = model.graph();
        let layers = model.information().layers;
        for (node, place) in graph.nodes.iter().zip(&model.plan().nodes) {
            let Some(state) = node.op.state() else { continue };
            let layer = graph.states[state.index()].layer();
            let expected = match way {
                "caches" => HOST,
                "half" | "half of all" if layer < layers + 1 - layers.div_ceil(2) => HOST,
                "two" => continue,
                _ => FIRST,
            };
            assert_eq!(*place, expected, "{way}: layer {layer}");
        }
        let caches: u64 = model.memory().iter().map(|memory| memory.caches).sum();
        let whole = load(&zoo, &three(), &Placement::default());
        let expected: u64 = whole.memory().iter().map(|memory| memory.caches).sum();
        assert_eq!(caches, expected, "{way}: each cache is there once");
    }
}

#[test]
fn experts_stay_on_the_host_with_what_is_between_them() {
    let zoo = named("granite-moe");
    let model = load(&zoo, &three(), &Placement { experts_on_host: 1, ..on_first(u32::MAX) });
    let graph = model.graph();
    let mut moved = 0;
    for (node, place) in graph.nodes.iter().zip(&model.plan().nodes) {
        let reads_experts = node.inputs.iter().any(|operand| match operand {
            Operand::Value(value) => matches!(graph.nodes[value.index()].op, Op::MatMulExperts(_)),
            _ => false,
        });
        let is_expert = reads_experts || matches!(node.op, Op::MatMulExperts(_));
        let has_weights = node.inputs.iter().any(|operand| matches!(operand, Operand::Weight(_)));
        if is_expert && node.layer == Some(0) {
            assert_eq!(*place, HOST, "{}", node.name);
            moved += 1;
        } else if has_weights || node.layer != Some(0) {
            assert_eq!(*place, FIRST, "{} of layer {:?}", node.name, node.layer);
        }
    }
    assert!(moved >= 4, "{moved}");
    // One run of nodes goes out to the host and comes back.
    assert_eq!(model.memory().len(), 3);
}

#[test]
fn sequences_are_saved_restored_and_shifted_across_devices() {
    let zoo = named("llama-dense");
    let tokens = zoo.tokens[..12].to_vec();
    let mut whole = load(&zoo, &three(), &Placement::default());
    all_rows(&mut whole, 0, &tokens[..8]);
    let saved = whole.save(0, &tokens[..8]).expect("saves");
    let expected = all_rows(&mut whole, 0, &tokens[8..10]);
    whole.shift(0, 2, 3).expect("shifts");
    let after = all_rows(&mut whole, 0, &tokens[10..]);
    for (way, placement) in ways(&whole) {
        let mut model = load(&zoo, &three(), &placement);
        assert_eq!(model.restore(1, &saved).expect("restores"), tokens[..8], "{way}");
        assert_eq!(model.save(1, &tokens[..8]).expect("saves"), saved, "{way}");
        assert!(all_rows(&mut model, 1, &tokens[8..10]) == expected, "{way}");
        model.shift(1, 2, 3).expect("shifts");
        assert!(all_rows(&mut model, 1, &tokens[10..]) == after, "{way}");
        model.copy(1, 0);
        let again = model.truncate(0, model.length(0) - 1).map(|()| all_rows(&mut model, 0, &tokens[11..]));
        assert_eq!(again.expect("one token back").len(), model.information().width as usize, "{way}");
    }
}

#[test]
fn the_processor_and_another_device_share_a_model() {
    let options = CpuOptions { threads: 2, ..CpuOptions::default() };
    let cpu: Arc<dyn Backend> = Arc::new(Cpu::new(options).expect("threads"));
    let backends: Vec<Arc<dyn Backend>> = vec![cpu.clone(), Arc::new(Reference), cpu];
    for name in ["llama-dense", "granite-moe", "gemma4-e-dense", "lfm2moe-top2", "deepseek2-yarn"] {
        let zoo = named(name);
        let tokens = &zoo.tokens[..9];
        let mut whole = load(&zoo, &backends, &Placement::default());
        let expected = logits(&mut whole, tokens);
        for (way, placement) in ways(&whole) {
            let found = logits(&mut load(&zoo, &backends, &placement), tokens);
            let error = normalised_squared_error(&found, &expected);
            assert!(error < 1e-6, "{name} {way}: {error:e}");
        }
    }
}

#[test]
fn a_fitting_placement_loads_with_a_context_that_fits() {
    let zoo = named("llama-dense");
    let fit = Some(Fit { margins: vec![0], least_context: 16, devices_are_optional: true });
    let mut model = load(&zoo, &three(), &Placement { devices: vec![FIRST], fit, ..Placement::default() });
    // The evaluator does not say what is free.
    assert_eq!(on_device(&model, FIRST).0.len(), model.information().layers as usize);
    assert!(model.plan().choices.is_empty(), "{}", model.plan());
    let outputs = run(&mut model, vec![work(0, &zoo.tokens[..3], OutputRows::Last)]);
    assert_eq!(outputs.rows.len(), 1);
}
