//! Cutting a graph into segments, and what can be told of a segment from the graph.

use std::ops::Range;
use std::sync::Arc;

use puna_graph::ops::OpDef;
use puna_graph::{Graph, Input, Op, Operand, Output, StateId, ValueId, WeightId};

use crate::{BackendError, Partition, Segment};

/// Cuts the node list wherever the device changes and lists what crosses each cut. `device_of` maps a node's
/// index to any number that names its device. Returns the device number of each segment with it.
pub fn partition(graph: &Arc<Graph>, device_of: impl Fn(usize) -> usize) -> Vec<(usize, Segment)> {
    let total = graph.nodes.len();
    let read_by = |range: Range<usize>| {
        graph.nodes[range].iter().flat_map(|node| &node.inputs).filter_map(|operand| match operand {
            Operand::Value(value) => Some(*value),
            _ => None,
        })
    };
    let sorted = |mut values: Vec<ValueId>| {
        values.sort();
        values.dedup();
        values
    };
    let mut segments = Vec::new();
    let mut start = 0;
    while start < total {
        let device = device_of(start);
        let end = (start..total).find(|index| device_of(*index) != device).unwrap_or(total);
        let inputs = sorted(read_by(start..end).filter(|value| value.index() < start).collect());
        let later = read_by(end..total).chain(graph.outputs.iter().map(|(_, value)| *value));
        let outputs = sorted(later.filter(|value| (start..end).contains(&value.index())).collect());
        segments.push((device, Segment { graph: graph.clone(), nodes: start..end, inputs, outputs }));
        start = end;
    }
    segments
}

/// The logits, if the segment makes them and only the caller reads them: of these the highest may be all that a step asks for
/// ([`puna_graph::Step::best`]).
pub fn final_logits(segment: &Segment) -> Option<ValueId> {
    let logits = segment.graph.output(Output::Logits).filter(|value| segment.outputs.contains(value))?;
    let mut read = segment.graph.nodes.iter().flat_map(|node| &node.inputs);
    (!read.any(|operand| *operand == Operand::Value(logits))).then_some(logits)
}

/// The states that the nodes of a segment read and write, in their order, each once.
pub fn states(graph: &Graph, nodes: impl IntoIterator<Item = usize>) -> Vec<StateId> {
    let mut states: Vec<StateId> =
        nodes.into_iter().filter_map(|node| graph.nodes.get(node)?.op.state()).collect();
    states.sort();
    states.dedup();
    states
}

/// For each segment of one device the states that it lists: those that no segment before it touches.
pub fn owned_states(segments: &[Segment]) -> Vec<Vec<StateId>> {
    let mut seen: Vec<StateId> = Vec::new();
    let new = |segment: &Segment| {
        let mut own = states(&segment.graph, segment.nodes.clone());
        own.retain(|state| !seen.contains(state));
        seen.extend(&own);
        own
    };
    segments.iter().map(new).collect()
}

/// The weights that nodes read, in their order, each once.
pub fn weights(graph: &Graph, nodes: Range<usize>) -> Vec<WeightId> {
    let operands = graph.nodes[nodes].iter().flat_map(|node| &node.inputs);
    let mut used: Vec<WeightId> = operands
        .filter_map(|operand| match operand {
            Operand::Weight(weight) => Some(*weight),
            _ => None,
        })
        .collect();
    used.sort();
    used.dedup();
    used
}

/// Bytes of a weight in the file's format.
pub fn file_bytes(graph: &Graph, weight: WeightId) -> u64 {
    let declared = &graph.weights[weight.index()];
    let elements = declared.shape.iter().fold(1_u64, |n, extent| n.saturating_mul(*extent as u64));
    declared.dtype.bytes_for(elements).unwrap_or(u64::MAX)
}

/// Bytes of the weights that a segment reads, in the file's formats.
pub fn segment_bytes(segment: &Segment) -> u64 {
    let used = weights(&segment.graph, segment.nodes.clone());
    used.iter().fold(0, |sum, weight| sum.saturating_add(file_bytes(&segment.graph, *weight)))
}

/// Loads one segment and calls the progress with the share that is done.
pub type LoadOne<'a> =
    &'a mut dyn FnMut(Segment, &mut dyn FnMut(f32) -> bool) -> Result<Box<dyn Partition>, BackendError>;

