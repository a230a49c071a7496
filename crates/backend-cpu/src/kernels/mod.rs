//! Kernels, one folder per operation.

pub mod activation;
pub mod attention;
pub mod block_attention;
pub mod cache;
#[cfg(target_arch = "x86_64")]
mod dots;
pub mod matmul;
pub mod norm;
pub(crate) mod prefetch;
pub mod recurrent;
pub mod rope;
pub mod rows;
#[cfg(target_arch = "x86_64")]
mod tiles;
pub mod vector;
