//! What is chosen for how much memory, as tables.

mod support;

use puna_backend::DeviceId;
use puna_conformance::zoo;
use puna_graph::{Graph, Op};
use puna_models::BuildOptions;
use puna_quant::DType;
use puna_runtime::{Choice, Facts, Fit, ModelOptions, Place, Placement, Plan, RuntimeError, Situation, plan};

const CONTEXT: u32 = 4096;

fn place(backend: usize) -> Place {
    Place { backend, device: DeviceId(0) }
}

/// A model, a host, and devices with so many bytes free.
struct Case {
    graph: Graph,
    options: ModelOptions,
    context_is_free: bool,
    devices: Vec<Facts>,
    placement: Placement,
}

fn case(name: &str, devices: usize) -> Case {
    let model = zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model");
    let file = model.open();
    let build = BuildOptions { context: CONTEXT, ..BuildOptions::default() };
    let graph = puna_models::build(&file.metadata, &file.tensors, &build).expect("builds");
    let options = ModelOptions {
        context: CONTEXT,
        micro_batch: 8,
        outputs: 1,
        keys: DType::F16,
        values: DType::F16,
        ..ModelOptions::default()
    };
    let fact = |index: usize| Facts {
        place: place(index),
        name: if index == 0 { "host".to_owned() } else { format!("device{index}") },
        free: None,
        supports: vec![true; graph.nodes.len()],
        weights: Vec::new(),
    };
    let all = (0..=devices).map(fact).collect();
    let fit = Some(Fit { margins: vec![0], least_context: 256, devices_are_optional: false });
    let placement = Placement {
        host: place(0),
        devices: (1..=devices).map(place).collect(),
        fit,
        ..Placement::default()
    };
    Case { graph, options, context_is_free: true, devices: all, placement }
}

impl Case {
    fn plan(&self) -> Result<Plan, RuntimeError> {
        let Self { graph, options, devices, .. } = self;
        plan(&Situation { graph, options, context_is_free: self.context_is_free, devices }, &self.placement)
    }

    /// What a device needs for so many layers, with experts of so many on the host, at a context.
    fn need(&self, layers: u32, experts_on_host: u32, context: u32, device: usize) -> u64 {
        let placement =
            Placement { layers: Some(layers), experts_on_host, fit: None, ..self.placement.clone() };
        let options = ModelOptions { context, ..self.options.clone() };
        let situation = Situation {
            graph: &self.graph,
            options: &options,
            context_is_free: false,
            devices: &self.devices,
        };
        let plan = plan(&situation, &placement).expect("a plan without limits");
        plan.devices.iter().find(|used| used.place == place(device)).map_or(0, |used| used.need.total())
    }

    fn free(mut self, bytes: &[Option<u64>]) -> Self {
        self.devices.iter_mut().zip(bytes).for_each(|(device, bytes)| device.free = *bytes);
        self
    }

    /// Layers on a device.
    fn layers(&self, device: usize) -> u32 {
        let plan = self.plan().expect("it fits");
        plan.devices
            .iter()
            .find(|used| used.place == place(device))
            .map_or(0, |used| used.layers.len() as u32)
    }

    fn total(&self) -> u32 {
        self.graph.nodes.iter().filter_map(|node| node.layer).max().map_or(0, |last| last + 1)
    }
}

const DENSE: &str = "llama-dense";

#[test]
fn with_enough_memory_all_of_it_goes_to_the_device() {
    let whole = case(DENSE, 1).need(99, 0, CONTEXT, 1);
    for free in [None, Some(whole), Some(10 * whole)] {
        let case = case(DENSE, 1).free(&[Some(0), free]);
        let plan = case.plan().expect("it fits");
        assert_eq!((plan.context, plan.choices.len(), plan.devices.len()), (CONTEXT, 0, 1), "{plan}");
        assert!(plan.nodes.iter().all(|node| *node == place(1)));
    }
}

