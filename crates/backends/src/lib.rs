//! The registry of back ends: one row each. It is the only crate that knows them all, and the only one with
//! cargo features (to leave a back end out; none has one yet).
#![forbid(unsafe_code)]

mod threads;

use std::sync::Arc;

use puna_backend::reference::Reference;
use puna_backend::{Backend, BackendError};
pub use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_backend_cuda::Cuda;
pub use threads::default_threads;

/// What back ends are started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Worker threads of the processor. Default: [`default_threads`].
    pub threads: usize,
    /// Instruction sets of the processor to use.
    pub features: Features,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: default_threads(), features: Features::detect() }
    }
}

/// One back end.
pub struct Entry {
    /// Name as given to `--device`.
    pub name: &'static str,
    /// What it is, in a line.
    pub description: &'static str,
    /// Whether it is used when no device is named.
    pub automatic: bool,
    /// Starts it; an error says why it cannot be used here.
    pub start: fn(&Options) -> Result<Arc<dyn Backend>, BackendError>,
}

/// All back ends, best first.
pub const REGISTRY: &[Entry] = &[
    Entry {
        name: "CPU",
        description: "this machine's processor",
        automatic: true,
        start: |options| {
            Ok(Arc::new(Cpu::new(CpuOptions { threads: options.threads, features: options.features })?))
        },
    },
    Entry {
        name: "CUDA0",
        description: "the first NVIDIA card, if its driver is installed",
        automatic: false,
        start: |_| Ok(Arc::new(Cuda::find()?)),
    },
    Entry {
        name: "reference",
        description: "slow evaluator that defines every operation, for comparisons",
        automatic: false,
        start: |_| Ok(Arc::new(Reference)),
    },
];

/// The row with this name (in any case), or the first automatic one.
pub fn find(name: Option<&str>) -> Result<&'static Entry, BackendError> {
    let entry = REGISTRY.iter().find(|entry| match name {
        Some(name) => entry.name.eq_ignore_ascii_case(name),
        None => entry.automatic,
    });
    entry.ok_or_else(|| BackendError::UnknownDevice {
        name: name.unwrap_or_default().to_string(),
        known: REGISTRY.iter().map(|entry| entry.name).collect(),
    })
}

/// Starts the back end of this name (in any case), or the first automatic one.
pub fn start(name: Option<&str>, options: &Options) -> Result<Arc<dyn Backend>, BackendError> {
    (find(name)?.start)(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_back_ends() {
        let options = Options { threads: 1, ..Options::default() };
        for entry in REGISTRY {
            match start(Some(&entry.name.to_uppercase()), &options) {
                Ok(backend) => assert_eq!(backend.devices()[0].name, entry.name),
                // What needs a library says so.
                Err(error) => assert!(error.to_string().contains("not installed"), "{error}"),
            }
        }
        assert_eq!(start(None, &options).expect("there is an automatic one").name(), "CPU");
        let error = start(Some("TPU"), &options).err().expect("there is none");
        assert_eq!(error.to_string(), "unknown device 'TPU'; known are CPU, CUDA0, reference");
    }
}
