//! The contract between a model and the devices that run it: load, compile, run, on whole segments.
//!
//! A [`Backend`] gets a [`Segment`] (a run of nodes) once, with its weights and states, and makes a
//! [`Partition`] of it; steps only bring data. [`partition::partition`] cuts a graph into segments.
//! [`reference::Reference`] runs any graph with the evaluator and is the oracle of the others.
#![forbid(unsafe_code)]

pub mod arena;
mod contract;
mod error;
pub mod partition;
pub mod reference;

pub use contract::{
    Backend, Boundary, Bounds, CacheOptions, CellMove, DeviceId, DeviceInfo, DeviceKind, MemoryUse,
    Partition, ProgramId, Segment, States, WeightSource,
};
pub use error::BackendError;
