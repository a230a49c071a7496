//! The host side that graphics processors share: weights in their layouts, nodes to kernel launches, the step's data, caches.
//! A back end is a [`Device`] and kernels with the names and parameters used here.
#![forbid(unsafe_code)]

mod backend;
mod check;
pub mod codes;
mod device;
mod division;
mod highest;
mod launch;
pub mod layout;
mod lower;
mod states;
mod step;
mod team;
mod weights;

pub use backend::Gpu;
pub use device::{Api, Device, MatrixUnits, Recording, allocations, count_allocation};
/// What [`Device::read_floats`] gives.
pub use puna_graph::Floats;

pub use division::Division;
pub use launch::{Address, Argument, Blocks, BufferId, Extent, Extents, Launch};
pub use team::{Link, Team, rounds};
