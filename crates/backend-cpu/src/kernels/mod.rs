//! Kernels: one folder per operation, one file per instruction set.

pub mod matmul;
