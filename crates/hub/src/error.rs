//! What can go wrong between a model's name and its file.

use std::path::PathBuf;
use thiserror::Error;

/// A model that could not be had.
#[derive(Debug, Error)]
pub enum Error {
    /// A repository's name that cannot be one.
    #[error(
        "{name:?} is no repository: expected USER/MODEL or USER/MODEL:QUANT with letters, digits, '.', '_' and '-'"
    )]
    BadRepository {
        /// As it was given.
        name: String,
    },
    /// An address that cannot be one.
    #[error("{url:?} is no address of a file: {reason}")]
    BadUrl {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A proxy that cannot be used. Its address is not repeated, because it may hold a password.
    #[error("the proxy of the environment (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY) cannot be used: {reason}")]
    BadProxy {
        /// What is wrong with its address.
        reason: String,
    },
    /// A file name that would lie outside the cache folder.
    #[error("the file name {name:?} is not allowed")]
    UnsafeName {
        /// As it was given.
        name: String,
    },
    /// A digest that is none.
    #[error("{digest:?} is no SHA-256 digest")]
    BadDigest {
        /// As it was given.
        digest: String,
    },
    /// Not in the cache while the network may not be used.
    #[error("{what} is not in the cache folder and the network may not be used (--offline)")]
    Offline {
        /// The model.
        what: String,
    },
    /// No answer from the server.
    #[error("cannot reach {host}: {reason}")]
    Connection {
        /// Host of the address.
        host: String,
        /// What happened.
        reason: String,
    },
    /// The server wants to know who asks, or refuses.
    #[error(
        "{what} is private, gated or does not exist (HTTP status {status}); an access token may help: --hf-token or HF_TOKEN"
    )]
    Refused {
        /// The repository or address.
        what: String,
        /// 401 or 403.
        status: u16,
    },
    /// There is no such thing.
    #[error("{what} does not exist (HTTP status 404)")]
    NotFound {
        /// The repository or address.
        what: String,
    },
    /// Any other answer.
    #[error("{what} cannot be had: the server answers with HTTP status {status}")]
    Status {
        /// The repository or address.
        what: String,
        /// The status.
        status: u16,
    },
    /// An answer that makes no sense.
    #[error("the answer for {what} is not understood: {reason}")]
    Protocol {
        /// The repository or address.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// The repository has no file that fits.
    #[error("{repository} has no model file {wanted}; it has {available}")]
    NoFile {
        /// The repository.
        repository: String,
        /// What was looked for.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// Part of a split model is missing.
    #[error("{repository} lacks {name}, a part of the model")]
    MissingPart {
        /// The repository.
        repository: String,
        /// The part.
        name: String,
    },
    /// Fewer or more bytes than announced.
    #[error("{name} has {found} bytes instead of {expected}")]
    WrongSize {
        /// The file.
        name: String,
        /// Announced.
        expected: u64,
        /// Received.
        found: u64,
    },
    /// Other bytes than announced.
    #[error("{name} has the SHA-256 digest {found} instead of {expected}; nothing was kept")]
    WrongHash {
        /// The file.
        name: String,
        /// Announced.
        expected: String,
        /// Computed.
        found: String,
    },
    /// A file of the cache folder is not what was downloaded, and the network may not be used.
    #[error("{} is damaged; without --offline it is fetched again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A file of the cache folder cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A program that fetches files failed.
    #[error("{program} failed: {reason}")]
    Program {
        /// Its command line.
        program: String,
        /// The last line that it printed, or why it did not start.
        reason: String,
    },
    /// Neither way to the starter model worked.
    #[error("the starter model cannot be had: {hub}; and {package}")]
    Starter {
        /// Why not from the hub.
        hub: Box<Error>,
        /// Why not as a package.
        package: Box<Error>,
    },
    /// The observer said so.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// True if the server could not be asked, so that a cached copy is the best there is.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Connection { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }
}
