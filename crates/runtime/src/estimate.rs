//! How much memory a model will need, from its header alone.

use puna_backend::partition::file_bytes;
use puna_gguf::{Metadata, Tensors};
use puna_graph::{Graph, WeightId};

use crate::load::within_positions;
use crate::placement::{Choice, state_bytes, work};
use crate::{ModelInformation, ModelOptions, RuntimeError};

/// Bytes of memory that a model needs. Back ends that change the layout of weights may need somewhat more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Estimate {
    /// The context that it is for, in tokens.
    pub context: u32,
    /// Why that is less than what was asked for, if it is.
    pub shorter: Option<Choice>,
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
    let mut options = options.resolved_for(metadata, &information)?;
    let graph = puna_models::build(metadata, tensors, &options.build())?;
    let shorter = within_positions(&graph, &mut options)?;
    Ok(Estimate { shorter, ..of_graph(&graph, &options) })
}

/// The estimate for a graph and resolved options.
fn of_graph(graph: &Graph, options: &ModelOptions) -> Estimate {
    let weights = (0..graph.weights.len() as u32).map(|weight| file_bytes(graph, WeightId(weight)));
    let cells = options.cells(graph);
    let caches = graph.states.iter().map(|state| state_bytes(graph, options, &cells, state));
    Estimate {
        context: options.context,
        shorter: None,
        weights: weights.fold(0, u64::saturating_add),
        caches: caches.fold(0, u64::saturating_add),
        work: work(graph, options, |_| true),
    }
}
