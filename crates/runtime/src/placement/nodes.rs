//! Which device runs each node, once it is decided which layers go where.

use std::collections::{BTreeMap, HashMap};

use puna_backend::partition::key_rotations;
use puna_graph::ops::OpDef;
use puna_graph::{Graph, Node, Op, Operand, StateId, WeightDecl};

use super::{Facts, Placement};
use crate::RuntimeError;

/// The host's number.
pub const HOST: usize = 0;

/// How a model is cut.
#[derive(Clone, PartialEq, Debug)]
pub struct Cut {
    /// Layers on devices, the output counted as one; more than the model has take the embeddings there, too.
    pub layers: u32,
    /// The first so many layers leave their experts on the host.
    pub experts_on_host: u32,
    /// Shares of the devices, in order; at least one where there is a device.
    pub shares: Vec<f64>,
}

/// Layers of a graph: one more than the highest number.
pub fn layers(graph: &Graph) -> u32 {
    graph.nodes.iter().filter_map(|node| node.layer).max().map_or(0, |last| last + 1)
}

/// Whether a weight is one of experts.
pub fn is_expert(node: &Node) -> bool {
    matches!(node.op, Op::MatMulExperts(_) | Op::AddExpertBias(_))
}

/// The device of each layer, and of what comes before the first and after the last one.
pub struct Layers {
    /// Before the first one.
    pub before: usize,
    /// Of each.
    pub of: Vec<usize>,
    /// After the last one.
    pub after: usize,
}

impl Layers {
    /// For so many layers.
    pub fn new(total: u32, cut: &Cut) -> Self {
        let count = cut.layers.min(total.saturating_add(1));
        let first = total + 1 - count;
        let sum: f64 = cut.shares.iter().sum();
        let device = |layer: u32| {
            if layer < first || cut.shares.is_empty() {
                return HOST;
            }
            // The layers are so many equal parts of a line that the devices' shares divide.
            let place = f64::from(layer - first) / f64::from(count) * sum;
            let mut end = 0.0;
            let index = cut.shares.iter().position(|share| {
                end += share;
                place < end
            });
            1 + index.unwrap_or(cut.shares.len() - 1)
        };
        let of: Vec<usize> = (0..total).map(device).collect();
        let before = if first == 0 { device(0) } else { HOST };
        Self { before, of, after: device(total) }
    }

    /// For each node the device of its layer. What is between layers goes with the one before it.
    fn of_nodes(&self, graph: &Graph) -> Vec<usize> {
        let last = graph.nodes.iter().rposition(|node| node.layer.is_some());
        let mut current = self.before;
        let place = |(index, node): (usize, &Node)| {
            match node.layer {
                Some(layer) => current = self.of.get(layer as usize).copied().unwrap_or(HOST),
                None if last.is_none_or(|last| index > last) => current = self.after,
                None => {}
            }
            current
        };
        graph.nodes.iter().enumerate().map(place).collect()
    }
}

/// The device of each node.
pub fn place(
    graph: &Graph,
    devices: &[Facts],
    placement: &Placement,
    cut: &Cut,
) -> Result<Vec<usize>, RuntimeError> {
    let usual = Layers::new(layers(graph), cut).of_nodes(graph);
    let named: BTreeMap<&str, usize> = placement
        .tensors
        .iter()
        .filter_map(|(name, place)| {
            Some((name.as_str(), devices.iter().position(|device| device.place == *place)?))
        })
        .collect();
    let mut places = usual.clone();
    // Nodes that have to be where they are; others may follow what they read.
    let mut fixed = vec![false; graph.nodes.len()];
    let states = place_states(graph, devices, placement, &usual)?;
    for (index, node) in graph.nodes.iter().enumerate() {
        if let Some(place) = node.op.state().and_then(|state| states.get(&state)) {
            places[index] = *place;
            fixed[index] = true;
            continue;
        }
        let weights = node.inputs.iter().filter_map(|operand| match operand {
            Operand::Weight(weight) => graph.weights.get(weight.index()),
            _ => None,
        });
        let mut has_weights = false;
        let mut forced = None;
        for weight in weights {
            has_weights = true;
            forced = forced.or_else(|| named.get(weight.name.as_str()).copied());
            forced = forced.or_else(|| stays(node, weight, placement, cut).then_some(HOST));
        }
        places[index] = forced.unwrap_or(usual[index]);
        fixed[index] = has_weights;
    }
    // A cache turns its keys as they were turned before they were stored, so it has to know how.
    for (state, rotation) in key_rotations(graph, 0..graph.nodes.len()) {
        if let (Some(rotation), Some(place)) = (rotation, states.get(&state)) {
            places[rotation.rope] = *place;
            fixed[rotation.rope] = true;
        }
    }
    let moved: Vec<bool> = places.iter().zip(&usual).map(|(place, usual)| place != usual).collect();
    follow(graph, &usual, &fixed, &moved, &mut places);
    fall_back(graph, devices, &mut places)?;
    Ok(places)
}

