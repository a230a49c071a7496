//! Chunks that another worker may compute, too, while one computes them.
//!
//! The system takes a thread off its core at any time, most likely in the middle of a chunk, and gives it back some
//! milliseconds later: a hundred times as long as a stage of generation takes. Nobody can go on without that chunk.
//! So a chunk may be a [`Piece`]: its worker computes it apart, from its own copy of what changes and into its own
//! scratch memory. Another worker that has waited for it for too long does the same, and whoever is done first stores
//! the results. Both have the same.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Work with all that it needs by value or by address.
///
/// # Safety
/// [`Apart::compute`] may run after the stage is over and while others compute the same. So but for the scratch memory
/// it reads only what nobody writes to or frees before [`Pool::settle`](crate::pool::Pool::settle).
pub unsafe trait Apart: Copy {
    /// Tells the inputs of a stage apart: pieces with the same number find the same in their scratch memory.
    fn input(&self) -> usize;

    /// Copies what later stages will change to the scratch memory, which has the size that the stage asked for.
    ///
    /// # Safety
    /// The stage is open.
    unsafe fn prepare(&self, scratch: &mut [u8]);

    /// Computes the results in the scratch memory, of which what [`Apart::prepare`] wrote stays as it is.
    ///
    /// # Safety
    /// The scratch memory was prepared for this input of this stage, and `settle` has not returned since.
    unsafe fn compute(&self, scratch: &mut [u8]);

    /// Copies the results to their place.
    ///
    /// # Safety
    /// [`Apart::compute`] has filled the scratch memory, the stage is open, and nobody else stores this piece.
    unsafe fn store(&self, scratch: &[u8]);
}

/// Room for the work of a piece.
type Words = [MaybeUninit<u64>; 20];

/// Some [`Apart`] work.
#[derive(Clone, Copy)]
pub struct Piece {
    words: Words,
    input: usize,
    prepare: unsafe fn(&Words, &mut [u8]),
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
            input: work.input(),
            // SAFETY: the words hold a `T`; the rest is forwarded from the caller.
            prepare: |words, scratch| unsafe { read::<T>(words).prepare(scratch) },
            // SAFETY: as above.
            compute: |words, scratch| unsafe { read::<T>(words).compute(scratch) },
            // SAFETY: as above.
            store: |words, scratch| unsafe { read::<T>(words).store(scratch) },
        }
    }

    /// See [`Apart::input`].
    pub fn input(&self) -> usize {
        self.input
    }

    /// See [`Apart::prepare`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn prepare(&self, scratch: &mut [u8]) {
        // SAFETY: promised by the caller.
        unsafe { (self.prepare)(&self.words, scratch) }
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
    /// Names the piece until somebody is done with it, else zero. No name is used twice.
    name: AtomicU64,
    /// Odd while the worker may be reading what pieces name.
    reads: AtomicU64,
}

impl Hold {
    /// Offers a piece; `name` is not zero.
    pub fn offer(&self, name: u64) {
        self.name.store(name, Ordering::Release);
    }

    /// The piece that may be computed, too; zero if there is none.
    pub fn offered(&self) -> u64 {
        self.name.load(Ordering::SeqCst)
    }

    /// Called by whoever has computed the piece; whether nobody was done with it before.
    pub fn take(&self, name: u64) -> bool {
        self.name.compare_exchange(name, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The worker is about to compute pieces, its own or others'.
    pub fn begin(&self) {
        self.reads.store(self.reads.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    /// The worker is done with these.
    pub fn end(&self) {
        self.reads.store((self.reads.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Release);
    }

    /// Waits until the worker reads nothing that a piece of an earlier run names.
    pub fn settle(&self) {
        let before = self.reads.load(Ordering::Acquire);
        while before % 2 == 1 && self.reads.load(Ordering::Acquire) == before {
            // It has lost its core; nothing else takes that long.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
