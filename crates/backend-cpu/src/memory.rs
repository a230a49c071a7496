//! Zeroed memory aligned to a cache line, and giving memory back.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Gives the pages of freed memory back to the system. The allocator keeps them for the next time, of which a program
/// that waits for hours does not know when it will be. Takes some milliseconds; where the C library has no way to do
/// it, nothing happens.
pub fn return_freed_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time by any thread and touches only memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A fixed-size byte buffer whose first byte lies on a 64-byte boundary (a cache line, and the width of an
/// AVX-512 register). It starts zeroed; untouched pages cost no resident memory.
pub struct AlignedBuffer {
    allocation: NonNull<u8>,
    layout: Layout,
    pointer: NonNull<u8>,
    bytes: usize,
}

const ALIGNMENT: usize = 64;

impl AlignedBuffer {
    /// [`AlignedBuffer::new`] in large pages, for memory that is filled whole and read in many streams at once.
    pub fn large(bytes: usize) -> Option<Self> {
        let buffer = Self::new(bytes)?;
        buffer.advise_large_pages();
        Some(buffer)
    }

    /// `bytes` zero bytes, or `None` if the system has no memory for them.
    pub fn new(bytes: usize) -> Option<Self> {
        // The allocator hands out untouched pages only for its natural alignment: for a larger one it clears
        // the memory itself. So ask for a little more and start at the next boundary.
        let layout = Layout::from_size_align(bytes.checked_add(ALIGNMENT)?, 16).ok()?;
        // SAFETY: the layout has a non-zero size.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let offset = allocation.align_offset(ALIGNMENT);
        debug_assert!(offset < ALIGNMENT);
        // SAFETY: the offset is below the bytes added.
        let pointer = unsafe { allocation.add(offset) };
        Some(Self { allocation, layout, pointer, bytes })
    }

    /// Asks for large pages where the buffer spans several: matrices are read in many streams at once, more than
    /// the processor has translations of small pages at hand. The system may ignore it.
    fn advise_large_pages(&self) {
        #[cfg(target_os = "linux")]
        {
            const LARGE_PAGE: usize = 2 << 20;
            let skip = self.pointer.as_ptr().align_offset(LARGE_PAGE);
            let whole = self.bytes.saturating_sub(skip) / LARGE_PAGE * LARGE_PAGE;
            if whole > 0 {
                // SAFETY: the range lies in the buffer; the advice does not change what it holds.
                unsafe {
                    libc::madvise(self.pointer.as_ptr().add(skip).cast(), whole, libc::MADV_HUGEPAGE);
                }
            }
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte; writing through it needs the caller's own exclusion.
    pub fn as_pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the buffer owns `bytes` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    /// All bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns `bytes` initialised bytes and is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

// SAFETY: the buffer owns its memory; shared references only read.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; writing through `as_pointer` is the caller's responsibility.
unsafe impl Sync for AlignedBuffer {}

/// A part of a buffer that several owners have together. Who writes to it needs an exclusion of their own.
#[derive(Clone)]
pub struct Share {
    buffer: Arc<AlignedBuffer>,
    range: Range<usize>,
}

impl Share {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The first byte; writing through it needs the caller's own exclusion.
    pub fn as_pointer(&self) -> *mut u8 {
        self.buffer.as_pointer().wrapping_add(self.range.start)
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer.as_slice()[self.range.clone()]
    }
}

impl From<AlignedBuffer> for Share {
    fn from(buffer: AlignedBuffer) -> Self {
        let range = 0..buffer.len();
        Self { buffer: Arc::new(buffer), range }
    }
}

/// A buffer in large pages that is given away in parts, one after the other. Matrices that lie in buffers of their own
/// have large pages only in their middle, and those of less than some megabytes none at all.
pub struct Room {
    buffer: Arc<AlignedBuffer>,
    used: usize,
}

impl Room {
    /// The bytes that a part of so many takes up.
    pub fn taken_by(bytes: usize) -> Option<usize> {
        bytes.checked_next_multiple_of(ALIGNMENT)
    }

    /// Room for parts that take up `bytes` bytes together, or `None` if the system has no memory for it.
    pub fn new(bytes: usize) -> Option<Self> {
        Some(Self { buffer: Arc::new(AlignedBuffer::large(bytes)?), used: 0 })
    }

    /// The next part, at a multiple of 64 bytes; `None` if there is less left.
    pub fn take(&mut self, bytes: usize) -> Option<Share> {
        let end = self.used.checked_add(Self::taken_by(bytes)?)?;
        if end > self.buffer.len() {
            return None;
        }
        let range = self.used..self.used + bytes;
        self.used = end;
        Some(Share { buffer: self.buffer.clone(), range })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_end_with_the_room() {
        let mut room = Room::new(192).unwrap();
        let (first, second) = (room.take(65).unwrap(), room.take(3).unwrap());
        assert_eq!((first.len(), second.len()), (65, 3));
        assert_eq!(second.as_pointer().addr() - first.as_pointer().addr(), 128);
        assert_eq!(first.as_pointer().align_offset(ALIGNMENT), 0);
        assert!(room.take(65).is_none() && room.take(usize::MAX).is_none());
        assert!(room.take(0).is_some_and(|part| part.is_empty()));
        drop(room);
        assert_eq!(first.as_slice(), [0; 65]);
    }
}
