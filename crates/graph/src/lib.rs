//! The typed symbolic graph of a model: what is computed at every step, without devices, files or text.
//!
//! A [`Graph`] is a plain value, built once per model. Extents that are only known when a step runs are
//! [`Symbol`]s; a [`Step`] brings their values together with the data. Each operation is one file in [`ops`]
//! with its shape rule and its slow, obvious evaluation, which is the oracle for every back end.
#![forbid(unsafe_code)]

mod array;
mod best;
mod error;
pub mod evaluate;
mod floats;
mod graph;
pub mod ops;
pub mod passes;
mod step;
mod text;
mod types;

pub use array::Array;
pub use best::{Best, BestRow};
pub use error::GraphError;
pub use floats::{Floats, Lender};
pub use graph::{
    CacheGroup, Graph, Input, Node, Operand, Output, PooledRows, StateDecl, StateId, ValueId, WeightDecl,
    WeightId,
};
pub use ops::Op;
pub use step::{GroupStep, Span, Step};
pub use types::{Dim, Element, Shape, Symbol, Type};