#[test]
fn the_context_gives_way_first() {
    let base = case(DENSE, 1);
    for context in [256, 512, 3840] {
        let free = base.need(99, 0, context, 1);
        let plan = case(DENSE, 1).free(&[None, Some(free)]).plan().expect("it fits");
        assert_eq!(plan.context, context, "{plan}");
        assert_eq!(plan.choices, [Choice::Context { wanted: CONTEXT, chosen: context }]);
        assert!(plan.nodes.iter().all(|node| *node == place(1)));
        assert!(plan.to_string().contains(&format!("context {context} instead of {CONTEXT}")), "{plan}");
    }
}

#[test]
fn a_context_that_was_asked_for_stays_and_layers_give_way() {
    let total = case(DENSE, 1).total();
    for layers in 0..=total {
        let free = case(DENSE, 1).need(layers, 0, CONTEXT, 1);
        let mut case = case(DENSE, 1).free(&[None, Some(free)]);
        case.context_is_free = false;
        let plan = case.plan().expect("it fits");
        assert_eq!(plan.context, CONTEXT);
        assert_eq!(plan.choices, [Choice::Layers { chosen: layers, wanted: total + 1 }], "{plan}");
        assert_eq!(case.layers(1), layers.saturating_sub(1), "the output is one of {layers}");
    }
}

#[test]
fn layers_give_way_after_the_context_and_what_is_left_goes_to_it() {
    let total = case(DENSE, 1).total();
    let least = case(DENSE, 1).need(total, 0, 256, 1);
    let case = case(DENSE, 1).free(&[None, Some(least)]);
    let plan = case.plan().expect("it fits");
    assert!(plan.choices.contains(&Choice::Layers { chosen: total, wanted: total + 1 }), "{plan}");
    assert!(plan.choices.contains(&Choice::Context { wanted: CONTEXT, chosen: 256 }), "{plan}");
    let more = case.need(total, 0, 1024, 1);
    // Where even the least context with one layer more does not fit, the context takes the rest.
    if more < case.need(total + 1, 0, 256, 1) {
        let plan = case.free(&[None, Some(more)]).plan().expect("it fits");
        assert_eq!(plan.context, 1024, "{plan}");
    }
}

#[test]
fn experts_give_way_before_layers() {
    let name = "granite-moe";
    let total = case(name, 1).total();
    assert!(case(name, 1).graph.nodes.iter().any(|node| matches!(node.op, Op::MatMulExperts(_))));
    for layers in 1..=total {
        let free = case(name, 1).need(99, layers, CONTEXT, 1);
        let mut case = case(name, 1).free(&[None, Some(free)]);
        case.context_is_free = false;
        let plan = case.plan().expect("it fits");
        assert_eq!(plan.choices, [Choice::Experts { layers }], "{plan}");
        assert_eq!(case.layers(1), total);
    }
    let free = case(name, 1).need(1, total, CONTEXT, 1);
    let mut case = case(name, 1).free(&[None, Some(free)]);
    case.context_is_free = false;
    let choices = case.plan().expect("it fits").choices;
    assert!(choices.contains(&Choice::Layers { chosen: 1, wanted: total + 1 }), "{choices:?}");
}

