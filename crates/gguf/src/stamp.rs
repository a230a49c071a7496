//! What tells that a file is still the one that was opened, without reading it.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A change within so short a time after another need not show in the file's times, which some file systems count in steps
/// of two seconds.
const STEP: Duration = Duration::from_secs(2);

/// Path, length, times, number and device of a file.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    path: PathBuf,
    text: String,
    /// When its bytes, its times or its name were last changed. Unlike the time of its bytes nobody can set it.
    changed: SystemTime,
}

impl Stamp {
    /// Of an open file; `None` where the system does not tell enough.
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Option<Self> {
        let path = std::path::absolute(path).ok()?;
        let (text, changed) = told(&path, metadata)?;
        Some(Self { path, text, changed })
    }

    /// The stamp as a line of text, if the file at the path still has it and was not changed shortly before `now`.
    pub(crate) fn text_at(&self, now: SystemTime) -> Option<&str> {
        if now.duration_since(self.changed).ok()? <= STEP {
            return None;
        }
        let (text, _) = told(&self.path, &std::fs::metadata(&self.path).ok()?)?;
        (text == self.text).then_some(self.text.as_str())
    }
}

#[cfg(unix)]
fn told(path: &Path, metadata: &Metadata) -> Option<(String, SystemTime)> {
    use std::os::unix::fs::MetadataExt;
    let (seconds, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
    let text = format!(
        "{path:?} {} bytes, modified {}.{:09}, changed {seconds}.{nanoseconds:09}, number {} on {}",
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ino(),
        metadata.dev()
    );
    let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
    Some((text, SystemTime::UNIX_EPOCH.checked_add(since)?))
}

/// Not told on this system.
#[cfg(not(unix))]
fn told(_path: &Path, _metadata: &Metadata) -> Option<(String, SystemTime)> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    fn stamp(path: &Path) -> Stamp {
        let file = std::fs::File::open(path).expect("it is there");
        Stamp::of(path, &file.metadata().expect("it is open")).expect("this system tells enough")
    }

    #[test]
    fn changes_show_even_where_the_time_of_the_bytes_is_put_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a\nfile");
        std::fs::write(&path, "before").expect("it is written");
        let later = || SystemTime::now() + 2 * STEP;
        let before = stamp(&path);
        assert_eq!(before.text_at(SystemTime::now()), None, "it has only just been changed");
        let text = before.text_at(later()).expect("it is unchanged").to_owned();
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(stamp(&path).text_at(later()), Some(&text[..]));

        let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
        // Longer than the system's clock for files takes from one time to the next.
        std::thread::sleep(Duration::from_millis(50));
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        file.rewind().and_then(|()| file.write_all(b"behind")).expect("it is written");
        file.set_modified(modified).expect("it gets a time");
        assert_eq!(before.text_at(later()), None, "the open file has changed");
        let behind = stamp(&path);
        assert_ne!(behind.text_at(later()), Some(&text[..]));
        assert!(behind.text_at(later()).is_some());

        // Another file of the same name, and none.
        let other = folder.path().join("other");
        std::fs::write(&other, "behind").expect("it is written");
        std::fs::rename(&other, &path).expect("it is there");
        assert_eq!(behind.text_at(later()), None);
        let other = stamp(&path);
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(other.text_at(later()), None);
    }
}
