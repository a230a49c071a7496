//! The table of the flags that the tools share: one file per heading, one row per flag.

mod chat;
mod context;
mod convert;
mod cpu;
mod device;
mod diffusion;
mod embedding;
mod general;
mod model;
mod prompt;
mod sampling;
mod server;
mod special;
mod speculation;
mod workshop;

pub(crate) use context::CACHE_TYPES;
pub(crate) use cpu::MOST_THREADS;
pub(crate) use device::{SPLITS, shares as share_list};
pub use device::{devices as device_list, overrides as override_list};

use crate::config::Config;
use crate::flag::Group;

/// All shared flags, in the order of the help text.
pub static FLAGS: &[Group<Config>] = &[
    Group { heading: "Tool", flags: special::FLAGS },
    Group { heading: "Model files", flags: workshop::FLAGS },
    Group { heading: "Conversion", flags: convert::FLAGS },
    Group { heading: "Embeddings", flags: embedding::FLAGS },
    Group { heading: "Model", flags: model::FLAGS },
    Group { heading: "Prompt", flags: prompt::FLAGS },
    Group { heading: "Chat", flags: chat::FLAGS },
    Group { heading: "Sampling", flags: sampling::FLAGS },
    Group { heading: "Speculation", flags: speculation::FLAGS },
    Group { heading: "Diffusion", flags: diffusion::FLAGS },
    Group { heading: "Server", flags: server::FLAGS },
    Group { heading: "Context", flags: context::FLAGS },
    Group { heading: "CPU", flags: cpu::FLAGS },
    Group { heading: "Devices", flags: device::FLAGS },
    Group { heading: "General", flags: general::FLAGS },
];
