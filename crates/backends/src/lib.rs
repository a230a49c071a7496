//! The registry of back ends: one row each. It is the only crate that knows them all, and the only one with
//! cargo features (to leave a back end out; none has one yet).
#![forbid(unsafe_code)]

mod threads;

use std::sync::Arc;

use puna_backend::reference::Reference;
use puna_backend::{Backend, BackendError};
pub use puna_backend_cpu::bandwidth::{Bandwidth, read_bandwidth};
pub use puna_backend_cpu::isa::{Features, Isa};
pub use puna_backend_cpu::memory::return_freed_pages;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_backend_cuda::Cuda;
use puna_backend_openvino::OpenVino;
pub use threads::default_threads;

/// What back ends are started with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Worker threads of the processor. Default: [`default_threads`].
    pub threads: usize,
    /// Instruction sets of the processor to use.
    pub features: Features,
    /// Looks up a variable of the environment. Default: there are none.
    pub variable: fn(&str) -> Option<String>,
    /// Takes a line for the user. Default: nobody reads it.
    pub log: fn(&str),
    /// Results of a row may not depend on the other rows of a step, even where that costs speed.
    pub deterministic: bool,
    /// Keep the file's own copy of repacked weights resident.
    pub repack_keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: default_threads(),
            features: Features::detect(),
            deterministic: false,
            repack_keep: false,
            variable: |_| None,
            log: |_| {},
        }
    }
}

/// One back end.
pub struct Entry {
    /// Name of its first device as given to `--device`; others have another number.
    pub name: &'static str,
    /// What it is, in a line.
    pub description: &'static str,
    /// Whether its devices are used when none is named.
    pub automatic: bool,
    /// Starts it; an error says why it cannot be used here.
    pub start: fn(&Options) -> Result<Arc<dyn Backend>, BackendError>,
}

/// All back ends. The first one runs what no other can.
pub const REGISTRY: &[Entry] = &[
    Entry {
        name: "CPU",
        description: "this machine's processor",
        automatic: true,
        start: |options| {
            let Options { threads, features, deterministic, repack_keep, .. } = *options;
            Ok(Arc::new(Cpu::new(CpuOptions { threads, features, deterministic, keep_source: repack_keep })?))
        },
    },
    Entry {
        name: "CUDA0",
        description: "NVIDIA cards, if their driver is installed",
        automatic: true,
        start: |_| Ok(Arc::new(Cuda::find()?)),
    },
    Entry {
        name: puna_backend_openvino::DEVICE_NAME,
        description: "OpenVINO, if it is installed",
        automatic: false,
        start: |options| {
            let backend = OpenVino::new(&options.variable, options.threads, Arc::new(options.log))?;
            Ok(Arc::new(backend))
        },
    },
    Entry {
        name: "reference",
        description: "slow evaluator that defines every operation, for comparisons",
        automatic: false,
        start: |_| Ok(Arc::new(Reference)),
    },
];

/// The row whose devices have such names (in any case, with any number), or without a name the first one.
pub fn find(name: Option<&str>) -> Result<&'static Entry, BackendError> {
    let kind =
        |name: &str| name.trim_end_matches(|letter: char| letter.is_ascii_digit()).to_ascii_lowercase();
    let entry = match name {
        Some(name) => REGISTRY.iter().find(|entry| kind(entry.name) == kind(name)),
        None => REGISTRY.first(),
    };
    entry.ok_or_else(|| BackendError::UnknownDevice {
        name: name.unwrap_or_default().to_string(),
        known: REGISTRY.iter().map(|entry| entry.name).collect(),
    })
}

/// Starts the back end whose devices have such names (in any case), or the first one.
pub fn start(name: Option<&str>, options: &Options) -> Result<Arc<dyn Backend>, BackendError> {
    (find(name)?.start)(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use puna_backend::DeviceId;

    #[test]
    fn names_select_back_ends() {
        let options = Options { threads: 1, ..Options::default() };
        for entry in REGISTRY {
            match start(Some(&entry.name.to_uppercase()), &options) {
                Ok(backend) => assert_eq!(backend.devices()[0].name, entry.name),
                // What needs a library says so; without an environment none is found but the system's.
                Err(error) => assert!(error.to_string().contains("not installed"), "{error}"),
            }
        }
        assert_eq!(start(None, &options).expect("there is one").name(), "CPU");
        assert_eq!(find(Some("cuda7")).map(|entry| entry.name).ok(), Some("CUDA0"));
        let error = start(Some("TPU"), &options).err().expect("there is none");
        assert_eq!(error.to_string(), "unknown device 'TPU'; known are CPU, CUDA0, OPENVINO0, reference");
    }

    #[test]
    fn devices_that_cannot_divide_matrices_say_so() {
        let reference =
            start(Some("reference"), &Options { threads: 1, ..Options::default() }).expect("it starts");
        let error = reference.divided(&[DeviceId(0), DeviceId(0)], &[]).err().expect("it cannot");
        assert_eq!(error.to_string(), "reference: its devices cannot share the rows of matrices");
    }
}
