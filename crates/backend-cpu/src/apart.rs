//! Chunks that another worker may take over while one computes them.
//!
//! The system takes a thread off its core at any time, most likely in the middle of a chunk, and gives it back some
//! milliseconds later: a hundred times as long as a stage of generation takes. Nobody can go on without that chunk.
//! So a chunk may be a [`Piece`]: its worker computes it apart, into its scratch memory, and stores the results only if
//! the chunk is still its own by then. Workers that have waited for longer than a chunk takes compute it again.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Work with all that it needs by value or by address.
///
/// # Safety
/// [`Apart::compute`] may run after the stage is over and while others write to what it reads, so it reads nothing
/// whose *value* could lead it astray (addresses, indices, lengths), and only memory that is freed after
/// [`Pool::settle`](crate::pool::Pool::settle) at the earliest.
pub unsafe trait Apart: Copy {
    /// Computes the results into scratch memory of the size that the stage asked for.
    ///
    /// # Safety
    /// The stage of the work was open at some time, and the memory it names has not been freed since.
    unsafe fn compute(&self, scratch: &mut [u8]);

    /// Copies the results to their place.
    ///
    /// # Safety
    /// [`Apart::compute`] has filled the scratch memory, and the stage is open.
    unsafe fn store(&self, scratch: &[u8]);
}

/// Room for the work of a piece.
type Words = [MaybeUninit<u64>; 20];

/// Some [`Apart`] work.
#[derive(Clone, Copy)]
pub struct Piece {
    words: Words,
    compute: unsafe fn(&Words, &mut [u8]),
    store: unsafe fn(&Words, &[u8]),
}

impl Piece {
    /// Wraps the work.
    pub fn new<T: Apart>(work: T) -> Self {
        /// # Safety
        /// The words hold a `T`.
        unsafe fn read<T: Apart>(words: &Words) -> T {
            // SAFETY: promised by the caller; `T` fits, as `new` made sure.
            unsafe { words.as_ptr().cast::<T>().read() }
        }
        const { assert!(size_of::<T>() <= size_of::<Words>() && align_of::<T>() <= align_of::<Words>()) };
        let mut words = [MaybeUninit::uninit(); 20];
        // SAFETY: the words have the size and the alignment.
        unsafe { words.as_mut_ptr().cast::<T>().write(work) };
        Self {
            words,
            // SAFETY: the words hold a `T`; the rest is forwarded from the caller.
            compute: |words, scratch| unsafe { read::<T>(words).compute(scratch) },
            // SAFETY: as above.
            store: |words, scratch| unsafe { read::<T>(words).store(scratch) },
        }
    }

    /// See [`Apart::compute`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn compute(&self, scratch: &mut [u8]) {
        // SAFETY: promised by the caller.
        unsafe { (self.compute)(&self.words, scratch) }
    }

    /// See [`Apart::store`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn store(&self, scratch: &[u8]) {
        // SAFETY: promised by the caller.
        unsafe { (self.store)(&self.words, scratch) }
    }
}

/// The piece that a worker has at hand.
#[derive(Default)]
pub struct Hold {
    /// Names the piece while it is free to be taken over, else zero. Whoever makes it zero owns the piece. No name
    /// is used twice by the same worker.
    name: AtomicU64,
    /// Whether the worker may be reading what the piece names, though it was taken over.
    reads: AtomicBool,
}

impl Hold {
    /// Offers a piece; `name` is not zero.
    pub fn offer(&self, name: u64) {
        self.reads.store(true, Ordering::SeqCst);
        self.name.store(name, Ordering::SeqCst);
    }

    /// The piece that may be taken over; zero if there is none.
    pub fn offered(&self) -> u64 {
        self.name.load(Ordering::Acquire)
    }

    /// Takes the piece, for the worker itself or another; whether it was still there.
    pub fn take(&self, name: u64) -> bool {
        self.name.compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The worker is done with the piece.
    pub fn finish(&self) {
        self.reads.store(false, Ordering::Release);
    }

    /// Waits until the worker reads no piece.
    pub fn settle(&self) {
        while self.reads.load(Ordering::SeqCst) {
            // It has lost its core; nothing else takes that long.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