#[test]
fn what_fits_nowhere_says_how_much_is_missing() {
    let base = case(DENSE, 1);
    let host = base.need(0, 0, 256, 0);
    let error = case(DENSE, 1).free(&[Some(host - 100), Some(0)]).plan().expect_err("nothing fits");
    let RuntimeError::DoesNotFit { device, free, missing, context, on_host, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((device.as_str(), *free, *missing, *context, *on_host), ("host", host - 100, 100, 256, true));
    assert!(error.to_string().contains("1 KiB are missing"), "{error}");
    // Together they have room.
    let total = base.total();
    let (on_host, on_device) = (base.need(total, 0, 256, 0), base.need(total, 0, 256, 1));
    let case = case(DENSE, 1).free(&[Some(on_host), Some(on_device)]);
    assert_eq!(case.layers(1), total - 1);
}

#[test]
fn a_context_too_large_for_a_device_and_the_host_names_the_device() {
    // A context of 256 would fit on the device with all layers; this one does so nowhere.
    let base = case(DENSE, 1);
    let (on_host, on_device) = (base.need(99, 0, 256, 0), base.need(99, 0, 256, 1));
    let mut case = case(DENSE, 1).free(&[Some(on_host), Some(on_device)]);
    case.context_is_free = false;
    let error = case.plan().expect_err("it does not fit");
    let RuntimeError::DoesNotFit { device, context, .. } = &error else { panic!("{error}") };
    assert_eq!((device.as_str(), *context), ("device1", CONTEXT), "{error}");
}

#[test]
fn without_devices_only_the_context_can_give_way() {
    let base = case(DENSE, 0);
    for (free, context) in [(None, CONTEXT), (Some(base.need(0, 0, 1024, 0)), 1024)] {
        let plan = case(DENSE, 0).free(&[free]).plan().expect("it fits");
        assert_eq!((plan.context, plan.devices.len()), (context, 1), "{plan}");
    }
    let mut case = case(DENSE, 0).free(&[Some(1 << 10)]);
    assert!(matches!(case.plan(), Err(RuntimeError::DoesNotFit { .. })));
    case.placement.fit = None;
    assert!(case.plan().is_ok(), "nothing is refused where nothing shall fit");
}

#[test]
fn margins_stay_free_unless_the_layers_were_asked_for() {
    let need = case(DENSE, 1).need(99, 0, CONTEXT, 1);
    let margin = 1 << 20;
    for (free, layers, whole) in
        [(need + margin, None, true), (need + margin - 1, None, false), (need, Some(99), true)]
    {
        let mut case = case(DENSE, 1).free(&[None, Some(free)]);
        case.context_is_free = false;
        case.placement.layers = layers;
        case.placement.fit =
            Some(Fit { margins: vec![margin], least_context: 256, devices_are_optional: false });
        let plan = case.plan().expect("it fits");
        assert_eq!(plan.nodes.iter().all(|node| *node == place(1)), whole, "{free} {layers:?}: {plan}");
    }
    let mut case = case(DENSE, 1).free(&[None, Some(need / 2)]);
    case.context_is_free = false;
    case.placement.layers = Some(99);
    let error = case.plan().expect_err("half of it does not fit");
    assert!(matches!(&error, RuntimeError::DoesNotFit { device, .. } if device == "device1"), "{error}");
    assert!(error.to_string().contains("fewer layers"), "{error}");
}

#[test]
fn devices_share_layers_by_what_they_have_free() {
    let total = case(DENSE, 2).total();
    let all = 1_u64 << 40;
    for (free, of_first) in [([all, all], (total + 2) / 2), ([all, 0], total), ([0, all], 0)] {
        let mut case = case(DENSE, 2).free(&[None, Some(free[0]), Some(free[1])]);
        assert_eq!(case.layers(1), of_first.min(total), "{free:?}");
        assert_eq!(case.layers(1) + case.layers(2), total, "{free:?}");
        case.placement.shares = vec![0.0, 1.0];
        if free[1] > 0 {
            assert_eq!(case.layers(2), total, "{free:?}");
        }
    }
}

#[test]
fn devices_that_nobody_asked_for_are_not_used_by_half() {
    let mut case = case(DENSE, 1);
    let attention = case.graph.nodes.iter().position(|node| matches!(node.op, Op::Attention(_)));
    case.devices[1].supports[attention.expect("it has one")] = false;
    let plan = case.plan().expect("it fits");
    assert_eq!((plan.devices.len(), plan.choices.len()), (2, 0), "asked for: {plan}");
    if let Some(fit) = &mut case.placement.fit {
        fit.devices_are_optional = true;
    }
    let plan = case.plan().expect("it fits");
    let unsupported = Choice::Unsupported { device: "device1".into(), op: "Attention" };
    assert_eq!((plan.devices.len(), &plan.choices[..]), (1, &[unsupported][..]), "{plan}");
}
