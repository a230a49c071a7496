//! Weights of a model file as a back end takes them.

use std::sync::Arc;

use puna_backend::WeightSource;
use puna_gguf::{File, TensorInfo};
use puna_graph::{Graph, WeightId};

use crate::RuntimeError;

/// The tensors that a graph uses, in the order of its declarations.
pub(crate) struct FileWeights {
    file: Arc<File>,
    /// One entry per weight; none for a tensor that the file lacks, whose missing bytes loading refuses.
    tensors: Vec<Option<TensorInfo>>,
}

impl FileWeights {
    /// Finds each declared weight in the file.
    pub(crate) fn new(file: Arc<File>, graph: &Graph) -> Self {
        let tensors = graph.weights.iter().map(|weight| file.tensors.get(&weight.name).cloned()).collect();
        Self { file, tensors }
    }

    fn tensor(&self, weight: WeightId) -> Option<&TensorInfo> {
        self.tensors.get(weight.index())?.as_ref()
    }
}

impl WeightSource for FileWeights {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        self.tensor(weight).map_or(&[], |tensor| self.file.bytes(tensor))
    }

    fn release(&self, weight: WeightId) {
        if let Some(tensor) = self.tensor(weight) {
            self.file.release(tensor);
        }
    }
}

/// Refuses weights whose bytes are not what their declarations need.
pub(crate) fn check(graph: &Graph, weights: &dyn WeightSource) -> Result<(), RuntimeError> {
    for (index, declared) in graph.weights.iter().enumerate() {
        let elements = declared.shape.iter().try_fold(1_u64, |n, extent| n.checked_mul(*extent as u64));
        let expected = elements.and_then(|elements| declared.dtype.bytes_for(elements)).unwrap_or(u64::MAX);
        let found = weights.bytes(WeightId(index as u32)).len();
        if found as u64 != expected {
            return Err(RuntimeError::WeightBytes { name: declared.name.clone(), found, expected });
        }
    }
    Ok(())
}