/// Loads segments that share nothing; a state that two of them would have to share is refused.
pub fn load_separately(
    device: &str,
    segments: Vec<Segment>,
    load: LoadOne<'_>,
    progress: &mut dyn FnMut(f32) -> bool,
) -> Result<Vec<Box<dyn Partition>>, BackendError> {
    for (segment, own) in segments.iter().zip(owned_states(&segments)) {
        let graph = &segment.graph;
        let shared = states(graph, segment.nodes.clone())
            .into_iter()
            .find(|state| graph.states[state.index()].group().is_kept() && !own.contains(state));
        if let Some(state) = shared {
            let layer = graph.states[state.index()].layer();
            return Err(BackendError::SharedState { device: device.to_owned(), layer });
        }
    }
    let total = segments.iter().map(segment_bytes).sum::<u64>().max(1) as f32;
    let mut done = 0.0;
    let mut partitions = Vec::with_capacity(segments.len());
    for segment in segments {
        let bytes = segment_bytes(&segment) as f32;
        partitions
            .push(load(segment, &mut |share| progress((done + share.clamp(0.0, 1.0) * bytes) / total))?);
        done += bytes;
    }
    Ok(partitions)
}

/// How keys carry their positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRotation {
    /// Node of the `Rope`.
    pub rope: usize,
    /// Elements of a key before those that it rotates.
    pub offset: u32,
}

/// For each attention of a segment its state and the rotation of its keys, if they have one; context shift needs
/// it. Keys reach an `Attention` straight from a `Rope`, or as the second part of a `Concat`, repeated or not.
pub fn key_rotations(
    graph: &Graph,
    nodes: impl IntoIterator<Item = usize>,
) -> Vec<(StateId, Option<KeyRotation>)> {
    let rotation = |keys: Operand| {
        let (mut operand, mut offset) = (keys, 0);
        while let Operand::Value(value) = operand {
            let node = graph.nodes.get(value.index())?;
            operand = match &node.op {
                Op::Rope(_) => return Some(KeyRotation { rope: value.index(), offset }),
                Op::Concat(_) => {
                    offset += graph.operand_type(*node.inputs.first()?).width()?;
                    *node.inputs.get(1)?
                }
                Op::RepeatHeads(_) => *node.inputs.first()?,
                _ => return None,
            };
        }
        None
    };
    nodes
        .into_iter()
        .filter_map(|node| graph.nodes.get(node))
        .filter_map(|node| match &node.op {
            Op::Attention(attention) => {
                Some((attention.state, node.inputs.get(1).copied().and_then(rotation)))
            }
            Op::BlockAttention(attention) => Some((attention.state, None)),
            _ => None,
        })
        .collect()
}

/// The first state whose keys or values depend on positions in another way than by the rotation that
/// [`key_rotations`] finds: cells of such a state cannot be moved to other positions. Attention itself counts as
/// independent, since with movable keys only distances matter.
pub fn immovable_state(graph: &Graph) -> Option<StateId> {
    let mut depends: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    let on_positions = |operand: Operand, depends: &[bool]| match operand {
        Operand::Input(input) => input == Input::Positions,
        Operand::Value(value) => depends.get(value.index()).copied().unwrap_or(true),
        Operand::Weight(_) => false,
    };
    for node in &graph.nodes {
        let any = node.inputs.iter().any(|operand| on_positions(*operand, &depends));
        depends.push(any && node.op.state().is_none());
    }
    // Whether keys depend on positions, apart from their one rotation.
    let keys_do = |keys: Operand| {
        let mut operand = keys;
        while let Operand::Value(value) = operand {
            let Some(node) = graph.nodes.get(value.index()) else { return true };
            operand = match (&node.op, &node.inputs[..]) {
                (Op::Rope(_), [x, ..]) => return on_positions(*x, &depends),
                (Op::Concat(_), [first, second]) if !on_positions(*first, &depends) => *second,
                (Op::RepeatHeads(_), [x]) => *x,
                _ => break,
            };
        }
        on_positions(operand, &depends)
    };
    graph.nodes.iter().find_map(|node| match (&node.op, &node.inputs[..]) {
        (Op::Attention(attention), [_, keys, values, ..]) => {
            (keys_do(*keys) || on_positions(*values, &depends)).then_some(attention.state)
        }
        _ => None,
    })
}
