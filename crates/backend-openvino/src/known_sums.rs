//! Sums of weights that are remembered beside compiled models, so that a file that stays as it is gets read for them only
//! once.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use puna_backend::WeightSource;
use puna_graph::WeightId;

use crate::compiled_cache::{part_of, shown};
use crate::sums::{self, Sum};

/// Sums of all bytes of some weights, in the order of the weights.
pub(crate) struct Sums {
    pub(crate) all: Vec<(WeightId, String)>,
    /// Weights that were read for it.
    pub(crate) read: usize,
    /// Why what was read is not remembered, if that failed.
    pub(crate) failure: Option<String>,
}

/// Sums of these weights, as far as possible those that are remembered in the folder; the others are made by so many threads.
/// `done` hears of each weight once it is read.
pub(crate) fn of_weights(
    folder: &Path,
    weights: &dyn WeightSource,
    used: &[WeightId],
    threads: usize,
    done: impl Fn(WeightId) + Sync,
) -> Sums {
    let identities = |weights: &dyn WeightSource| -> Vec<(WeightId, String)> {
        used.iter().filter_map(|weight| Some((*weight, weights.identity(*weight)?))).collect()
    };
    let known = identities(weights);
    let place = Place::new(folder, &known);
    let remembered = place.find(known.len());
    let mut all: Vec<(WeightId, String)> = match &remembered {
        Some(sums) => known.iter().map(|(weight, _)| *weight).zip(sums.iter().cloned()).collect(),
        None => Vec::new(),
    };
    let is_known = |weight: &WeightId| all.binary_search_by_key(weight, |(known, _)| *known).is_ok();
    let unread: Vec<WeightId> = used.iter().copied().filter(|weight| !is_known(weight)).collect();
    all.extend(sums::of_weights(weights, &unread, threads, done));
    all.sort();
    // What changed while it was read has sums of neither state.
    let failure = match remembered.is_none() && !known.is_empty() && identities(weights) == known {
        true => {
            let lasting = |weight: &WeightId| known.binary_search_by_key(weight, |(known, _)| *known).is_ok();
            place.keep(all.iter().filter(|(weight, _)| lasting(weight)).map(|(_, sum)| &sum[..])).err()
        }
        false => None,
    };
    Sums { all, read: unread.len(), failure }
}

/// Where sums of weights of these identities are.
struct Place {
    path: PathBuf,
    /// What the sums are of.
    identities: String,
}

/// Counts up whenever [`Sum`] changes.
const VERSION: u32 = 1;

/// Last line but for a sum of all before it.
const END: &str = "end ";

impl Place {
    fn new(folder: &Path, known: &[(WeightId, String)]) -> Self {
        let mut identities = format!("sums {VERSION}\n");
        for (_, identity) in known {
            let _ = writeln!(identities, "{identity}");
        }
        Self { path: folder.join(format!("{}.sums", Sum::of(identities.as_bytes()).text())), identities }
    }

    /// So many sums, if all of them are there.
    fn find(&self, count: usize) -> Option<Vec<String>> {
        let found = std::fs::read_to_string(&self.path).ok()?;
        let (text, end) = found.rsplit_once(END)?;
        let lines = text.strip_prefix(&self.identities)?;
        if end != Sum::of(text.as_bytes()).text() {
            return None;
        }
        let sums: Vec<String> = lines.lines().map(str::to_owned).collect();
        (sums.len() == count).then_some(sums)
    }

    /// Remembers sums. They are written under another name, so that they are found as a whole or not at all.
    fn keep<'a>(&self, sums: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let mut text = self.identities.clone();
        for sum in sums {
            let _ = writeln!(text, "{sum}");
        }
        let sum = Sum::of(text.as_bytes()).text();
        let _ = write!(text, "{END}{sum}");
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| shown(folder, &error))?;
        }
        let part = part_of(&self.path);
        let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &self.path));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&part);
            shown(&self.path, &error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Three weights, of which the last one is in no file.
    struct Source {
        bytes: [u8; 3],
        /// How often the file was changed.
        state: u32,
        /// Somebody changes the file while it is read.
        is_changing: bool,
        asked: Mutex<u32>,
    }

    impl WeightSource for Source {
        fn bytes(&self, weight: WeightId) -> &[u8] {
            &self.bytes[weight.index()..=weight.index()]
        }

        fn release(&self, _: WeightId) {}

        fn identity(&self, weight: WeightId) -> Option<String> {
            let mut asked = self.asked.lock().expect("no panic");
            *asked += 1;
            let time = if self.is_changing { *asked } else { self.state };
            (weight != WeightId(2)).then(|| format!("file at {time}, {}", weight.index()))
        }
    }

    const USED: [WeightId; 3] = [WeightId(0), WeightId(1), WeightId(2)];

    fn source(bytes: [u8; 3], state: u32) -> Source {
        Source { bytes, state, is_changing: false, asked: Mutex::default() }
    }

    /// The sums, checked against what they should be, and how many weights were read.
    fn read(folder: &Path, source: &Source) -> usize {
        let heard = Mutex::new(Vec::new());
        let sums =
            of_weights(folder, source, &USED, 2, |weight| heard.lock().expect("no panic").push(weight));
        let right = |weight: &WeightId| (*weight, Sum::of(source.bytes(*weight)).text());
        assert_eq!(sums.all, USED.iter().map(right).collect::<Vec<_>>());
        assert_eq!(heard.into_inner().expect("no panic").len(), sums.read);
        assert_eq!(sums.failure, None);
        sums.read
    }

    #[test]
    fn an_unchanged_file_is_read_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("new");
        assert_eq!(read(&folder, &source([1, 2, 3], 0)), 3);
        assert_eq!(read(&folder, &source([1, 2, 3], 0)), 1, "what is in no file");
        assert_eq!(read(&folder, &source([1, 2, 4], 0)), 1);
        assert_eq!(read(&folder, &source([1, 5, 3], 1)), 3, "changed");
        assert_eq!(read(&folder, &source([1, 2, 3], 0)), 1, "both are remembered");
        // Of other weights of the same file.
        assert_eq!(of_weights(&folder, &source([1, 2, 3], 0), &USED[1..], 1, |_| ()).read, 2);
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let changing = Source { is_changing: true, ..source([1, 2, 3], 0) };
        assert_eq!(read(folder.path(), &changing), 3);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn damaged_files_are_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = source([1, 2, 3], 0);
        read(folder.path(), &source);
        let file =
            std::fs::read_dir(folder.path()).expect("a folder").flatten().next().expect("a file").path();
        let whole = std::fs::read(&file).expect("it is read");
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            let cut = &whole[..place];
            for bytes in [&damaged, cut] {
                std::fs::write(&file, bytes).expect("it is written");
                assert_eq!(read(folder.path(), &source), 3, "{place}");
            }
        }
        assert_eq!(std::fs::read(&file).expect("it is read"), whole);
        // Where nothing can be written the sums are still right.
        let blocked = file.join("folder");
        let sums = of_weights(&blocked, &source, &USED, 1, |_| ());
        assert!(sums.failure.is_some_and(|failure| failure.contains("folder")));
        assert_eq!((sums.all.len(), sums.read), (3, 3));
    }
}
