//! The bytes of one file: mapped, or held in memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek};
use std::ops::Range;

use memmap2::{Mmap, MmapMut};

/// The bytes of one file.
#[derive(Debug)]
pub(crate) enum Data {
    /// Pages of the file itself.
    Mapped(Mmap),
    /// A copy of the file in pages of its own, so that it can be locked and is aligned like a mapped one; and the
    /// file, from which parts that were released are read again.
    Copied(Mmap, File),
    /// Bytes that never were a file.
    Owned(Vec<u8>),
}

impl Data {
    /// Maps all of `file`.
    pub(crate) fn map(file: &File) -> Result<Self> {
        // SAFETY: the map is read-only and private to this process's view of a regular file. That nobody shortens
        // or rewrites the file meanwhile cannot be enforced; the crate's documentation asks for it, and everything
        // that was checked about the file was copied out of it before, so changed bytes only change weights.
        unsafe { Mmap::map(file) }.map(Self::Mapped)
    }

    /// Reads the first `length` bytes of `file` into memory.
    pub(crate) fn read(mut file: &File, length: usize) -> Result<Self> {
        let mut pages = MmapMut::map_anon(length)?;
        file.rewind()?;
        file.read_exact(&mut pages)?;
        Ok(Self::Copied(pages.make_read_only()?, file.try_clone()?))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) | Self::Copied(map, _) => map,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Keeps the bytes in physical memory until they are released or the value is dropped.
    #[cfg(unix)]
    pub(crate) fn lock(&self) -> Result<()> {
        match self {
            Self::Mapped(map) | Self::Copied(map, _) => map.lock(),
            Self::Owned(_) => Err(Error::from(ErrorKind::Unsupported)),
        }
    }

    /// Not available on this system.
    #[cfg(not(unix))]
    pub(crate) fn lock(&self) -> Result<()> {
        Err(Error::from(ErrorKind::Unsupported))
    }

    /// Gives back the physical memory behind the whole pages in `range`, locked ones too. They are read again from
    /// the file when touched. This is advice: failure changes nothing.
    #[cfg(unix)]
    pub(crate) fn release(&self, range: Range<usize>) {
        use std::os::fd::AsRawFd;
        let (Self::Mapped(map) | Self::Copied(map, _)) = self else { return };
        let page = page_size();
        let (start, end) = (range.start.next_multiple_of(page), range.end.min(map.len()) / page * page);
        if start >= end {
            return;
        }
        let (address, length) = (map[start..end].as_ptr().cast_mut().cast::<libc::c_void>(), end - start);
        // SAFETY: the whole pages lie in the map; unlocking changes neither what they hold nor how they are mapped.
        unsafe { libc::munlock(address, length) };
        match self {
            Self::Mapped(map) => {
                // SAFETY: the pages are a shared, read-only view of a file, and this process never writes to them,
                // so dropping them loses nothing: a later access reads the same bytes from the file.
                let _ =
                    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, length) };
            }
            Self::Copied(_, file) => {
                let Ok(offset) = libc::off_t::try_from(start) else { return };
                let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_FIXED);
                // SAFETY: the whole pages lie in the map, are only read, and are replaced in one step by the same
                // bytes of the file, as the copy begins where the file does. Failure leaves them as they are. Who
                // drops the map unmaps what lies in its range, whatever that is.
                unsafe { libc::mmap(address, length, protection, flags, file.as_raw_fd(), offset) };
            }
            Self::Owned(_) => {}
        }
    }

    /// Nothing to do on this system.
    #[cfg(not(unix))]
    pub(crate) fn release(&self, _range: Range<usize>) {}

    /// Asks for the file to be read ahead. This is advice: failure changes nothing.
    #[cfg(unix)]
    pub(crate) fn prefetch(&self) {
        if let Self::Mapped(map) = self {
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }

    /// Nothing to do on this system.
    #[cfg(not(unix))]
    pub(crate) fn prefetch(&self) {}
}

#[cfg(unix)]
fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions; an unknown name yields -1.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // 64 KiB is a multiple of every page size in use.
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(1 << 16)
}
