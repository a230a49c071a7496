//! Files: read up to a limit, written completely or not at all.

use crate::console;
use crate::failure::Failure;
use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Files that are being written and must not stay if the program ends.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes what is unfinished, because the program ends; no more is made after that.
pub fn abandon() {
    if let Ok(mut unfinished) = UNFINISHED.lock() {
        for path in unfinished.drain(..) {
            // It may not exist yet.
            let _ = fs::remove_file(path);
        }
        std::mem::forget(unfinished);
    }
}

/// A file that [`abandon`] removes as long as this lives.
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// For the file that `make` makes and tells the path of: the end of the program comes before or after, not between.
    pub fn made<T>(make: impl FnOnce() -> Result<(T, PathBuf), Failure>) -> Result<(T, Self), Failure> {
        let mut unfinished = UNFINISHED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (made, path) = make()?;
        unfinished.push(path.clone());
        Ok((made, Self(path)))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Ok(mut unfinished) = UNFINISHED.lock() {
            unfinished.retain(|path| *path != self.0);
        }
    }
}

/// Most bytes of a prompt.
pub const PROMPT: u64 = 256 << 20;
/// Most bytes of a chat template, a list of keys or of formats.
pub const SMALL: u64 = 4 << 20;

/// The bytes of a file or pipe, at most so many: a device or a pipe may never end.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let file = File::open(path).map_err(|error| named(path, &error))?;
    let announced = file.metadata().map_or(0, |metadata| metadata.len());
    read_most(file, announced, most, &path.display().to_string())
}

/// Opens what has to be a regular file, because it will be replaced; also its bytes, at most so many.
pub fn open_regular(path: &Path, most: u64) -> Result<(File, u64), Failure> {
    require_regular(path)?;
    let file = File::open(path).map_err(|error| named(path, &error))?;
    let bytes = file.metadata().map_err(|error| named(path, &error))?.len();
    if bytes > most { Err(too_long(&path.display().to_string(), most)) } else { Ok((file, bytes)) }
}

/// The bytes of the standard input, at most so many.
pub fn read_input(most: u64) -> Result<Vec<u8>, Failure> {
    read_most(io::stdin().lock(), 0, most, INPUT)
}

/// What messages call the standard input.
pub const INPUT: &str = "standard input";

fn read_most(mut from: impl Read, announced: u64, most: u64, name: &str) -> Result<Vec<u8>, Failure> {
    if announced > most {
        return Err(too_long(name, most));
    }
    let mut bytes = Vec::new();
    let read = from.by_ref().take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
    if bytes.len() as u64 > most { Err(too_long(name, most)) } else { Ok(bytes) }
}

fn too_long(name: &str, most: u64) -> Failure {
    Failure::Failed(format!("{name} has more than {} (the limit here)", console::size(most)))
}

/// The text of a file or pipe of at most so many bytes.
pub fn read_text(path: &Path, most: u64) -> Result<String, Failure> {
    text(read(path, most)?, &path.display().to_string())
}

/// The text that these bytes of `name` are.
pub fn text(bytes: Vec<u8>, name: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        Failure::Failed(format!("{name}: byte {place} (counted from 0) is not valid UTF-8"))
    })
}

/// The next line of an input, its line break included, with so many lines before it; nothing at the end.
pub fn read_line(input: &mut dyn BufRead, before: usize) -> Result<Option<String>, Failure> {
    let name = format!("{INPUT}, line {}", before + 1);
    let mut line = Vec::new();
    let mut part = input.take(PROMPT + 1);
    part.read_until(b'\n', &mut line).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
    if line.len() as u64 > PROMPT {
        return Err(Failure::Failed(format!("{name} has more than {}", console::size(PROMPT))));
    }
    if line.is_empty() { Ok(None) } else { text(line, &name).map(Some) }
}

/// Refuses a path that names a folder, pipe or device. One that names nothing is fine.
fn require_regular(path: &Path) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            Err(Failure::Failed(format!("{} is not a regular file", path.display())))
        }
        _ => Ok(()),
    }
}

/// Checks that [`replace`] could write this regular file, without changing it.
pub fn check_replaceable(path: &Path) -> Result<(), Failure> {
    require_regular(path)?;
    let (_, target) = unfinished(path)?;
    fs::remove_file(&target.0).map_err(|error| named(path, &error))
}

/// Makes the file that lies beside `path` while that is written.
fn unfinished(path: &Path) -> Result<(File, Unfinished), Failure> {
    // Before that, Ctrl-C would end the program and leave the file.
    crate::interrupt::install();
    Unfinished::made(|| {
        let target = beside(path);
        let file = File::options().write(true).create(true).truncate(true).open(&target);
        Ok((file.map_err(|error| named(path, &error))?, target))
    })
}

/// Writes a whole file, or nothing; see [`Replacement`].
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut file = Replacement::create(path)?;
    file.write(bytes)?;
    file.finish()
}

