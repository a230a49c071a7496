//! Zeroed memory aligned to a cache line.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// A fixed-size byte buffer whose first byte lies on a 64-byte boundary (a cache line, and the width of an
/// AVX-512 register). It starts zeroed; untouched pages cost no resident memory.
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    bytes: usize,
}

const ALIGNMENT: usize = 64;

impl AlignedBuffer {
    /// `bytes` zero bytes, or `None` if the system has no memory for them.
    pub fn new(bytes: usize) -> Option<Self> {
        if bytes == 0 {
            return Some(Self { pointer: NonNull::<u64>::dangling().cast(), bytes: 0 });
        }
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: the layout has a non-zero size.
        let pointer = unsafe { alloc_zeroed(layout) };
        let buffer = Self { pointer: NonNull::new(pointer)?, bytes };
        buffer.advise_large_pages();
        Some(buffer)
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
        if self.bytes != 0 {
            // SAFETY: allocated in `new` with this very layout.
            unsafe {
                dealloc(self.pointer.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGNMENT));
            }
        }
    }
}

// SAFETY: the buffer owns its memory; shared references only read.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; writing through `as_pointer` is the caller's responsibility.
unsafe impl Sync for AlignedBuffer {}
