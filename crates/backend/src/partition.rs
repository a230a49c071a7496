//! Cutting a graph into segments.

use std::ops::Range;
use std::sync::Arc;

use puna_graph::ops::OpDef;
use puna_graph::{Graph, Operand, StateId, ValueId};

use crate::Segment;

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

/// The states that the nodes of a segment read and write, in their order, each once.
pub fn states(graph: &Graph, nodes: Range<usize>) -> Vec<StateId> {
    let mut states: Vec<StateId> = graph.nodes[nodes].iter().filter_map(|node| node.op.state()).collect();
    states.sort();
    states.dedup();
    states
}

/// For each state of a segment that carries rotary positions, the rotation of its keys: `(state, node of the
/// Rope)`. Context shift needs it. Keys reach an `Attention` either straight from a `Rope` or without one.
pub fn key_rotations(graph: &Graph, nodes: Range<usize>) -> Vec<(StateId, Option<usize>)> {
    graph.nodes[nodes]
        .iter()
        .filter_map(|node| {
            let puna_graph::Op::Attention(attention) = &node.op else { return None };
            let rope = match node.inputs.get(1) {
                Some(Operand::Value(keys)) => {
                    matches!(graph.nodes[keys.index()].op, puna_graph::Op::Rope(_)).then_some(keys.index())
                }
                _ => None,
            };
            Some((attention.state, rope))
        })
        .collect()
}