/// A file that is written under another name and moved into its place at the end, so that nobody ever sees a part of
/// it. Pipes and devices are written to directly. Every error names the path.
pub struct Replacement {
    file: BufWriter<File>,
    path: PathBuf,
    /// Where the bytes are until the end, unless that is `path` itself.
    beside: Option<Unfinished>,
}

impl Replacement {
    /// Begins to replace the file at `path`, or to make it.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let special = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        let (file, beside) = if special {
            let file = File::options().write(true).create(true).truncate(true).open(path);
            (file.map_err(|error| named(path, &error))?, None)
        } else {
            let (file, beside) = unfinished(path)?;
            puna_gguf::take_over_access(path, &file).map_err(|error| named(path, &error))?;
            (file, Some(beside))
        };
        Ok(Self { file: BufWriter::new(file), path: path.to_path_buf(), beside })
    }

    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| named(&self.path, &error))
    }

    /// Where bytes can be written, too; errors do not name the path.
    pub fn writer(&mut self) -> &mut BufWriter<File> {
        &mut self.file
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        let written = self.file.flush().and_then(|()| match &self.beside {
            Some(beside) => fs::rename(&beside.0, &self.path),
            None => Ok(()),
        });
        written.map_err(|error| named(&self.path, &error))?;
        self.beside = None;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // Whoever stopped has said why.
            let _ = fs::remove_file(&beside.0);
        }
    }
}

/// The files of a model folder from which GGUF files are made, which are not among them. A folder that cannot be read
/// has none; whoever opens it says why.
pub fn of_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_none_or(|ending| ending != "gguf")).collect()
}

/// Refuses a file to be written later that cannot be, or is one of those that are read.
pub fn check_output(output: &Path, inputs: &[PathBuf]) -> Result<(), Failure> {
    refuse_input(output, inputs)?;
    check_replaceable(output)
}

/// Refuses to write over one of the files that are read.
pub fn refuse_input(output: &Path, inputs: &[PathBuf]) -> Result<(), Failure> {
    let Ok(output) = output.canonicalize() else { return Ok(()) };
    match inputs.iter().any(|input| input.canonicalize().is_ok_and(|input| input == output)) {
        true => Err(Failure::Failed(format!("{} is the input itself", output.display()))),
        false => Ok(()),
    }
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
        replace(&path, b"old").unwrap();
        let mut given_up = Replacement::create(&path).unwrap();
        given_up.write(b"new").unwrap();
        drop(given_up);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("none/file"), b"").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn whoever_could_not_read_the_old_file_cannot_read_the_new_one() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for mode in [0o600, 0o640, 0o664] {
            fs::write(&path, b"old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            replace(&path, b"new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
        }
    }

    #[test]
    fn a_full_disk_is_blamed_on_the_file() {
        let full = Path::new("/dev/full");
        if full.exists() {
            assert!(message(replace(full, b"x")).starts_with("/dev/full: "));
            let mut file = Replacement::create(full).unwrap();
            assert!(message(file.write(&[0; 1 << 20])).starts_with("/dev/full: "));
        }
    }

    #[test]
    fn inputs_are_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        fs::write(&one, "1").unwrap();
        let again = folder.path().join(".").join("one");
        assert!(
            message(refuse_input(&again, &[other.clone(), one.clone()])).ends_with("is the input itself")
        );
        refuse_input(&other, &[one]).unwrap();
    }

    fn message<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
        match result {
            Err(Failure::Failed(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_too_long_or_never_ends_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(open_regular(&path, 5).unwrap().1, 5);
        for long in [message(read(&path, 4)), message(open_regular(&path, 4))] {
            assert!(long.ends_with("file has more than 4 B (the limit here)"), "{long}");
        }
        if cfg!(unix) {
            let zeros = Path::new("/dev/zero");
            assert!(message(read(zeros, 1000)).starts_with("/dev/zero has more than 1000 B"));
            assert_eq!(message(open_regular(zeros, 1000)), "/dev/zero is not a regular file");
            assert_eq!(message(check_replaceable(zeros)), "/dev/zero is not a regular file");
        }
    }

    #[test]
    fn text_that_is_none_is_refused_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"abc\xffd").unwrap();
        assert!(message(read_text(&path, 100)).ends_with("file: byte 3 (counted from 0) is not valid UTF-8"));
        let mut input = &b"one\nt\xffo\n"[..];
        assert_eq!(read_line(&mut input, 0).unwrap().unwrap(), "one\n");
        assert_eq!(
            message(read_line(&mut input, 1)),
            "standard input, line 2: byte 1 (counted from 0) is not valid UTF-8"
        );
        assert!(read_line(&mut input, 2).unwrap().is_none());
    }

    #[test]
    fn checking_a_path_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        check_replaceable(&folder.path().join("new")).unwrap();
        assert!(check_replaceable(&folder.path().join("none/file")).is_err());
        assert!(check_replaceable(folder.path()).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
