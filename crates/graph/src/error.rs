//! Errors of graph construction.

use crate::Type;

/// Why a node cannot be appended to a graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GraphError {
    /// The operation got another number of inputs than it takes.
    #[error("{op} takes {expected} inputs, got {found}")]
    InputCount {
        /// Name of the operation.
        op: &'static str,
        /// What it takes, in words.
        expected: &'static str,
        /// How many it got.
        found: usize,
    },
    /// The shapes of the inputs do not fit the operation.
    #[error("{op} cannot take {}: {reason}", shapes(.inputs))]
    Shape {
        /// Name of the operation.
        op: &'static str,
        /// The types it got.
        inputs: Vec<Type>,
        /// Which rule they break.
        reason: &'static str,
    },
}

fn shapes(inputs: &[Type]) -> String {
    inputs.iter().map(Type::to_string).collect::<Vec<_>>().join(" and ")
}
