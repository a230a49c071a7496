//! Number formats of tensors: block layout, exact reference decoders, and encoders for the formats that
//! caches and activations use.
//!
//! A format is one row of [`FORMATS`]; `decode` is its specification and every back end may fall back on it.
#![forbid(unsafe_code)]

mod dtype;

pub use dtype::{DType, FORMATS, Format};
