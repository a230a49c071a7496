//! The CPU back end: a segment becomes a list of tasks that a pool of threads walks together.
//!
//! Kernels are chosen by what the processor has ([`isa::Features`]), one file per instruction set, each tested
//! against plain arithmetic.

pub mod apart;
mod available;
mod backend;
pub mod bandwidth;
mod cores;
mod frame;
pub mod isa;
pub mod kernels;
mod lower;
pub mod memory;
pub mod pool;
mod precision;
mod product;
mod recurrent;
mod recurrent_tasks;
mod row_ops;
mod states;
mod tasks;
mod weights;

pub use backend::{Cpu, CpuOptions};
