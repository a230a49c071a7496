//! Compiled models in a folder and in this process, found by what they were made of.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use puna_backend::{Segment, WeightSource};
use puna_graph::WeightId;

use crate::ffi::{Compiled, MappedFile};
use crate::sums::Sum;
use crate::translate::Choices;

/// Compiled models that partitions of this process use.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Vec<InUse>>>);

/// A compiled model, and what it was made of.
struct InUse {
    manifest: String,
    weights: Weak<dyn WeightSource>,
    compiled: Weak<Compiled>,
}

impl Shared {
    /// The compiled model that was made of the same, if a partition still uses it. Weights are the same if all their bytes
    /// are; those of one file that is open once are not even read.
    pub(crate) fn find(
        &self,
        manifest: &str,
        used: &[WeightId],
        weights: &Arc<dyn WeightSource>,
    ) -> Option<Arc<Compiled>> {
        let alike: Vec<_> = {
            let all = self.0.lock().ok()?;
            let alike = all.iter().filter(|other| other.manifest == manifest);
            alike.filter_map(|other| Some((other.weights.upgrade()?, other.compiled.upgrade()?))).collect()
        };
        let same = |other: &Arc<dyn WeightSource>| {
            used.iter().all(|weight| {
                let (own, other) = (weights.bytes(*weight), other.bytes(*weight));
                std::ptr::eq(own, other) || own == other
            })
        };
        alike.into_iter().find(|(other, _)| same(other)).map(|(_, compiled)| compiled)
    }

