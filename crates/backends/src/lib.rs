//! The table of back ends: the one place that names all of them.
//!
//! A back end whose driver is missing costs nothing and has no devices. The order is that of preference.
#![forbid(unsafe_code)]

use std::sync::Arc;

use puna_backend::reference::Reference;
use puna_backend::{Backend, BackendError};
use puna_backend_cpu::{Cpu, CpuOptions};

/// What the user may choose about back ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Worker threads of the CPU back end; 0 means one per usable core.
    pub threads: usize,
}

/// One back end.
pub struct Registered {
    /// Name, for messages and `--device`.
    pub name: &'static str,
    /// Whether models run on it without being told to.
    pub automatic: bool,
    /// Starts it.
    pub start: fn(&Options) -> Result<Arc<dyn Backend>, BackendError>,
}

/// Every back end, the preferred one first.
pub const REGISTRY: &[Registered] = &[
    Registered {
        name: "CPU",
        automatic: true,
        start: |options| {
            Ok(Arc::new(Cpu::new(CpuOptions { threads: options.threads, ..CpuOptions::default() })?))
        },
    },
    Registered { name: "reference", automatic: false, start: |_| Ok(Arc::new(Reference)) },
];

/// Starts all back ends, in the order of [`REGISTRY`].
pub fn start(options: &Options) -> Result<Vec<Arc<dyn Backend>>, BackendError> {
    REGISTRY.iter().map(|row| (row.start)(options)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_start_and_the_first_is_automatic() {
        let backends = start(&Options { threads: 1 }).unwrap();
        for (row, backend) in REGISTRY.iter().zip(&backends) {
            assert_eq!(row.name, backend.name());
            assert!(!backend.devices().is_empty());
        }
        assert!(REGISTRY[0].automatic);
    }
}
