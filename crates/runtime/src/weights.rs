//! Weights of a model file as a back end takes them.

use std::sync::Arc;

use puna_backend::WeightSource;
use puna_gguf::{File, TensorInfo};
use puna_graph::{Graph, WeightId};

use crate::RuntimeError;
use crate::extras::Added;

/// The tensors that a graph uses, in the order of its declarations.
pub(crate) struct FileWeights {
    /// One entry per weight; none for a tensor that the file lacks, whose missing bytes loading refuses.
    places: Vec<Option<Place>>,
}

/// Where the bytes of a weight are.
enum Place {
    File(Arc<File>, TensorInfo),
    Memory(Vec<u8>),
}

impl FileWeights {
    /// Finds each declared weight in the file, or in what was added to the model.
    pub(crate) fn new(file: Arc<File>, graph: &Graph, mut added: Added) -> Self {
        let mut place = |name: &str| {
            if let Some((file, tensor)) = added.tensors.remove(name) {
                return Some(Place::File(file, tensor));
            }
            if let Some(bytes) = added.numbers.remove(name) {
                return Some(Place::Memory(bytes));
            }
            file.tensors.get(name).map(|tensor| Place::File(file.clone(), tensor.clone()))
        };
        Self { places: graph.weights.iter().map(|weight| place(&weight.name)).collect() }
    }

    fn place(&self, weight: WeightId) -> Option<&Place> {
        self.places.get(weight.index())?.as_ref()
    }
}

impl WeightSource for FileWeights {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        match self.place(weight) {
            Some(Place::File(file, tensor)) => file.bytes(tensor),
            Some(Place::Memory(bytes)) => bytes,
            None => &[],
        }
    }

    fn release(&self, weight: WeightId) {
        if let Some(Place::File(file, tensor)) = self.place(weight) {
            file.release(tensor);
        }
    }

    fn identity(&self, weight: WeightId) -> Option<String> {
        match self.place(weight) {
            Some(Place::File(file, tensor)) => file.identity(tensor),
            Some(Place::Memory(_)) | None => None,
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
