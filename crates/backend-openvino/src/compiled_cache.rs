//! Compiled models in a folder and in this process, found by what they were made of.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use puna_backend::{Segment, WeightSource};
use puna_graph::{Operand, WeightId};

use crate::ffi::Compiled;
use crate::translate::Choices;

/// Compiled models that partitions of this process use, by what they are made of.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<HashMap<String, Weak<Compiled>>>>);

impl Shared {
    /// The compiled model, if a partition still uses it.
    pub(crate) fn find(&self, manifest: &str) -> Option<Arc<Compiled>> {
        self.0.lock().ok()?.get(manifest)?.upgrade()
    }

    /// Lets others find a compiled model for as long as it is used.
    pub(crate) fn keep(&self, manifest: &str, compiled: &Arc<Compiled>) {
        if let Ok(mut all) = self.0.lock() {
            all.retain(|_, compiled| compiled.strong_count() > 0);
            all.insert(manifest.to_owned(), Arc::downgrade(compiled));
        }
    }
}

/// A model's place in the folder.
pub(crate) struct Entry {
    /// The compiled model.
    pub(crate) blob: PathBuf,
    /// What it was made of, to be sure.
    manifest_path: PathBuf,
    manifest: String,
}

/// Bytes of each end of a tensor that tell it from others of its shape.
const SAMPLE: usize = 4096;

/// What a segment compiled in this way by this version of the library is made of, as text.
pub(crate) fn manifest(
    segment: &Segment,
    weights: &dyn WeightSource,
    choices: &Choices,
    compiled_for: &str,
) -> String {
    let mut manifest = format!("puna {}\n{compiled_for}\n{choices:?}\n", env!("CARGO_PKG_VERSION"));
    let _ =
        writeln!(manifest, "nodes {:?} {:016x}", segment.nodes, fnv(segment.graph.to_string().as_bytes()));
    let mut used: Vec<WeightId> = segment.graph.nodes[segment.nodes.clone()]
        .iter()
        .flat_map(|node| &node.inputs)
        .filter_map(|operand| match operand {
            Operand::Weight(weight) => Some(*weight),
            _ => None,
        })
        .collect();
    used.sort();
    used.dedup();
    for weight in used {
        let declared = &segment.graph.weights[weight.index()];
        let bytes = weights.bytes(weight);
        let (first, last) = (&bytes[..bytes.len().min(SAMPLE)], &bytes[bytes.len().saturating_sub(SAMPLE)..]);
        let (name, shape, dtype) = (&declared.name, &declared.shape, declared.dtype);
        let _ = writeln!(manifest, "{name} {shape:?} {dtype} {:016x} {:016x}", fnv(first), fnv(last));
    }
    manifest
}

impl Entry {
    /// The place of what is made of this.
    pub(crate) fn new(folder: &Path, manifest: &str) -> Self {
        let name = format!("{:016x}", fnv(manifest.as_bytes()));
        Self {
            blob: folder.join(format!("{name}.blob")),
            manifest_path: folder.join(format!("{name}.manifest")),
            manifest: manifest.to_owned(),
        }
    }

    /// The compiled model's bytes, if it is there and was made of the same.
    pub(crate) fn find(&self) -> Option<Vec<u8>> {
        let manifest = std::fs::read_to_string(&self.manifest_path).ok()?;
        if manifest != self.manifest {
            return None;
        }
        std::fs::read(&self.blob).ok()
    }

    /// Keeps what `export` writes to the path it gets. The manifest comes last, so that half a model is never found.
    pub(crate) fn keep(&self, export: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.blob.display());
        if let Some(folder) = self.blob.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let part = self.blob.with_extension(format!("part{}", std::process::id()));
        let exported = export(&part).and_then(|()| std::fs::rename(&part, &self.blob).map_err(failed));
        if exported.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        exported?;
        std::fs::write(&self.manifest_path, &self.manifest).map_err(failed)
    }
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ *byte as u64).wrapping_mul(0x100_0000_01B3))
}
