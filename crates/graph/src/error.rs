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
    /// The state that the operation names does not exist or has other extents than its inputs need.
    #[error("{op} of {} does not fit state {state}", shapes(.inputs))]
    State {
        /// Name of the operation.
        op: &'static str,
        /// The types it got.
        inputs: Vec<Type>,
        /// Number of the state.
        state: usize,
    },
}

fn shapes(inputs: &[Type]) -> String {
    inputs.iter().map(Type::to_string).collect::<Vec<_>>().join(" and ")
}
