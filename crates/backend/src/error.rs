//! Errors of back ends.

use puna_quant::DType;

/// Why a segment cannot be loaded, compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The device has no room for this.
    #[error("{device} has no memory for {bytes} bytes of {purpose}")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// Bytes asked for.
        bytes: u64,
        /// What they were for.
        purpose: &'static str,
    },
    /// The cache cannot have this number format.
    #[error("a cache of {dtype} needs heads of a multiple of {block} elements, this model has {width}")]
    CacheFormat {
        /// Format asked for.
        dtype: DType,
        /// Its block length.
        block: usize,
        /// Width of the model's heads.
        width: u32,
    },
    /// The cache cannot have this number format on any model.
    #[error("the cache cannot be stored as {dtype}")]
    CacheFormatUnknown {
        /// Format asked for.
        dtype: DType,
    },
    /// Saved cells do not fit the model or its options.
    #[error("saved cache of layer {layer} has {found} bytes, this model needs {expected}")]
    SavedState {
        /// Layer of the state.
        layer: u32,
        /// Bytes given.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// A cache that several parts of a model touch cannot be split.
    #[error(
        "{device} cannot run the layers that share the cache of layer {layer} with something else in between"
    )]
    SharedState {
        /// Device name.
        device: String,
        /// Layer of the state.
        layer: u32,
    },
    /// No back end has this name.
    #[error("unknown device '{name}'; known are {}", .known.join(", "))]
    UnknownDevice {
        /// Name asked for.
        name: String,
        /// Names there are.
        known: Vec<&'static str>,
    },
    /// The device reports a failure.
    #[error("{device}: {reason}")]
    Device {
        /// Device name.
        device: String,
        /// What it said.
        reason: String,
    },
}