    /// Lets others find a compiled model for as long as it and its weights are used.
    pub(crate) fn keep(&self, manifest: &str, weights: &Arc<dyn WeightSource>, compiled: &Arc<Compiled>) {
        if let Ok(mut all) = self.0.lock() {
            all.retain(|other| other.weights.strong_count() > 0 && other.compiled.strong_count() > 0);
            all.push(InUse {
                manifest: manifest.to_owned(),
                weights: Arc::downgrade(weights),
                compiled: Arc::downgrade(compiled),
            });
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
const TRANSLATION: u32 = 4;

/// What a segment compiled in this way by this version of the library is made of, as text; all but the bytes of its weights.
pub(crate) fn manifest(
    segment: &Segment,
    used: &[WeightId],
    choices: &Choices,
    compiled_for: &str,
) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut manifest = format!("puna {version} {TRANSLATION}\n{compiled_for}\n{choices:?}\n");
    let graph = Sum::of(segment.graph.to_string().as_bytes()).text();
    let _ = writeln!(manifest, "nodes {:?} {graph}", segment.nodes);
    for weight in used {
        let declared = &segment.graph.weights[weight.index()];
        let (name, shape, dtype) = (&declared.name, &declared.shape, declared.dtype);
        let _ = writeln!(manifest, "{} {name} {shape:?} {dtype}", weight.index());
    }
    manifest
}

impl Entry {
    /// The place of what is made of this, with weights of these sums.
    pub(crate) fn new(folder: &Path, manifest: &str, sums: &str) -> Self {
        let manifest = format!("{manifest}{sums}");
        let name = Sum::of(manifest.as_bytes()).text();
        Self {
            blob: folder.join(format!("{name}.blob")),
            manifest_path: folder.join(format!("{name}.manifest")),
            manifest,
        }
    }

    /// The compiled model's bytes, if it is there and was made of the same. An error says what is damaged.
    pub(crate) fn find(&self) -> Result<Option<MappedFile>, String> {
        let Ok(found) = std::fs::read_to_string(&self.manifest_path) else { return Ok(None) };
        // Others may have the same name: then theirs stays, and this one is made.
        let Some(sum) = found.strip_prefix(self.manifest.as_str()) else { return Ok(None) };
        let file = File::open(&self.blob).map_err(|error| shown(&self.blob, &error))?;
        let read = checksum(&file).map_err(|error| shown(&self.blob, &error))?;
        match sum == read {
            true => MappedFile::of(&file).map(Some).map_err(|error| shown(&self.blob, &error)),
            false => Err(format!("{}: the file is damaged", self.blob.display())),
        }
    }

    /// Keeps what `export` writes to the path it gets. Both files are written under other names, and the manifest comes last
    /// and has a checksum, so that half a model is never found. Of what fails nothing stays.
    pub(crate) fn keep(&self, export: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
        if let Some(folder) = self.blob.parent() {
            std::fs::create_dir_all(folder).map_err(|error| shown(folder, &error))?;
            remove_abandoned_parts(folder);
        }
        let blob_part = part_of(&self.blob);
        let kept = export(&blob_part).and_then(|()| {
            let sum = whole(&blob_part).map_err(|error| shown(&self.blob, &error))?;
            std::fs::rename(&blob_part, &self.blob).map_err(|error| shown(&self.blob, &error))?;
            let written = std::fs::write(&blob_part, format!("{}{sum}", self.manifest));
            let written = written.and_then(|()| std::fs::rename(&blob_part, &self.manifest_path));
            written.map_err(|error| {
                let _ = std::fs::remove_file(&self.blob);
                shown(&self.manifest_path, &error)
            })
        });
        if kept.is_err() {
            let _ = std::fs::remove_file(&blob_part);
        }
        kept
    }
}

/// The name of a file in the folder while it is written.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    // A number by chance: processes in containers share a folder and have the same number.
    let chance = RandomState::new().hash_one(std::process::id());
    path.with_extension(format!("{PART}{chance:016x}"))
}

pub(crate) fn shown(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The checksum of an exported model, if all of it was written.
///
/// The library does not tell when its writing fails. Where that was for want of room (a full disk, a quota), nothing more
/// can be written, either.
fn whole(path: &Path) -> std::io::Result<String> {
    let sum = checksum(&File::open(path)?)?;
    let mut file = OpenOptions::new().append(true).open(path)?;
    let length = file.metadata()?.len();
    file.write_all(&vec![0; SPARE])?;
    file.set_len(length)?;
    Ok(sum)
}

/// More than what is left of a full disk that refuses a page.
const SPARE: usize = 1 << 20;

/// Start of the extension of a file that is still being written; a number follows.
const PART: &str = "part";
/// After so long nobody writes to a file any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Removes what processes that were killed while writing have left.
fn remove_abandoned_parts(folder: &Path) {
    let is_part = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let number = extension.and_then(|extension| extension.strip_prefix(PART));
        number.is_some_and(|number| u64::from_str_radix(number, 16).is_ok())
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
fn checksum(file: &File) -> std::io::Result<String> {
    let sum = Sum::of_all(file)?;
    Ok(format!("compiled {} {}\n", sum.length(), sum.text()))
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
        let entry = Entry::new(&folder, "made of this\n", "weights\n");
        assert!(entry.find().expect("nothing is damaged").is_none());
        let bytes: &[u8] = &[7; 100];
        entry.keep(write(bytes)).expect("it is kept");
        assert_eq!(entry.find().expect("it is whole").as_deref(), Some(bytes));
        for (made_of, sums) in [("made of that\n", "weights\n"), ("made of this\n", "others\n")] {
            assert!(Entry::new(&folder, made_of, sums).find().expect("nothing is damaged").is_none());
        }
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
        let entry = Entry::new(folder.path(), "made of this\n", "");
        let half = |path: &Path| {
            std::fs::write(path, "half").expect("it is written");
            Err("no room".to_owned())
        };
        assert_eq!(entry.keep(half), Err("no room".to_owned()));
        let names = || std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|e| e.file_name());
        assert_eq!(names().count(), 0);
        // A manifest that cannot be put in its place takes the model along.
        std::fs::create_dir(&entry.manifest_path).expect("it is made");
        let error = entry.keep(write(&[1; 50])).expect_err("a folder is in its place");
        assert!(error.contains(".manifest: "), "{error}");
        assert_eq!(names().collect::<Vec<_>>(), [entry.manifest_path.file_name().expect("a name")]);
        std::fs::remove_dir(&entry.manifest_path).expect("it is there");
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
        assert!(Entry::new(&file, "", "").keep(write(&[])).is_err());
    }
}
