//! Models from the network: the Hugging Face hub, plain addresses, and the starter model.
//!
//! Everything ends up as a verified file in a cache folder that the caller names. The crate reads no
//! environment: end point, token, proxy and folder are [`Options`]. It uses `ureq` directly rather than the
//! `hf-hub` crate, which neither resumes a download nor checks digests and brings an asynchronous runtime.
#![forbid(unsafe_code)]

mod choose;
mod download;
mod error;
mod http;
mod hub;
mod name;
mod starter;

pub use error::Error;
pub use hub::{Cached, Hub};
pub use name::Repository;
pub use starter::{STARTER, Starter};

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// Where to look and where to put things.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for models.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Access token for the hub.
    pub token: Option<String>,
    /// Address of a proxy.
    pub proxy: Option<String>,
    /// Never use the network.
    pub offline: bool,
    /// Time to find and reach a server.
    pub connect_timeout: Duration,
    /// Name or path of Python 3, for the starter model.
    pub python: String,
}

impl Options {
    /// The public hub without a token, into this folder.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            cache,
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            proxy: None,
            offline: false,
            connect_timeout: Duration::from_secs(4),
            python: "python3".to_owned(),
        }
    }
}

/// What a download reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// Bytes of a file are about to come.
    Start {
        /// The file.
        name: &'a str,
        /// Its size, if known.
        bytes: Option<u64>,
        /// Bytes that are here already.
        done: u64,
    },
    /// So many bytes are here.
    Progress {
        /// Bytes of the current file.
        done: u64,
    },
    /// The file is complete and verified.
    Done {
        /// The file.
        name: &'a str,
    },
    /// Another process downloads the same file; it will be used.
    Waiting {
        /// The file.
        name: &'a str,
    },
    /// Something the user should know.
    Note(&'a str),
}

/// Hears of events; `Break` cancels, which leaves only what can be resumed.
pub type Observer<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;
