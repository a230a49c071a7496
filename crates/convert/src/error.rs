//! What can be wrong with a model folder.

use std::path::PathBuf;

/// Why a folder cannot be converted. Names from files are printed quoted and escaped.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are the operands of the messages
pub enum ConvertError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Gguf(#[from] puna_gguf::Error),
    #[error("{path} is {found} bytes long, at most {most} are allowed", path = path.display())]
    TooLong { path: PathBuf, found: u64, most: u64 },
    #[error("{path} is not valid JSON: {reason}", path = path.display())]
    Json { path: PathBuf, reason: String },
    #[error("there is no folder {path}", path = path.display())]
    NoFolder { path: PathBuf },
    #[error("{path} has no config.json, so it is no model folder", path = path.display())]
    NoConfig { path: PathBuf },
    #[error("{path} has no weights: expected model.safetensors or model.safetensors.index.json", path = path.display())]
    NoWeights { path: PathBuf },

    #[error("{path}: the header is {found} bytes long, but the file has {available} (truncated, or no safetensors file)", path = path.display())]
    Header { path: PathBuf, found: u64, available: u64 },
    #[error("{path}: tensor {name:?}: {reason}", path = path.display())]
    Entry { path: PathBuf, name: String, reason: String },
    #[error("tensor {name:?} occurs twice, in {first} and in {second}", first = first.display(), second = second.display())]
    Duplicate { name: String, first: PathBuf, second: PathBuf },
    #[error("{index} names {file:?}, which is no plain file name", index = index.display())]
    ShardName { index: PathBuf, file: String },
    #[error("tensor {name:?} is listed in {index} but not in its file", index = index.display())]
    NotInShard { name: String, index: PathBuf },

    #[error("config.json: {key} is missing")]
    MissingKey { key: String },
    #[error("config.json: {key} is {found}, expected {expected}")]
    KeyValue { key: String, found: String, expected: &'static str },
    #[error("model class {found:?} is not known; known are {known}")]
    UnknownClass { found: String, known: String },
    #[error(
        "config.json: the weights are quantised with {method:?}, which cannot be read; convert the original model"
    )]
    Quantised { method: String },

    #[error("the folder has no layers that guess tokens ahead, or none that {architecture} is known to have")]
    NoLayersAhead { architecture: &'static str },
    #[error("tensor {name:?} (shape {shape:?}) is not known to {architecture}; --skip-unknown leaves it out")]
    UnknownTensor { name: String, shape: Vec<u64>, architecture: &'static str },
    #[error("tensor {name:?} has number format {format}, which weights cannot have")]
    Format { name: String, format: String },
    #[error("tensor {name:?} of shape {shape:?} cannot be {what}")]
    Shape { name: String, shape: Vec<u64>, what: String },
    #[error("{target}: expert {expert} is missing")]
    MissingExpert { target: String, expert: usize },
    #[error("tensor {name:?} and another one both become {target:?}")]
    Collision { name: String, target: String },
    #[error("tensor {name:?} has no scale: {expected:?} is missing")]
    MissingScale { name: String, expected: String },

    #[error("{file}: {reason}")]
    Tokenizer { file: &'static str, reason: String },
    #[error(
        "tokenizer.json has a pre-tokenizer that is not known: {found}; --pre NAME says which one to write"
    )]
    PreTokenizer { found: String },

    #[error("{file}: {reason}")]
    Adapter { file: &'static str, reason: String },
}
