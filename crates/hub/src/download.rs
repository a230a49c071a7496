//! One file from an address into the cache: resumed, verified, and put in place only when complete.

use crate::error::Error;
use crate::http::{self, Request};
use crate::name;
use crate::{Event, Observer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::Agent;

const ATTEMPTS: usize = 4;
const CHUNK: usize = 128 * 1024;

/// A file to download.
pub(crate) struct Wanted<'a> {
    /// What it is called in messages.
    pub(crate) name: &'a str,
    pub(crate) url: &'a str,
    pub(crate) token: Option<&'a str>,
    pub(crate) size: Option<u64>,
    pub(crate) sha256: Option<String>,
}

/// What is known about a file in the cache; stored beside it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) url: String,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

impl Origin {
    pub(crate) fn path(file: &Path) -> PathBuf {
        with_suffix(file, ".origin.json")
    }

    /// The record of a file, if there is one and the file has the size it says.
    pub(crate) fn of(file: &Path) -> Option<Self> {
        let text = fs::read(Self::path(file)).ok()?;
        let origin: Self = serde_json::from_slice(&text).ok()?;
        (fs::metadata(file).ok()?.len() == origin.size).then_some(origin)
    }

    /// Removes the record of a file, if there is one.
    fn remove(file: &Path) -> Result<(), Error> {
        let path = Self::path(file);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(io(&path, source)),
            _ => Ok(()),
        }
    }

    /// Moves a complete file to its place in the cache and records where it comes from. Whenever this is cut off, no
    /// record stands beside a file that it does not describe.
    pub(crate) fn place(&self, file: &Path, destination: &Path) -> Result<(), Error> {
        Self::remove(destination)?;
        fs::rename(file, destination).map_err(|source| io(destination, source))?;
        self.write(destination)
    }

    fn write(&self, file: &Path) -> Result<(), Error> {
        let path = Self::path(file);
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        let temporary = with_suffix(&path, ".new");
        fs::write(&temporary, text).map_err(|source| io(&temporary, source))?;
        fs::rename(&temporary, &path).map_err(|source| io(&path, source))
    }
}

pub(crate) fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digest of a whole file.
pub(crate) fn hash_file(path: &Path) -> Result<String, Error> {
    let mut file = File::open(path).map_err(|source| io(path, source))?;
    let mut hasher = Sha256::new();
    hash_rest(&mut file, &mut hasher).map_err(|source| io(path, source))?;
    Ok(hex(&hasher.finalize()))
}

fn hash_rest(file: &mut File, hasher: &mut Sha256) -> std::io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut length = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(length),
            count => {
                hasher.update(&buffer[..count]);
                length += count as u64;
            }
        }
    }
}

/// An unfinished file: its bytes so far, their number and running digest.
struct Partial {
    path: PathBuf,
    file: File,
    length: u64,
    hasher: Sha256,
}

impl Partial {
    /// Opens or creates it and waits until no other process writes it. `None` if that process has finished.
    fn open(
        path: PathBuf,
        destination: &Path,
        wanted: &Wanted<'_>,
        observe: Observer<'_>,
    ) -> Result<Option<Self>, Error> {
        loop {
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|source| io(&path, source))?;
            loop {
                match file.try_lock() {
                    Ok(()) => break,
                    Err(TryLockError::WouldBlock) => {
                        tell(observe, Event::Waiting { name: wanted.name })?;
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    Err(TryLockError::Error(source)) => return Err(io(&path, source)),
                }
            }
            if Origin::of(destination).is_some_and(|origin| is_current(&origin, wanted)) {
                return Ok(None);
            }
            // The other process may have moved or removed the file that we opened.
            if !path.exists() {
                continue;
            }
            let mut hasher = Sha256::new();
            let length = hash_rest(&mut file, &mut hasher).map_err(|source| io(&path, source))?;
            return Ok(Some(Self { path, file, length, hasher }));
        }
    }

    fn clear(&mut self) -> Result<(), Error> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.map_err(|source| io(&self.path, source))?;
        self.length = 0;
        self.hasher = Sha256::new();
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|source| io(&self.path, source))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn tag_path(&self) -> PathBuf {
        with_suffix(&self.path, ".tag")
    }

    fn remove(&self) {
        // Leftovers are harmless: they are recognised as such next time.
        let _ = fs::remove_file(self.tag_path());
        let _ = fs::remove_file(&self.path);
    }
}

fn is_current(origin: &Origin, wanted: &Wanted<'_>) -> bool {
    wanted.size.is_none_or(|size| size == origin.size)
        && wanted.sha256.as_ref().is_none_or(|sha256| *sha256 == origin.sha256)
}

fn tell(observe: Observer<'_>, event: Event<'_>) -> Result<(), Error> {
    if observe(event).is_break() { Err(Error::Cancelled) } else { Ok(()) }
}

/// Downloads a file unless the cache has it. What is wanted without a digest counts as had when it exists.
pub(crate) fn download(
    agent: &Agent,
    wanted: &Wanted<'_>,
    destination: &Path,
    observe: Observer<'_>,
) -> Result<(), Error> {
    if Origin::of(destination).is_some_and(|origin| is_current(&origin, wanted)) {
        return Ok(());
    }
    if let Some(folder) = destination.parent() {
        fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
    }
    // Part of the name, so that bytes of different contents never meet in one file.
    let key = hex(&Sha256::digest(wanted.sha256.as_deref().unwrap_or(wanted.url).as_bytes()));
    let path = with_suffix(destination, &format!(".{}.partial", &key[..16]));
    let Some(mut partial) = Partial::open(path, destination, wanted, observe)? else { return Ok(()) };
    match complete(agent, wanted, &mut partial, observe) {
        Ok((size, sha256)) => {
            partial.file.sync_all().map_err(|source| io(&partial.path, source))?;
            let _ = fs::remove_file(partial.tag_path());
            Origin { url: wanted.url.to_owned(), size, sha256 }.place(&partial.path, destination)?;
            tell(observe, Event::Done { name: wanted.name })
        }
        Err(error) => {
            // What is wrong stays wrong; everything else can be resumed.
            if matches!(error, Error::WrongHash { .. } | Error::WrongSize { .. }) || partial.length == 0 {
                partial.remove();
            }
            Err(error)
        }
    }
}

