//! Asking for memory before it is read.

/// The cache that asked-for lines come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// The first, from which the next reads are fastest.
    First,
    /// The second, whose reads do not occupy the first one's buffers for lines under way.
    Second,
}

/// Asks for the cache line of an address, which need not be valid.
///
/// Assembly that the compiler takes for a use of memory, so that the hint stays between the reads where it was written.
/// The compiler gathers the hints of its own intrinsic in a row ahead of a step's reads, where they take every buffer for
/// lines under way and the reads wait.
#[inline(always)]
pub fn line(cache: Cache, place: *const u8) {
    // SAFETY: only a hint; any address will do.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match cache {
            Cache::First => {
                std::arch::asm!("prefetcht0 [{}]", in(reg) place, options(nostack, preserves_flags));
            }
            Cache::Second => {
                std::arch::asm!("prefetcht1 [{}]", in(reg) place, options(nostack, preserves_flags));
            }
        }
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        match cache {
            Cache::First => {
                std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, preserves_flags));
            }
            Cache::Second => {
                std::arch::asm!("prfm pldl2keep, [{}]", in(reg) place, options(nostack, preserves_flags));
            }
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (cache, place);
}

/// Asks for the cache lines of `bytes` bytes.
#[inline(always)]
pub fn lines(cache: Cache, place: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        line(cache, place.wrapping_add(at));
    }
}
