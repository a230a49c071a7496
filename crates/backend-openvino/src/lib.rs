//! OpenVINO as a back end: segments are translated to its representation and run by a library found at run time.
#![deny(unsafe_code)]

mod backend;
mod blocks;
mod caches;
mod compile;
mod compiled_cache;
mod ffi;
mod formats;
pub mod ir;
mod known_sums;
mod library;
mod memory;
mod pages;
mod partition;
mod pieces;
mod render;
mod run;
pub mod settings;
mod shim;
mod states;
mod sums;
pub mod translate;
pub mod weights;

pub use backend::{DEVICE_NAME, Log, OpenVino};