/// Fetches the missing bytes, with some patience, and checks them. Returns size and digest.
fn complete(
    agent: &Agent,
    wanted: &Wanted<'_>,
    partial: &mut Partial,
    observe: Observer<'_>,
) -> Result<(u64, String), Error> {
    let mut size = wanted.size;
    let mut sha256 = wanted.sha256.clone();
    if size.is_some_and(|size| partial.length > size) {
        partial.clear()?;
    }
    let mut attempt = 0;
    while size.is_none_or(|size| partial.length < size) || partial.length == 0 {
        let before = partial.length;
        match fetch(agent, wanted, partial, &mut size, &mut sha256, observe) {
            Ok(()) if size.is_none() => break,
            Ok(()) => {}
            Err(error) if !error.is_unreachable() => return Err(error),
            Err(error) if attempt + 1 >= ATTEMPTS => return Err(error),
            // Nobody there at all: no reason to insist.
            Err(error @ Error::Connection { .. }) if partial.length == 0 => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(300 << attempt)),
        }
        attempt = if partial.length > before { 0 } else { attempt + 1 };
        if attempt >= ATTEMPTS {
            break;
        }
    }
    let name = || wanted.name.to_owned();
    match size {
        Some(expected) if expected != partial.length => {
            return Err(Error::WrongSize { name: name(), expected, found: partial.length });
        }
        _ => {}
    }
    let found = hex(&partial.hasher.clone().finalize());
    match sha256 {
        Some(expected) if expected != found => Err(Error::WrongHash { name: name(), expected, found }),
        _ => Ok((partial.length, found)),
    }
}

/// One request: as many of the missing bytes as come.
fn fetch(
    agent: &Agent,
    wanted: &Wanted<'_>,
    partial: &mut Partial,
    size: &mut Option<u64>,
    sha256: &mut Option<String>,
    observe: Observer<'_>,
) -> Result<(), Error> {
    let tag = fs::read_to_string(partial.tag_path()).ok();
    if partial.length > 0 && sha256.is_none() && tag.is_none() {
        // Without digest or entity tag nothing says that the old bytes belong to the new ones.
        partial.clear()?;
    }
    let request = Request {
        url: wanted.url,
        what: wanted.name,
        token: wanted.token,
        from: partial.length,
        unchanged: tag.as_deref().filter(|_| sha256.is_none()),
    };
    let mut answer = http::get(agent, &request)?;
    if let Some(linked) = answer.linked_digest.as_deref().and_then(|linked| name::digest(linked).ok()) {
        match sha256 {
            Some(expected) if *expected != linked => {
                let name = wanted.name.to_owned();
                return Err(Error::WrongHash { name, expected: expected.clone(), found: linked });
            }
            _ => *sha256 = Some(linked),
        }
    }
    let total = match answer.status.as_u16() {
        206 => match answer.header("content-range").and_then(content_range) {
            Some((start, total)) if start == partial.length => total,
            _ => {
                let reason = "it is not the range that was asked for".to_owned();
                partial.clear()?;
                return Err(Error::Protocol { what: wanted.name.to_owned(), reason });
            }
        },
        416 => {
            // There are no such bytes: what lies here is no beginning of that file.
            partial.clear()?;
            return Ok(());
        }
        _ => {
            partial.clear()?;
            answer.header("content-length").and_then(|length| length.parse().ok())
        }
    };
    let announced = total.or(answer.linked_size);
    match (*size, announced) {
        (Some(expected), Some(found)) if expected != found => {
            return Err(Error::WrongSize { name: wanted.name.to_owned(), expected, found });
        }
        (None, Some(found)) => *size = Some(found),
        _ => {}
    }
    if let Some(tag) = answer.header("etag").filter(|tag| !tag.starts_with("W/")) {
        let path = partial.tag_path();
        fs::write(&path, tag).map_err(|source| io(&path, source))?;
    }
    tell(observe, Event::Start { name: wanted.name, bytes: *size, done: partial.length })?;
    receive(&mut answer.body, wanted, partial, *size, observe)
}

fn receive(
    body: &mut ureq::Body,
    wanted: &Wanted<'_>,
    partial: &mut Partial,
    size: Option<u64>,
    observe: Observer<'_>,
) -> Result<(), Error> {
    let mut reader = body.with_config().limit(u64::MAX).reader();
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let host = http::parse(wanted.url)?.host().unwrap_or("").to_owned();
                return Err(Error::Connection { host, reason: error.to_string() });
            }
        };
        if let Some(expected) = size.filter(|size| partial.length + count as u64 > *size) {
            let found = partial.length + count as u64;
            return Err(Error::WrongSize { name: wanted.name.to_owned(), expected, found });
        }
        partial.push(&buffer[..count])?;
        tell(observe, Event::Progress { done: partial.length })?;
    }
}

/// First byte and total length of `bytes 5-9/10`.
fn content_range(header: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}