/// Whether a weight was told to stay on the host together with others of its kind.
fn stays(node: &Node, weight: &WeightDecl, placement: &Placement, cut: &Cut) -> bool {
    let Some(layer) = weight.layer else { return false };
    let dense = ["ffn_gate.", "ffn_up.", "ffn_down."];
    (layer < cut.experts_on_host && is_expert(node))
        || (layer < placement.feed_forward_on_host && dense.iter().any(|part| weight.name.contains(part)))
}

/// Puts nodes without weights and caches of their own where most of what they read of their layer is made, so that
/// little crosses from device to device. Where nothing of a layer was moved, everything is where it is.
fn follow(graph: &Graph, usual: &[usize], fixed: &[bool], moved: &[bool], places: &mut [usize]) {
    let mut any: HashMap<Option<u32>, bool> = HashMap::new();
    for (node, moved) in graph.nodes.iter().zip(moved) {
        *any.entry(node.layer).or_default() |= *moved;
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if fixed[index] || any.get(&node.layer) != Some(&true) {
            continue;
        }
        let mut read: BTreeMap<usize, usize> = BTreeMap::new();
        for operand in &node.inputs {
            if let Operand::Value(value) = operand
                && graph.nodes[value.index()].layer == node.layer
            {
                let size = graph.value_type(*value).row_elements();
                *read.entry(places[value.index()]).or_default() += size;
            }
        }
        let most = read.values().copied().max().unwrap_or(0);
        let is_usual_best = read.get(&usual[index]).is_some_and(|size| *size == most);
        let best = read.iter().find(|(_, size)| **size == most).map(|(place, _)| *place);
        places[index] = if is_usual_best { usual[index] } else { best.unwrap_or(usual[index]) };
    }
}

/// Moves nodes that their device cannot run to the first that can. Where caches are was decided with that in mind.
fn fall_back(graph: &Graph, devices: &[Facts], places: &mut [usize]) -> Result<(), RuntimeError> {
    for (index, place) in places.iter_mut().enumerate() {
        if node_without_state(graph, index) && !can(devices, *place, index) {
            *place = first_that_can(graph, devices, &[index])?;
        }
    }
    Ok(())
}

fn node_without_state(graph: &Graph, index: usize) -> bool {
    graph.nodes[index].op.state().is_none()
}

fn can(devices: &[Facts], device: usize, node: usize) -> bool {
    devices.get(device).is_some_and(|device| device.supports.get(node).copied().unwrap_or(true))
}

fn first_that_can(graph: &Graph, devices: &[Facts], nodes: &[usize]) -> Result<usize, RuntimeError> {
    let found = (0..devices.len()).find(|device| nodes.iter().all(|node| can(devices, *device, *node)));
    found.ok_or_else(|| {
        let index = nodes.first().copied().unwrap_or(0);
        let node = &graph.nodes[index];
        RuntimeError::Unsupported { op: node.op.name(), node: index, name: node.name }
    })
}

/// The device of each cache: that of the first node that touches it, or the first that can run all that do.
fn place_states(
    graph: &Graph,
    devices: &[Facts],
    placement: &Placement,
    usual: &[usize],
) -> Result<HashMap<StateId, usize>, RuntimeError> {
    let mut touching: BTreeMap<StateId, Vec<usize>> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if let Some(state) = node.op.state() {
            touching.entry(state).or_default().push(index);
        }
    }
    let place = |(state, nodes): (StateId, Vec<usize>)| {
        let first = nodes.first().and_then(|node| usual.get(*node)).copied().unwrap_or(HOST);
        let wanted = if placement.caches_on_host { HOST } else { first };
        let fits = nodes.iter().all(|node| can(devices, wanted, *node));
        Ok((state, if fits { wanted } else { first_that_can(graph, devices, &nodes)? }))
    };
    touching.into_iter().map(place).collect()
}
