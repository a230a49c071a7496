//! The CPU back end.

pub mod isa;
pub mod kernels;
pub mod memory;
pub mod pool;
