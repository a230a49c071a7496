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
        Some(Self { pointer: NonNull::new(pointer)?, bytes })
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
