//! From a file, or a graph with weights, to a model that can run.

use std::sync::Arc;

use puna_backend::partition::{partition, segment_bytes};
use puna_backend::{Backend, Bounds, CacheOptions, DeviceId, Segment, WeightSource};
use puna_gguf::{File, Metadata, Tensors};
use puna_graph::{Graph, Output, StateId, ValueId, WeightId};

use crate::Extras;
use crate::draft::feature_width;
use crate::information::vocabulary;
use crate::layer_inputs;
use crate::ledger::Ledger;
use crate::model::Loaded;
use crate::placement::{Choice, Facts, Place, Plan, Situation, plan};
use crate::texts::Texts;
use crate::weights::{self, FileWeights};
use crate::{Model, ModelInformation, ModelOptions, Placement, RuntimeError};

impl Model {
    /// Builds the model of a file and loads it onto devices. `progress` is called with the share of weight bytes
    /// taken in, 0 to 1; when it returns false, loading ends with [`RuntimeError::Cancelled`].
    pub fn load(
        file: Arc<File>,
        backends: &[Arc<dyn Backend>],
        placement: &Placement,
        options: &ModelOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Model, RuntimeError> {
        Self::load_with(file, backends, placement, options, &Extras::default(), &|_| Vec::new(), progress)
    }

    /// [`Model::load`] with adapters and control vectors, and with values of the graph that [`Model::observe`] shall hand
    /// on; `watch` chooses them. Nothing of this costs anything where it is not used.
    pub fn load_with(
        file: Arc<File>,
        backends: &[Arc<dyn Backend>],
        placement: &Placement,
        options: &ModelOptions,
        extras: &Extras,
        watch: &dyn Fn(&Graph) -> Vec<ValueId>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Model, RuntimeError> {
        let information = ModelInformation::of_file(&file.metadata, &file.tensors)?;
        let context_is_free = options.context == 0;
        let mut options = options.resolved_for(&file.metadata, &information)?;
        let tensors = file.tensors.with_lent(extras.lent.values().map(|(_, tensor)| tensor));
        let build = |options: &ModelOptions| {
            let mut graph = puna_models::build(&file.metadata, &tensors, &options.build())?;
            let mut added = extras.add_to(&mut graph, &information.architecture)?;
            added.tensors.extend(extras.lent.clone());
            let watched = watch(&graph);
            graph.outputs.extend(watched.into_iter().map(|value| (Output::Watched, value)));
            Ok::<_, RuntimeError>((graph, added))
        };
        let (mut graph, mut added) = build(&options)?;
        let shorter = within_positions(&graph, &mut options)?;
        if shorter.is_some() {
            // What the graph is may depend on the context.
            (graph, added) = build(&options)?;
        }
        let free = measure(backends, placement)?;
        let mut plan = decide(&graph, &options, context_is_free, backends, placement, &free)?;
        if plan.context != options.context {
            options = options.with_context(plan.context)?;
            (graph, added) = build(&options)?;
            let again = decide(&graph, &options, false, backends, placement, &free)?;
            plan = Plan { choices: plan.choices, ..again };
        }
        plan.choices.extend(shorter);
        let weights = Arc::new(FileWeights::new(file.clone(), &graph, added));
        let model = Self::assemble_as(graph, weights, information, backends, plan, &options, progress)?;
        Ok(Model { adapters: extras.strengths(), ..model })
    }

    /// Loads a graph whose weights come from anywhere. `context` and `vocabulary` of the information are filled
    /// in. Otherwise like [`Model::load`].
    pub fn assemble(
        graph: Graph,
        weights: Arc<dyn WeightSource>,
        information: ModelInformation,
        backends: &[Arc<dyn Backend>],
        placement: &Placement,
        options: &ModelOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Model, RuntimeError> {
        let mut options = options.resolved(information.context_train)?;
        let shorter = within_positions(&graph, &mut options)?;
        let free = measure(backends, placement)?;
        let mut plan = decide(&graph, &options, false, backends, placement, &free)?;
        plan.choices.extend(shorter);
        Self::assemble_as(graph, weights, information, backends, plan, &options, progress)
    }

    /// Loads a graph as planned. The options are resolved ones.
    fn assemble_as(
        graph: Graph,
        weights: Arc<dyn WeightSource>,
        information: ModelInformation,
        backends: &[Arc<dyn Backend>],
        plan: Plan,
        options: &ModelOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Model, RuntimeError> {
        let vocabulary = vocabulary(&graph)?;
        let logits = graph.output(Output::Logits).map(|logits| (logits, None));
        let embeddings = graph.embeddings().map(|(value, rows)| (value, Some(rows)));
        let output = logits.or(embeddings).ok_or(RuntimeError::NotALanguageModel { what: "output" })?;
        let width = graph.value_type(output.0).width();
        let width = width.ok_or(RuntimeError::NotALanguageModel { what: "output of fixed width" })?;
        let hidden = graph.output(Output::Hidden);
        // What fuses states for a draft head looks at each row alone.
        if graph.states.is_empty() && feature_width(&graph).is_none() {
            return Err(RuntimeError::NotALanguageModel { what: "caches" });
        }
        weights::check(&graph, weights.as_ref())?;
        let mut graph = graph;
        let head_inputs = layer_inputs::hand_out(&mut graph, &options.head_inputs)?;
        let graph_output_state = graph.output(Output::OutputState);
        let graph = Arc::new(graph);
        let caches = CacheOptions {
            keys: options.keys,
            values: options.values,
            sequences: options.sequences,
            cells: options.cells(&graph),
        };
        let bounds = Bounds { tokens: options.micro_batch, outputs: options.outputs };

        let mut loaded = load_segments(&graph, &weights, backends, &plan, &caches, bounds, progress)?;
        let cell_bytes = cell_bytes(&graph, &mut loaded)?;
        let groups = graph.groups().into_iter().zip(&caches.cells);
        let ledgers = groups.filter(|(group, _)| group.is_kept()).map(|(group, cells)| {
            let ledger = Ledger::new(group, *cells, options.sequences);
            ledger.map_err(|_| RuntimeError::LedgerMemory { cells: *cells })
        });
        let ledgers = ledgers.collect::<Result<_, _>>()?;
        let texts = Texts::new(graph.short_context, options.sequences);
        let context = graph.positions.unwrap_or(u32::MAX).min(options.context);
        let positions = graph.positions;
        let information = ModelInformation { context, positions, vocabulary, width, ..information };
        Ok(Model {
            graph,
            weights,
            information,
            options: options.clone(),
            plan,
            segments: loaded,
            ledgers,
            output: output.0,
            pooled: output.1,
            hidden,
            head_inputs,
            output_state: graph_output_state,
            cell_bytes,
            texts,
            identity: None,
            adapters: Vec::new(),
            observer: None,
        })
    }
}

/// What [`Model::load`] would decide for the model with this header. Nothing is loaded.
pub fn planned(
    metadata: &Metadata,
    tensors: &Tensors,
    backends: &[Arc<dyn Backend>],
    placement: &Placement,
    options: &ModelOptions,
) -> Result<Plan, RuntimeError> {
    let information = ModelInformation::of_file(metadata, tensors)?;
    let context_is_free = options.context == 0;
    let mut options = options.resolved_for(metadata, &information)?;
    let mut graph = puna_models::build(metadata, tensors, &options.build())?;
    let shorter = within_positions(&graph, &mut options)?;
    if shorter.is_some() {
        graph = puna_models::build(metadata, tensors, &options.build())?;
    }
    let free = measure(backends, placement)?;
    let mut plan = decide(&graph, &options, context_is_free, backends, placement, &free)?;
    plan.choices.extend(shorter);
    Ok(plan)
}

/// Makes the context no larger than texts can fill where the model has learned fewer positions, and says so. The options are
/// resolved ones.
pub(crate) fn within_positions(
    graph: &Graph,
    options: &mut ModelOptions,
) -> Result<Option<Choice>, RuntimeError> {
    let Some(positions) = graph.positions else { return Ok(None) };
    let (wanted, sequences) = (options.context, options.sequences);
    let chosen = positions.saturating_mul(sequences);
    if wanted <= chosen {
        return Ok(None);
    }
    *options = options.with_context(chosen)?;
    Ok(Some(Choice::Positions { wanted, positions, sequences }))
}

/// The devices that a placement may use: the host, those for layers, and the other back ends.
fn candidates(backends: &[Arc<dyn Backend>], placement: &Placement) -> Result<Vec<Place>, RuntimeError> {
    let mut places = vec![placement.host];
    places.extend(&placement.devices);
    for Place { backend, device } in &places {
        let chosen = backends.get(*backend).filter(|chosen| device.0 < chosen.devices().len());
        if chosen.is_none() {
            let (backend, device) = (*backend, device.0);
            return Err(RuntimeError::NoDevice { backend, device, backends: backends.len() });
        }
    }
    for (backend, other) in backends.iter().enumerate() {
        if places.iter().all(|place| place.backend != backend) && !other.devices().is_empty() {
            places.push(Place { backend, device: DeviceId(0) });
        }
    }
    Ok(places)
}

/// Bytes that are free on the candidates, where that matters and is known.
fn measure(
    backends: &[Arc<dyn Backend>],
    placement: &Placement,
) -> Result<Vec<(Place, Option<u64>)>, RuntimeError> {
    let matters = placement.fit.is_some() || (placement.shares.is_empty() && placement.devices.len() > 1);
    let free = |place: Place| match matters {
        true => Ok((place, backends[place.backend].inspect(place.device)?)),
        false => Ok((place, None)),
    };
    candidates(backends, placement)?.into_iter().map(free).collect()
}

/// Makes the plan for a graph.
fn decide(
    graph: &Graph,
    options: &ModelOptions,
    context_is_free: bool,
    backends: &[Arc<dyn Backend>],
    placement: &Placement,
    free: &[(Place, Option<u64>)],
) -> Result<Plan, RuntimeError> {
    let facts = |(place, free): &(Place, Option<u64>)| {
        let backend = &backends[place.backend];
        let name = backend.devices().get(place.device.0).map(|device| device.name.clone());
        Facts {
            place: *place,
            name: name.unwrap_or_default(),
            free: *free,
            supports: (0..graph.nodes.len()).map(|node| backend.supports(graph, node)).collect(),
            weights: (0..graph.weights.len() as u32)
                .map(|weight| backend.weight_bytes(graph, WeightId(weight)))
                .collect(),
        }
    };
    let devices: Vec<Facts> = free.iter().map(facts).collect();
    plan(&Situation { graph, options, context_is_free, devices: &devices }, placement)
}

/// Cuts the graph as planned and loads what each device gets; the result is in the order in which it runs.
fn load_segments(
    graph: &Arc<Graph>,
    weights: &Arc<dyn WeightSource>,
    backends: &[Arc<dyn Backend>],
    plan: &Plan,
    caches: &CacheOptions,
    bounds: Bounds,
    progress: &mut dyn FnMut(f32) -> bool,
) -> Result<Vec<Loaded>, RuntimeError> {
    let mut places = plan.nodes.clone();
    places.sort();
    places.dedup();
    let apart = layer_inputs::apart(graph).unwrap_or(usize::MAX);
    // What some steps do without is a segment of its own, also on the device of the one before.
    let number =
        |node: usize| 2 * places.binary_search(&plan.nodes[node]).unwrap_or(0) + usize::from(node >= apart);
    let segments = partition(graph, number);
    let total = segments.iter().map(|(_, segment)| segment_bytes(segment)).sum::<u64>().max(1) as f32;
    let mut done = 0.0;
    let mut loaded: Vec<Option<Loaded>> = segments.iter().map(|_| None).collect();
    for (index, Place { backend, device }) in places.into_iter().enumerate() {
        let own = segments.iter().enumerate().filter(|(_, (place, _))| *place / 2 == index);
        let (orders, own): (Vec<usize>, Vec<Segment>) =
            own.map(|(order, (_, segment))| (order, segment.clone())).unzip();
        let size = own.iter().map(segment_bytes).sum::<u64>() as f32;
        let mut cancelled = false;
        let mut share = |part: f32| {
            let goes_on = progress((done + part.clamp(0.0, 1.0) * size) / total);
            cancelled |= !goes_on;
            goes_on
        };
        let result = backends[backend].load_all(device, own, weights.clone(), caches, &mut share);
        if cancelled {
            return Err(RuntimeError::Cancelled);
        }
        for (order, mut partition) in orders.into_iter().zip(result?) {
            let program = partition.compile(bounds)?;
            let apart = segments[order].0 % 2 == 1;
            loaded[order] = Some(Loaded { apart, partition, program });
        }
        done += size;
    }
    Ok(loaded.into_iter().flatten().collect())
}

/// How many bytes one saved cell of each state has.
fn cell_bytes(graph: &Graph, loaded: &mut [Loaded]) -> Result<Vec<usize>, RuntimeError> {
    let mut bytes = vec![0; graph.states.len()];
    for Loaded { partition, .. } in loaded {
        let states = partition.states();
        for StateId(state) in states.states() {
            bytes[state as usize] = states.save(StateId(state), &[0])?.len();
        }
    }
    Ok(bytes)
}
