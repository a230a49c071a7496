//! Compiled models in a folder and in this process, found by what they were made of.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use puna_backend::{Segment, WeightSource};
use puna_graph::{Operand, WeightId};

use crate::ffi::{Compiled, MappedFile};
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

/// Counts up whenever a translation of the same segment changes, so that older compiled models are not found.
const TRANSLATION: u32 = 3;

/// Bytes of each end of a tensor that tell it from others of its shape.
const SAMPLE: usize = 4096;

/// What a segment compiled in this way by this version of the library is made of, as text.
pub(crate) fn manifest(
    segment: &Segment,
    weights: &dyn WeightSource,
    choices: &Choices,
    compiled_for: &str,
) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut manifest = format!("puna {version} {TRANSLATION}\n{compiled_for}\n{choices:?}\n");
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

    /// The compiled model's bytes, if it is there and was made of the same. An error says what is damaged.
    pub(crate) fn find(&self) -> Result<Option<MappedFile>, String> {
        let Ok(found) = std::fs::read_to_string(&self.manifest_path) else { return Ok(None) };
        // Others may have the same hash: then theirs stays, and this one is made.
        let Some(sum) = found.strip_prefix(self.manifest.as_str()) else { return Ok(None) };
        let bytes = MappedFile::open(&self.blob)?;
        match sum == checksum(&bytes) {
            true => Ok(Some(bytes)),
            false => Err(format!("{}: the file is damaged", self.blob.display())),
        }
    }

    /// Keeps what `export` writes to the path it gets. The manifest comes last and has a checksum, so that half a model is
    /// never found.
    pub(crate) fn keep(&self, export: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.blob.display());
        if let Some(folder) = self.blob.parent() {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            remove_abandoned_parts(folder);
        }
        let part = self.blob.with_extension(format!("{PART}{}", std::process::id()));
        let moved = export(&part)
            .and_then(|()| MappedFile::open(&part))
            .map(|bytes| checksum(&bytes))
            .and_then(|sum| std::fs::rename(&part, &self.blob).map(|()| sum).map_err(failed));
        if moved.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        let manifest = format!("{}{}", self.manifest, moved?);
        std::fs::write(&self.manifest_path, manifest).map_err(failed)
    }
}

/// Start of the extension of a file that is still being written; the process's number follows.
const PART: &str = "part";
/// After so long nobody writes to a file any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Removes what processes that were killed while writing have left.
fn remove_abandoned_parts(folder: &Path) {
    let is_part = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let number = extension.and_then(|extension| extension.strip_prefix(PART));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let is_old = |entry: &std::fs::DirEntry| {
        let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|age| age > ABANDONED)
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_part(&entry.path()) && is_old(&entry) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Last line of a manifest: length and checksum of the compiled model.
fn checksum(bytes: &[u8]) -> String {
    // Four lanes of eight bytes: as fast as memory is read, unlike FNV.
    let mut lanes = [0xCBF2_9CE4_8422_2325_u64, 1, 2, 3];
    let (chunks, rest) = bytes.as_chunks::<32>();
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
    }
    let lanes: Vec<u8> =
        lanes.iter().flat_map(|lane| lane.to_le_bytes()).chain(rest.iter().copied()).collect();
    format!("compiled {} {:016x}\n", bytes.len(), fnv(&lanes))
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ *byte as u64).wrapping_mul(0x100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(bytes: &'static [u8]) -> impl FnOnce(&Path) -> Result<(), String> {
        move |path| std::fs::write(path, bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn only_what_is_whole_and_was_made_of_the_same_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("new");
        let entry = Entry::new(&folder, "made of this\n");
        assert!(entry.find().expect("nothing is damaged").is_none());
        let bytes: &[u8] = &[7; 100];
        entry.keep(write(bytes)).expect("it is kept");
        assert_eq!(entry.find().expect("it is whole").as_deref(), Some(bytes));
        assert!(Entry::new(&folder, "made of that\n").find().expect("nothing is damaged").is_none());
        // Cut off, one bit changed in the first part or in the rest, and gone.
        let mut changed = bytes.to_vec();
        changed[40] ^= 1;
        let mut rest = bytes.to_vec();
        rest[99] ^= 1;
        for damaged in [&bytes[..64], &changed, &rest, &[]] {
            std::fs::write(&entry.blob, damaged).expect("it is written");
            let error = entry.find().err().expect("it is damaged");
            assert!(error.contains(".blob"), "{error}");
        }
        std::fs::remove_file(&entry.blob).expect("it was there");
        assert!(entry.find().is_err());
        // Half a manifest is none.
        entry.keep(write(bytes)).expect("it is kept");
        let manifest = std::fs::read_to_string(&entry.manifest_path).expect("it is there");
        for length in [0, 5, manifest.len() - 3] {
            std::fs::write(&entry.manifest_path, &manifest[..length]).expect("it is written");
            assert!(!matches!(entry.find(), Ok(Some(_))), "{length}");
        }
    }

    #[test]
    fn what_fails_leaves_nothing_and_what_others_left_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = Entry::new(folder.path(), "made of this\n");
        let half = |path: &Path| {
            std::fs::write(path, "half").expect("it is written");
            Err("no room".to_owned())
        };
        assert_eq!(entry.keep(half), Err("no room".to_owned()));
        let names = || std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|e| e.file_name());
        assert_eq!(names().count(), 0);
        // Of a process that was killed long ago, and of one that still writes.
        for (name, age) in
            [("00.part17", 2 * ABANDONED), ("00.part18", ABANDONED / 2), ("00.parting", 2 * ABANDONED)]
        {
            let file = std::fs::File::create(folder.path().join(name)).expect("it is made");
            file.set_modified(std::time::SystemTime::now() - age).expect("it gets a time");
        }
        entry.keep(write(&[1; 50])).expect("it is kept");
        let mut left: Vec<String> = names().map(|name| name.to_string_lossy().into_owned()).collect();
        left.retain(|name| name.starts_with("00."));
        left.sort();
        assert_eq!(left, ["00.part18", "00.parting"]);
        // A file where the folder should be.
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("it is written");
        assert!(Entry::new(&file, "").keep(write(&[])).is_err());
    }
}
