//! Number formats of tensors: block layout, exact reference decoders, fast encoders for the formats that caches and
//! activations use, and careful ones for weights.
//!
//! A format is one row of [`FORMATS`]; `decode` is its specification and every back end may fall back on it.
#![forbid(unsafe_code)]

pub mod codes;
mod dtype;
mod error;
mod formats;
pub mod grids;
pub mod integers;
mod rows;
pub mod tensors;
mod validate;

pub use dtype::{DType, Encode, FORMATS, FloatField, Format, Quantize};
pub use error::QuantError;
pub use formats::float4::{E2M1_DOUBLED, half_e8m0, half_unsigned_e4m3};
pub use formats::iq4::IQ4_VALUES;
pub use rows::{decode_row, encode_row, quantize_rows};
pub use validate::validate_rows;
