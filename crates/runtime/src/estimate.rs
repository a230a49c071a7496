//! How much memory a model will need, from its header alone.

use puna_gguf::{Metadata, Tensors};
use puna_graph::{Dim, Graph, Operand, StateDecl, Symbol, Type};

use crate::{ModelInformation, ModelOptions, RuntimeError};

/// Bytes of memory that a model needs. Back ends that change the layout of weights may need somewhat more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Estimate {
    /// The context that it is for, in tokens.
    pub context: u32,
    /// Weights in the formats of the file.
    pub weights: u64,
    /// Caches.
    pub caches: u64,
    /// Activations of one step, logits included.
    pub work: u64,
}

impl Estimate {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.caches).saturating_add(self.work)
    }
}

/// Memory needed by the model with this header under these options. Nothing is allocated or read but the header.
pub fn estimate(
    metadata: &Metadata,
    tensors: &Tensors,
    options: &ModelOptions,
) -> Result<Estimate, RuntimeError> {
    let information = ModelInformation::of_file(metadata, tensors)?;
    let options = options.resolved(information.context_train)?;
    let graph = puna_models::build(metadata, tensors, &options.build())?;
    Ok(of_graph(&graph, &options))
}

/// The estimate for a graph and resolved options.
fn of_graph(graph: &Graph, options: &ModelOptions) -> Estimate {
    let weights = graph.weights.iter().map(weight_bytes).fold(0, u64::saturating_add);
    let groups = graph.groups();
    let cells = options.cells(graph);
    let caches = graph.states.iter().map(|state| {
        let group = state.group();
        let cells =
            groups.iter().zip(&cells).find(|(other, _)| **other == group).map_or(0, |(_, cells)| *cells);
        let (kv_heads, key_dim, value_dim) = match state {
            StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => (kv_heads, key_dim, value_dim),
            StateDecl::Recurrent { elements, .. } => return 4 * *elements as u64 * cells as u64,
        };
        let bytes = |dtype: puna_quant::DType, width: u32| {
            let heads = (*kv_heads as u64).saturating_mul(cells as u64);
            // A format that does not fit the width is refused when the model is loaded.
            dtype.bytes_for(width as u64).unwrap_or(4 * width as u64).saturating_mul(heads)
        };
        let (keys, values) = match group.is_kept() {
            true => (options.keys, options.values),
            false => (puna_quant::DType::F32, puna_quant::DType::F32),
        };
        bytes(keys, *key_dim).saturating_add(bytes(values, *value_dim))
    });
    let context = options.context;
    Estimate { context, weights, caches: caches.fold(0, u64::saturating_add), work: work(graph, options) }
}

/// Bytes of a weight in the file's format.
pub(crate) fn weight_bytes(weight: &puna_graph::WeightDecl) -> u64 {
    let elements = weight.shape.iter().fold(1_u64, |n, extent| n.saturating_mul(*extent as u64));
    weight.dtype.bytes_for(elements).unwrap_or(u64::MAX)
}

/// Most bytes of values that are needed at one time when the nodes run in order.
fn work(graph: &Graph, options: &ModelOptions) -> u64 {
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
        let bytes = size(&node.ty);
        live = live.saturating_add(bytes);
        most = most.max(live);
        ending[last_read[index]] = ending[last_read[index]].saturating_add(bytes);
        live = live.saturating_sub(ending[index]);
    }
    most
}
