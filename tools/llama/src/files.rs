//! Files that are written completely or not at all.

use crate::failure::Failure;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The unfinished file that [`replace`] is writing.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Removes what is unfinished, because the program ends.
pub fn abandon() {
    if let Ok(mut unfinished) = UNFINISHED.lock()
        && let Some(path) = unfinished.take()
    {
        // It may not exist yet.
        let _ = fs::remove_file(path);
    }
}

fn set_unfinished(path: Option<PathBuf>) {
    if let Ok(mut unfinished) = UNFINISHED.lock() {
        *unfinished = path;
    }
}

/// The text of a file.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = fs::read(path).map_err(|error| named(path, &error))?;
    String::from_utf8(bytes).map_err(|_| Failure::Failed(format!("{} is not UTF-8 text", path.display())))
}

/// The bytes of a file.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| named(path, &error))
}

/// Writes a file under another name and moves it into its place at the end, so that nobody ever sees a part
/// of it. Pipes and devices are written to directly.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Failure> {
    let special = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
    let target = if special { path.to_path_buf() } else { beside(path) };
    if !special {
        set_unfinished(Some(target.clone()));
    }
    let written = File::options().write(true).create(true).truncate(true).open(&target).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()?;
        if special { Ok(()) } else { fs::rename(&target, path) }
    });
    set_unfinished(None);
    written.map_err(|error| {
        if !special {
            // It may not exist at all.
            let _ = fs::remove_file(&target);
        }
        named(path, &error)
    })
}

/// A name in the same folder, so that moving never copies.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn named(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace(&path, |file| file.write_all(b"old")).unwrap();
        let failed = replace(&path, |file| {
            file.write_all(b"new")?;
            Err(io::Error::other("no"))
        });
        assert!(matches!(failed, Err(Failure::Failed(message)) if message.ends_with("no")));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        replace(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("none/file"), |_| Ok(())).is_err());
    }
}
