//! Memory whose pages lie in files.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::Failure;

/// Memory of a file without a name, whose pages the system keeps only as long as it has room for them.
pub(super) struct Spilled(memmap2::MmapMut);

/// Pages are dropped as often while a model is compiled, read back or runs for the first time.
const DROP_INTERVAL: Duration = Duration::from_millis(20);

/// Does work, and something else again and again meanwhile and once when it is done.
fn while_repeating<R>(repeated: impl Fn() + Sync, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (working, done) = mpsc::channel::<()>();
        let repeated = &repeated;
        scope.spawn(move || {
            while done.recv_timeout(DROP_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                repeated();
            }
            repeated();
        });
        let result = work();
        drop(working);
        result
    })
}

impl Spilled {
    /// Memory that `fill` writes, in a file in this folder.
    pub(super) fn filled(folder: &Path, bytes: u64, fill: impl FnOnce(&mut [u8])) -> Result<Self, Failure> {
        let shown = |error: std::io::Error| format!("{}: {error}", folder.display());
        let file = tempfile::tempfile_in(folder).map_err(shown)?;
        take_room(&file, bytes.max(1)).map_err(shown)?;
        // SAFETY: the file has no name, so nobody else changes or shortens it.
        let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.map_err(shown)?;
        // SAFETY: the map has so many bytes and outlives this function; until it ends nothing else reads or writes them.
        let all = unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr(), bytes as usize) };
        let spilled = Self(map);
        spilled.while_dropping(|| fill(all));
        Ok(spilled)
    }

    /// Does work that reads or writes the memory once, while pages are dropped again and again, so that few are resident at a
    /// time. They come back from the file when they are read again.
    pub(super) fn while_dropping<R>(&self, work: impl FnOnce() -> R) -> R {
        while_repeating(|| self.drop_pages(), work)
    }

    /// Where it begins.
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn drop_pages(&self) {
        #[cfg(unix)]
        // SAFETY: this is a shared map of a file, so what was written is in the file and nothing is lost.
        let _ = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

/// Makes a new file so long that what is written to its pages has a place: without one, writing to a page when the disk is
/// full ends the process.
fn take_room(file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let length = i64::try_from(bytes).map_err(std::io::Error::other)?;
        loop {
            // SAFETY: the file is open.
            match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
                0 => return Ok(()),
                libc::EINTR => {}
                // Not every file system can.
                libc::EOPNOTSUPP | libc::EINVAL => break,
                error => return Err(std::io::Error::from_raw_os_error(error)),
            }
        }
    }
    let zeros = std::io::Read::take(std::io::repeat(0), bytes);
    std::io::copy(&mut std::io::BufReader::with_capacity(1 << 20, zeros), &mut &*file).map(|_| ())
}

/// A whole file that is only read, whose pages the system keeps only as long as it has room for them.
pub struct MappedFile(Option<memmap2::Mmap>);

impl MappedFile {
    /// Of a file that is not changed while it is used: files of compiled models are replaced as a whole.
    pub fn of(file: &std::fs::File) -> std::io::Result<Self> {
        // Nothing cannot be mapped.
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: by this function's contract.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Self(Some(map)))
    }

    /// Does work that reads the bytes once, while their pages are dropped again and again. They come back from the file when
    /// they are read again.
    pub(super) fn while_dropping<R>(&self, work: impl FnOnce() -> R) -> R {
        while_repeating(|| self.drop_pages(), work)
    }

    fn drop_pages(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.0 {
            // SAFETY: this is a map of a file that is only read, so nothing is lost.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}

impl std::ops::Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}
