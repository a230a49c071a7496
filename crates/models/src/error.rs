//! Errors of model construction.

/// Why a file is no model this engine can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// `general.architecture` names none of ours.
    #[error("unknown model architecture '{name}'; the nearest known are {}", .nearest.join(", "))]
    UnknownArchitecture {
        /// What the file says.
        name: String,
        /// Known names that look most like it, best first.
        nearest: Vec<&'static str>,
    },
    /// A metadata key is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] puna_gguf::Error),
    /// The architecture needs a key that the file does not have.
    #[error("key {key} is missing, the architecture '{architecture}' needs it")]
    MissingKey {
        /// Full key, or the keys of which there must be one.
        key: String,
        /// Architecture of the file.
        architecture: String,
    },
    /// The file does not say a number, and its default breaks a rule.
    #[error("key {key} is missing, and its default of {value} is not {rule}")]
    Default {
        /// Full key.
        key: String,
        /// Its default as text.
        value: String,
        /// What would be right.
        rule: &'static str,
    },
    /// A key's value makes no sense for the architecture.
    #[error("key {key} is {value}, it must be {rule}")]
    Value {
        /// Full key.
        key: String,
        /// Its value as text.
        value: String,
        /// What it should be.
        rule: &'static str,
    },
    /// The architecture needs a tensor that the file does not have.
    #[error("tensor {name} is missing, the architecture '{architecture}' needs it")]
    MissingTensor {
        /// Full tensor name.
        name: String,
        /// Architecture of the file.
        architecture: String,
    },
    /// A tensor has the wrong shape.
    #[error("tensor {name} has shape {found:?}, the model needs {expected:?}")]
    TensorShape {
        /// Full tensor name.
        name: String,
        /// Row-major shape in the file.
        found: Vec<u64>,
        /// Row-major shape that the keys ask for.
        expected: Vec<u32>,
    },
    /// Two tensors contradict each other about an extent that they share.
    #[error(
        "tensor {first} of shape {first_shape:?} and tensor {second} of shape {second_shape:?} do not fit together"
    )]
    TensorsDisagree {
        /// Full name of one.
        first: String,
        /// Its row-major shape.
        first_shape: Vec<u64>,
        /// Full name of the other.
        second: String,
        /// Its row-major shape.
        second_shape: Vec<u64>,
    },
    /// A tensor has a shape that no model has, whatever its keys say.
    #[error("tensor {name} has shape {found:?}, extents are from 1 to {most}")]
    TensorExtents {
        /// Full tensor name.
        name: String,
        /// Row-major shape in the file.
        found: Vec<u64>,
        /// The largest extent there is.
        most: u32,
    },
    /// A tensor has no elements.
    #[error("tensor {name} has no elements")]
    EmptyTensor {
        /// Full tensor name.
        name: String,
    },
    /// A tensor has a number format that no weight can have.
    #[error("tensor {name} has number format {dtype}, which no weight can have")]
    TensorFormat {
        /// Full tensor name.
        name: String,
        /// Its format.
        dtype: puna_quant::DType,
    },
    /// The architecture makes embeddings only.
    #[error("a model of architecture '{architecture}' makes embeddings, it cannot generate text")]
    NoLogits {
        /// Architecture of the file.
        architecture: String,
    },
    /// The file has no classifier, so there are no scores.
    #[error(
        "the model has no classifier (neither tensor cls.weight nor cls.output.weight), so it cannot rank"
    )]
    NoClassifier,
    /// The architecture cannot do what was asked for.
    #[error("a model of architecture '{architecture}' cannot have {what}")]
    Unsuitable {
        /// Architecture of the file.
        architecture: String,
        /// What was asked for.
        what: &'static str,
    },
    /// The pieces do not fit together.
    #[error("{name} of layer {layer:?}: {source}")]
    Graph {
        /// Name of the node.
        name: &'static str,
        /// Its layer.
        layer: Option<u32>,
        /// The rule it breaks.
        source: puna_graph::GraphError,
    },
}
