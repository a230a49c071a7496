//! How much memory a placement needs on each device.

use puna_backend::partition::file_bytes;
use puna_graph::ops::OpDef;
use puna_graph::{Dim, Graph, Operand, StateDecl, Symbol, Type, WeightId};
use puna_quant::DType;

use super::Facts;
use crate::ModelOptions;

/// Bytes on one device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Need {
    /// Weights.
    pub weights: u64,
    /// Caches.
    pub caches: u64,
    /// Values of one step.
    pub work: u64,
}

impl Need {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.caches).saturating_add(self.work)
    }
}

/// What each device needs when its nodes run there. The options are resolved ones.
pub fn need(graph: &Graph, options: &ModelOptions, devices: &[Facts], places: &[usize]) -> Vec<Need> {
    let mut needs = vec![Need::default(); devices.len()];
    let mut loaded = vec![vec![false; graph.weights.len()]; devices.len()];
    let mut kept = vec![false; graph.states.len()];
    let cells = options.cells(graph);
    for (node, place) in graph.nodes.iter().zip(places) {
        let (need, loaded) = (&mut needs[*place], &mut loaded[*place]);
        for operand in &node.inputs {
            if let Operand::Weight(weight) = operand
                && !std::mem::replace(&mut loaded[weight.index()], true)
            {
                let known = devices[*place].weights.get(weight.index()).copied();
                let bytes = known.unwrap_or_else(|| file_bytes(graph, WeightId(weight.0)));
                need.weights = need.weights.saturating_add(bytes);
            }
        }
        if let Some(state) = node.op.state()
            && !std::mem::replace(&mut kept[state.index()], true)
        {
            let bytes = state_bytes(graph, options, &cells, &graph.states[state.index()]);
            need.caches = need.caches.saturating_add(bytes);
        }
    }
    for (device, need) in needs.iter_mut().enumerate() {
        need.work = work(graph, options, |node| places.get(node) == Some(&device));
    }
    needs
}

/// Bytes of a state; `cells` are those of the cache groups.
pub fn state_bytes(graph: &Graph, options: &ModelOptions, cells: &[u32], state: &StateDecl) -> u64 {
    let group = state.group();
    let groups = graph.groups();
    let cells = groups.iter().zip(cells).find(|(other, _)| **other == group).map_or(0, |(_, cells)| *cells);
    let (kv_heads, key_dim, value_dim) = match state {
        StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => (kv_heads, key_dim, value_dim),
        StateDecl::Recurrent { elements, .. } => return 4 * *elements as u64 * cells as u64,
    };
    let bytes = |dtype: DType, width: u32| {
        let heads = (*kv_heads as u64).saturating_mul(cells as u64);
        // A format that does not fit the width is refused when the model is loaded.
        dtype.bytes_for(width as u64).unwrap_or(4 * width as u64).saturating_mul(heads)
    };
    let (keys, values) = match group.is_kept() {
        true => (options.keys, options.values),
        false => (DType::F32, DType::F32),
    };
    bytes(keys, *key_dim).saturating_add(bytes(values, *value_dim))
}

/// Most bytes of values that are needed at one time when the nodes run in order, of those that `counts` chooses.
pub fn work(graph: &Graph, options: &ModelOptions, counts: impl Fn(usize) -> bool) -> u64 {
    let size = |ty: &Type| {
        ty.shape.iter().fold(4_u64, |bytes, dim| {
            bytes.saturating_mul(match dim {
                Dim::Fixed(extent) => *extent as u64,
                Dim::Of(Symbol::Tokens | Symbol::EncoderTokens) => options.micro_batch as u64,
                Dim::Of(Symbol::Outputs) => options.outputs as u64,
            })
        })
    };
    let mut last_read: Vec<usize> = (0..graph.nodes.len()).collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        for operand in &node.inputs {
            if let Operand::Value(value) = operand {
                last_read[value.index()] = index;
            }
        }
    }
    for (_, value) in &graph.outputs {
        last_read[value.index()] = graph.nodes.len();
    }
    let mut ending: Vec<u64> = vec![0; graph.nodes.len() + 1];
    let (mut live, mut most) = (0_u64, 0_u64);
    for (index, node) in graph.nodes.iter().enumerate() {
        if counts(index) {
            let bytes = size(&node.ty);
            live = live.saturating_add(bytes);
            most = most.max(live);
            ending[last_read[index]] = ending[last_read[index]].saturating_add(bytes);
        }
        live = live.saturating_sub(ending[index]);
    }
    most
}
