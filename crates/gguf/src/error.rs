//! What can be wrong with a file.

use std::path::PathBuf;

/// Why a file could not be read or written. Keys and names from files are printed quoted and escaped.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are the operands of the messages
pub enum Error {
    /// Any of the others, with the file it was found in.
    #[error("{path}: {source}", path = path.display())]
    InFile { path: PathBuf, source: Box<Error> },

    #[error("cannot {action}: {source}")]
    Io { action: &'static str, source: std::io::Error },
    #[error("is {kind}, not a regular file")]
    NotRegular { kind: &'static str },
    #[error("the file is empty (truncated: not even the 4 bytes \"GGUF\" are there)")]
    Empty,
    #[error("not a GGUF file: it starts with the bytes {found:02x?}, expected \"GGUF\" (47 47 55 46){hint}")]
    Magic { found: [u8; 4], hint: &'static str },
    #[error("the file is big-endian (version {version}); only little-endian files can be read: convert it")]
    BigEndian { version: u32 },
    #[error("GGUF version {found} is not supported, expected 2 or 3")]
    Version { found: u32 },
    #[error(
        "truncated: {what} at byte {offset} needs {needed} bytes, the file has {available} left \
         (incomplete download, or a corrupt length)"
    )]
    Truncated { what: &'static str, offset: u64, needed: u64, available: u64 },
    #[error(
        "truncated: the header announces {count} {what}, which need at least {needed} bytes; the file has \
         {available} left after byte {offset} (incomplete download, or a corrupt count)"
    )]
    Count { what: &'static str, count: u64, needed: u128, available: u64, offset: u64 },

    #[error("the metadata key at byte {offset} has {length} bytes, expected 1 to 65535")]
    KeyLength { offset: u64, length: u64 },
    #[error("the metadata key at byte {offset} is not UTF-8")]
    KeyText { offset: u64 },
    #[error("metadata key {key:?} occurs twice")]
    DuplicateKey { key: String },
    #[error("value type {id} at byte {offset} is unknown, expected 0 to 12")]
    UnknownValueType { id: u32, offset: u64 },
    #[error("an array of arrays, which the format does not have")]
    NestedArray,
    #[error("{what} at byte {offset} is {found} long, at most {maximum} is allowed")]
    TooLong { what: &'static str, offset: u64, found: u64, maximum: u64 },
    #[error("the file has {found} {what}, at most {maximum} are allowed")]
    TooMany { what: &'static str, found: u64, maximum: u64 },
    #[error("metadata key {key:?}: {source}")]
    InValue { key: String, source: Box<Error> },
    #[error("general.alignment is {found}, expected a power of two up to 2^31")]
    Alignment { found: i128 },

    #[error("metadata key {key:?} is missing")]
    MissingKey { key: String },
    #[error("metadata key {key:?} has type {found}, expected {expected}")]
    KeyType { key: String, found: &'static str, expected: &'static str },
    #[error("metadata key {key:?} is {found}, which does not fit into {expected}")]
    KeyRange { key: String, found: String, expected: &'static str },
    #[error("metadata key {key:?}: element {index} is {found}, which does not fit into {expected}")]
    ElementRange { key: String, index: usize, found: String, expected: &'static str },
    #[error("metadata key {key:?} has {found} elements, expected {expected}")]
    ArrayLength { key: String, found: usize, expected: usize },
    #[error("metadata key {key:?} is wanted for {layers} layers, the format allows at most {maximum}")]
    TooManyLayers { key: String, layers: usize, maximum: usize },

    #[error("the name of tensor {index} at byte {offset} has {length} bytes, expected 1 to 63")]
    TensorNameLength { index: u64, offset: u64, length: u64 },
    #[error("tensor name {name:?} has {length} bytes, expected 1 to 63")]
    SpecName { name: String, length: u64 },
    #[error("the name of tensor {index} at byte {offset} is not UTF-8")]
    TensorNameText { index: u64, offset: u64 },
    #[error("tensor {name:?} occurs twice")]
    DuplicateTensor { name: String },
    #[error("tensor {name:?} occurs twice, in {first} and in {second}", first = first.display(), second = second.display())]
    DuplicateTensorInShards { name: String, first: PathBuf, second: PathBuf },
    #[error("tensor {name:?} has {found} dimensions, at most 4 are allowed")]
    DimensionCount { name: String, found: u64 },
    #[error("tensor {name:?}: dimension {axis} is {found}, expected 0 to 2^63 - 1")]
    Dimension { name: String, axis: usize, found: u64 },
    #[error(
        "tensor {name:?} has more than 2^63 - 1 elements or bytes (file order {dimensions:?}, type {dtype})"
    )]
    TensorSize { name: String, dimensions: Vec<u64>, dtype: &'static str },
    #[error("tensor {name:?} has number format {id}, which is unknown or was removed from the format")]
    UnknownFormat { name: String, id: u32 },
    #[error("tensor {name:?} has rows of {row} elements, which is no multiple of {dtype}'s block of {block}")]
    RowLength { name: String, row: u64, dtype: &'static str, block: u64 },
    #[error(
        "tensor {name:?} starts at data offset {found}, expected {expected} (tensors must lie back to back)"
    )]
    Offset { name: String, found: u64, expected: u64 },
    #[error(
        "truncated: tensor {name:?} occupies bytes {start} to {end} of the file, which has only {available} \
         bytes (incomplete download?)"
    )]
    TensorOutside { name: String, start: u64, end: u64, available: u64 },

    #[error(
        "shard {number} of {count} is missing: expected it at {expected} (a split model needs all its files in one \
         folder, under their original names)",
        expected = expected.display()
    )]
    MissingShard { number: u32, count: u32, expected: PathBuf },
    #[error(
        "the file is shard {number} of {count} by its metadata, but its name does not end in \
         -{number:05}-of-{count:05}.gguf, so the others cannot be found (restore the original names; shards must \
         not be concatenated)"
    )]
    ShardName { number: u64, count: u64 },
    #[error("the file is shard {number} of {count} by its name, but {key} is {found}")]
    ShardKey { number: u32, count: u32, key: &'static str, found: u64 },
    #[error("the shards hold {found} tensors together, split.tensors.count says {expected}")]
    ShardTensors { found: u64, expected: u64 },
    #[error("no file was named")]
    NoFile,

    #[error("override {text:?} is not KEY=TYPE:VALUE with TYPE int, float, bool or str: {reason}")]
    Override { text: String, reason: &'static str },

    #[error("tensor {name:?} got {found} bytes, its format and shape need {expected}")]
    DataLength { name: String, found: u64, expected: u64 },
    #[error("the data of {missing} tensors was not written, the first is {name:?}")]
    DataMissing { name: String, missing: usize },
    #[error("more data was written than the tensors have")]
    DataSurplus,
}

impl Error {
    /// The same error, naming the file it was found in.
    pub(crate) fn in_file(self, path: &std::path::Path) -> Self {
        match self {
            Self::InFile { .. } => self,
            other => Self::InFile { path: path.to_owned(), source: Box::new(other) },
        }
    }

    /// The error itself, without the file name around it.
    pub fn inner(&self) -> &Error {
        match self {
            Self::InFile { source, .. } | Self::InValue { source, .. } => source.inner(),
            other => other,
        }
    }
}

/// Something about a file that does not stop it from being used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are the operands of the messages
pub enum Warning {
    #[error(
        "metadata key {key:?} holds {count} strings that are not UTF-8, read with replacement characters"
    )]
    InvalidText { key: String, count: usize },
    #[error(
        "{path}: cannot lock {bytes} bytes in memory: {reason} (raise the limit with `ulimit -l`, or do without)",
        path = path.display()
    )]
    MemoryLock { path: PathBuf, bytes: u64, reason: String },
}
