//! The GGUF file format: metadata, tensor directory, tensor bytes over a memory map, and a writer.
//!
//! Everything read here is untrusted. Counts and lengths are compared with the bytes that are really there
//! before anything is allocated, so a file is refused in the time its directory takes to read and with memory
//! of the order of its size. Shapes are reversed here once: above this crate they are row-major, the last axis
//! contiguous.
//!
//! # Text
//!
//! Metadata keys and tensor names must be UTF-8; a file where they are not is refused. String *values* that
//! are not UTF-8 (a licence cut in the middle of a character, say) are read with replacement characters and
//! reported through [`Warning::InvalidText`], because such files exist and are otherwise sound.
//!
//! # Files that change
//!
//! A model file must not be shortened or rewritten while it is open with a memory map: reading a page that no
//! longer exists ends the process on most systems. Replacing a file by renaming another over it is safe, and is
//! what [`Writer`] does. Set [`OpenOptions::mmap`] to `false` where files may change in place.

mod array_access;
mod data;
mod encode;
mod error;
mod file;
mod header;
pub mod hostile;
mod metadata;
mod overrides;
pub mod split;
mod stamp;
mod tensors;
mod value;
mod writer;

pub use error::{Error, Warning};
pub use file::{Bytes, File, Mapping, OpenOptions};
pub use header::Header;
pub use metadata::Metadata;
pub use overrides::parse_override;
pub use tensors::{TensorInfo, Tensors};
pub use value::{Array, Value, ValueType};
pub use writer::{Complete, TensorSpec, Writer, take_over_access, write};

/// Alignment of tensor data in bytes where `general.alignment` says nothing.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Most entries of a per-layer array, the format's limit on layers.
pub const MAX_LAYERS: usize = 512;

/// Most bytes of a tensor's name.
pub const MAX_TENSOR_NAME: usize = 63;

/// Most axes of a tensor.
pub const MAX_DIMENSIONS: usize = 4;

/// `value` rounded up to a multiple of `alignment` (a power of two), or `None` on overflow.
pub(crate) fn align_up(value: u64, alignment: u64) -> Option<u64> {
    Some(value.checked_add(alignment - 1)? & !(alignment - 1))
}
