//! From a file, or a graph with weights, to a model that can run.

use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{Backend, Bounds, CacheOptions, DeviceId, Segment, WeightSource};
use puna_gguf::File;
use puna_graph::{Graph, Operand, Output, StateId, ValueId, WeightId};

use crate::Extras;
use crate::draft::feature_width;
use crate::estimate::weight_bytes;
use crate::information::vocabulary;
use crate::layer_inputs;
use crate::ledger::Ledger;
use crate::model::Loaded;
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
        let options = options.resolved(information.context_train)?;
        let tensors = file.tensors.with_lent(extras.lent.values().map(|(_, tensor)| tensor));
        let mut graph = puna_models::build(&file.metadata, &tensors, &options.build())?;
        let mut added = extras.add_to(&mut graph, &information.architecture)?;
        added.tensors.extend(extras.lent.clone());
        let watched = watch(&graph);
        graph.outputs.extend(watched.into_iter().map(|value| (Output::Watched, value)));
        let weights = Arc::new(FileWeights::new(file, &graph, added));
        Self::assemble(graph, weights, information, backends, placement, &options, progress)
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
        let options = options.resolved(information.context_train)?;
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
        let layer_inputs = layer_inputs::hand_out(&mut graph, &options.layer_inputs)?;
        let graph = Arc::new(graph);
        let devices = place(&graph, backends, placement)?;
        let caches = CacheOptions {
            keys: options.keys,
            values: options.values,
            sequences: options.sequences,
            cells: options.cells(&graph),
        };
        let bounds = Bounds { tokens: options.micro_batch, outputs: options.outputs };

        let segments = partition(&graph, |node| devices[node].backend);
        let sizes: Vec<u64> = segments.iter().map(|(_, segment)| segment_bytes(segment)).collect();
        let total = sizes.iter().sum::<u64>().max(1) as f32;
        let mut done = 0.0;
        let mut loaded = Vec::with_capacity(segments.len());
        for ((_, segment), size) in segments.into_iter().zip(sizes) {
            let Some(place) = devices.get(segment.nodes.start) else { continue };
            let mut cancelled = false;
            let mut share = |part: f32| {
                let goes_on = progress((done + part.clamp(0.0, 1.0) * size as f32) / total);
                cancelled |= !goes_on;
                goes_on
            };
            let result =
                backends[place.backend].load(place.device, segment, weights.clone(), &caches, &mut share);
            if cancelled {
                return Err(RuntimeError::Cancelled);
            }
            let mut partition = result?;
            let program = partition.compile(bounds)?;
            loaded.push(Loaded { partition, program });
            done += size as f32;
        }

        let cell_bytes = cell_bytes(&graph, &mut loaded)?;
        let groups = graph.groups().into_iter().zip(&caches.cells);
        let ledgers = groups.filter(|(group, _)| group.is_kept()).map(|(group, cells)| {
            let ledger = Ledger::new(group, *cells, options.sequences);
            ledger.map_err(|_| RuntimeError::LedgerMemory { cells: *cells })
        });
        let ledgers = ledgers.collect::<Result<_, _>>()?;
        let texts = Texts::new(graph.short_context, options.sequences);
        let information = ModelInformation { context: options.context, vocabulary, width, ..information };
        Ok(Model {
            graph,
            weights,
            information,
            options,
            segments: loaded,
            ledgers,
            output: output.0,
            pooled: output.1,
            hidden,
            layer_inputs,
            cell_bytes,
            texts,
            fingerprint: None,
            observer: None,
        })
    }
}

/// Decides which back end and device runs each node.
fn place(
    graph: &Graph,
    backends: &[Arc<dyn Backend>],
    placement: &Placement,
) -> Result<Vec<Placement>, RuntimeError> {
    let Placement { backend, device } = *placement;
    let chosen = backends.get(backend).filter(|chosen| device.0 < chosen.devices().len());
    let missing = RuntimeError::NoDevice { backend, device: device.0, backends: backends.len() };
    let chosen = chosen.ok_or(missing)?;
    let others: Vec<usize> = (0..backends.len())
        .filter(|other| *other != backend && !backends[*other].devices().is_empty())
        .collect();
    let node_place = |node: usize| {
        if chosen.supports(graph, node) {
            return Ok(*placement);
        }
        let other = others.iter().find(|other| backends[**other].supports(graph, node));
        let declared = &graph.nodes[node];
        let unsupported = RuntimeError::Unsupported { op: declared.op.name(), node, name: declared.name };
        Ok(Placement { backend: *other.ok_or(unsupported)?, device: DeviceId(0) })
    };
    (0..graph.nodes.len()).map(node_place).collect()
}

/// Bytes of the weights that a segment reads.
fn segment_bytes(segment: &Segment) -> u64 {
    let nodes = &segment.graph.nodes[segment.nodes.clone()];
    let mut used: Vec<WeightId> = nodes
        .iter()
        .flat_map(|node| &node.inputs)
        .filter_map(|operand| match operand {
            Operand::Weight(weight) => Some(*weight),
            _ => None,
        })
        .collect();
    used.sort();
    used.dedup();
    used.iter().map(|weight| weight_bytes(&segment.graph.weights[weight.index()])).sum()
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
