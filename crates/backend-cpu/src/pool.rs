//! Worker threads that walk a list of stages together.
//!
//! A program is a list of [`Stage`]s; a stage is a number of independent chunks. Chunks are claimed one by one,
//! and a stage is complete when its *chunks* are done, not when its threads have arrived: a thread that the
//! operating system took off its core between two chunks holds up nobody, and where chunks are pieces
//! ([`crate::apart`]), hardly ever one that was in the middle of a chunk. Whoever finds all chunks done opens the next
//! stage, so a stage with one chunk costs no meeting of the threads.
//!
//! Workers hold no reference into the caller's list except while they run a claimed chunk or are guests of the stage. A
//! claim carries the number of the stage it was made for (its epoch), so a late worker cannot claim from a stage that is
//! over.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::apart::{Hold, Piece};
use crate::cores::{Cores, core};
use crate::memory::AlignedBuffer;

/// One step of a program: `chunks` independent pieces of work.
pub trait Stage: Sync {
    /// Number of chunks; asked when all earlier stages are complete, so it may depend on their results.
    /// At most [`MAX_CHUNKS`].
    fn chunks(&self) -> usize;

    /// Does chunk `chunk` (in `0..self.chunks()`). Chunks of a stage run concurrently and in any order.
    fn run(&self, chunk: usize, scratch: &mut Scratch<'_>);

    /// If chunks are pieces, all of them: how long to wait for one, counted from when a worker finds nothing else to do,
    /// before another worker computes it too. Then [`Stage::piece`] gives each, and [`Stage::run`] is not called if there
    /// are several workers.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Chunk `chunk` as it is run by `worker`; always the same but for what has no influence on the results.
    fn piece(&self, _chunk: usize, _worker: usize) -> Option<Piece> {
        None
    }

    /// Bytes of scratch memory that one call of [`Stage::run`], or one piece, needs; asked before the first stage runs.
    fn scratch_bytes(&self) -> usize {
        0
    }
}

/// Memory that belongs to one worker for the time of one chunk; its contents are arbitrary.
pub struct Scratch<'a> {
    /// Number of the worker that runs the chunk, in `0..threads`.
    pub worker: usize,
    /// At least as many bytes as the largest `scratch_bytes` of the run, aligned to 64 bytes.
    pub bytes: &'a mut [u8],
}

impl Scratch<'_> {
    /// The scratch memory as numbers.
    pub fn floats(&mut self) -> &mut [f32] {
        let whole = self.bytes.len() / 4 * 4;
        bytemuck::cast_slice_mut(&mut self.bytes[..whole])
    }
}

/// Most chunks that one stage may have.
pub const MAX_CHUNKS: usize = (1 << CHUNK_BITS) - 1;

/// How a worker waits for the next stage before it parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Times to look again at once (with the processor's pause hint, 20 to 60 ns each).
    pub spins: u32,
    /// Times to look again after giving the core to whoever waits for it.
    pub yields: u32,
}

impl Default for Waiting {
    // About 10 us of spinning covers the usual imbalance of two chunks; after that the core is worth more to
    // a preempted worker than the few microseconds a wake-up costs.
    fn default() -> Self {
        Self { spins: 200, yields: 8 }
    }
}

/// Why a pool could not be made or a run not be started.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The operating system gave no thread.
    #[error("cannot start worker thread {worker} of {threads}: {source}")]
    Spawn {
        /// Number of the worker.
        worker: usize,
        /// Threads asked for.
        threads: usize,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// There is no memory for the workers' scratch buffers.
    #[error("no memory for {bytes} bytes of scratch for each of {threads} workers")]
    Memory {
        /// Bytes for each worker.
        bytes: usize,
        /// Number of workers.
        threads: usize,
    },
}

/// Chunk numbers take the low bits of a ticket, the epoch the rest: at a million stages per second the epoch
/// wraps after half a year.
const CHUNK_BITS: u32 = 20;

fn pack(epoch: u64, chunk: usize) -> u64 {
    epoch << CHUNK_BITS | chunk as u64
}

fn unpack(word: u64) -> (u64, usize) {
    (word >> CHUNK_BITS, (word & MAX_CHUNKS as u64) as usize)
}

/// A worker's own state on its own pair of cache lines.
#[repr(align(128))]
struct Worker {
    /// Epoch and next unclaimed chunk of the range that this worker starts with.
    ticket: AtomicU64,
    /// Whether the worker sleeps (or is about to) and wants to be unparked.
    parked: AtomicBool,
    /// The thread to unpark; worker 0 is whoever called `run`.
    thread: Mutex<Option<Thread>>,
    /// What the worker computes apart.
    hold: Hold,
    /// An epoch and how many chunks of that stage the worker has done.
    done: AtomicU64,
    scratch: Mutex<Workbench>,
}

/// A worker's scratch memory and what lies in it.
struct Workbench {
    buffer: AlignedBuffer,
    /// Epoch and input of the piece that [`Piece::prepare`] last read the input of.
    prepared: (u64, usize),
}

impl Workbench {
    fn new(bytes: usize) -> Option<Self> {
        Some(Self { buffer: AlignedBuffer::new(bytes)?, prepared: (0, 0) })
    }

    /// # Safety
    /// The stage `epoch`, which the piece belongs to, stays open during the call.
    unsafe fn prepare(&mut self, epoch: u64, piece: &Piece) {
        let wanted = (epoch, piece.input());
        if self.prepared != wanted {
            // SAFETY: promised by the caller.
            unsafe { piece.prepare(self.buffer.as_mut_slice()) };
            self.prepared = wanted;
        }
    }
}

#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    /// Epoch and number of chunks of the open stage; no chunks: the run is over.
    open: Padded<AtomicU64>,
    /// The last stage that somebody found complete.
    closed: Padded<AtomicU64>,
    /// Workers that read what belongs to the open stage without a claim on a chunk of it.
    guests: Padded<AtomicU32>,
    /// Workers that are parked or about to park.
    sleepers: Padded<AtomicU32>,
    /// The caller's list and the place in it; read only by someone who holds a claim or opens a stage.
    stages: AtomicPtr<&'static dyn Stage>,
    stage_count: AtomicU32,
    stage: AtomicU32,
    /// Microseconds of patience with pieces of the open stage; 0 if it has none. Only a hint, for it may be read late.
    patience: AtomicU32,
    /// Core that worker 0 ran on when the run began.
    leader: AtomicUsize,
    failed: AtomicBool,
    shutdown: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    waiting: Waiting,
    workers: Vec<Worker>,
}

/// A fixed set of threads; the thread that calls [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    /// Held for the time of a run; the value is the size of each worker's scratch buffer.
    runs: Mutex<usize>,
}

/// A worker panics only inside `catch_unwind`, so a poisoned lock still holds sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of `threads` workers (at least one), of which `threads - 1` are new threads.
    pub fn new(threads: usize) -> Result<Self, PoolError> {
        Self::with_waiting(threads, Waiting::default())
    }

    /// A pool whose workers wait as given.
    pub fn with_waiting(threads: usize, waiting: Waiting) -> Result<Self, PoolError> {
        let threads = threads.max(1);
        let workers = (0..threads)
            .map(|_| {
                Ok(Worker {
                    ticket: AtomicU64::new(0),
                    parked: AtomicBool::new(false),
                    thread: Mutex::new(None),
                    hold: Hold::default(),
                    done: AtomicU64::new(0),
                    scratch: Mutex::new(Workbench::new(0).ok_or(PoolError::Memory { bytes: 0, threads })?),
                })
            })
            .collect::<Result<Vec<_>, PoolError>>()?;
        let shared = Arc::new(Shared {
            open: Padded(AtomicU64::new(0)),
            closed: Padded(AtomicU64::new(0)),
            guests: Padded(AtomicU32::new(0)),
            sleepers: Padded(AtomicU32::new(0)),
            stages: AtomicPtr::new(std::ptr::null_mut()),
            stage_count: AtomicU32::new(0),
            stage: AtomicU32::new(0),
            patience: AtomicU32::new(0),
            leader: AtomicUsize::new(usize::MAX),
            failed: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            panic: Mutex::new(None),
            waiting,
            workers,
        });
        let mut pool = Self { shared, handles: Vec::with_capacity(threads - 1), runs: Mutex::new(0) };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = std::thread::Builder::new()
                .name(format!("puna-cpu-{worker}"))
                .spawn(move || shared.work(worker))
                .map_err(|source| PoolError::Spawn { worker, threads, source })?;
            *lock(&pool.shared.workers[worker].thread) = Some(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Number of workers, the caller of [`Pool::run`] included.
    pub fn threads(&self) -> usize {
        self.shared.workers.len()
    }

    /// Runs all chunks of the first stage, then all of the second, and so on. A panic in a stage ends the run and
    /// is raised again here. Must not be called from inside a chunk of the same pool.
    pub fn run(&self, stages: &[&dyn Stage]) -> Result<(), PoolError> {
        let bytes = stages.iter().map(|stage| stage.scratch_bytes()).max().unwrap_or(0);
        let mut size = lock(&self.runs);
        if bytes > *size {
            for worker in &self.shared.workers {
                let error = PoolError::Memory { bytes, threads: self.threads() };
                *lock(&worker.scratch) = Workbench::new(bytes).ok_or(error)?;
            }
            *size = bytes;
        }
        if self.threads() == 1 {
            let mut workbench = lock(&self.shared.workers[0].scratch);
            for stage in stages {
                for chunk in 0..stage.chunks() {
                    stage.run(chunk, &mut Scratch { worker: 0, bytes: workbench.buffer.as_mut_slice() });
                }
            }
            return Ok(());
        }
        self.shared.lead(stages);
        let payload = lock(&self.shared.panic).take();
        drop(size);
        match payload {
            Some(payload) => resume_unwind(payload),
            None => Ok(()),
        }
    }

    /// Waits until no worker reads what pieces of earlier runs name. To be called before that is freed.
    pub fn settle(&self) {
        self.shared.workers.iter().for_each(|worker| worker.hold.settle());
    }

    /// Calls `work` once for every number in `0..chunks`, on all workers. For loading and repacking; a panic is
    /// raised again here.
    pub fn parallel_for(&self, chunks: usize, work: impl Fn(usize) + Sync) {
        struct Loop<F> {
            chunks: usize,
            grain: usize,
            work: F,
        }
        impl<F: Fn(usize) + Sync> Stage for Loop<F> {
            fn chunks(&self) -> usize {
                self.chunks.div_ceil(self.grain)
            }
            fn run(&self, chunk: usize, _: &mut Scratch<'_>) {
                let first = chunk * self.grain;
                for index in first..(first + self.grain).min(self.chunks) {
                    (self.work)(index);
                }
            }
        }
        let stage = Loop { chunks, grain: chunks.div_ceil(MAX_CHUNKS).max(1), work };
        self.run(&[&stage]).expect("a stage without scratch memory has nothing that could fail");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker's panics are caught, so joining cannot fail.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Runs the stages as worker 0 and returns when all chunks are done.
    fn lead(&self, stages: &[&dyn Stage]) {
        if stages.is_empty() {
            return;
        }
        *lock(&self.workers[0].thread) = Some(std::thread::current());
        self.failed.store(false, Ordering::Relaxed);
        self.leader.store(core(), Ordering::Relaxed);
        self.stages.store(stages.as_ptr().cast_mut().cast(), Ordering::Relaxed);
        self.stage_count.store(stages.len() as u32, Ordering::Relaxed);
        let (mut seen, _) = unpack(self.open.0.load(Ordering::Acquire));
        self.open_from(0, seen, 0);
        loop {
            let (epoch, chunks) = unpack(self.wait(0, seen));
            if chunks == 0 {
                return;
            }
            self.take_part(0, epoch, chunks);
            seen = epoch;
        }
    }

    /// Body of a worker thread.
    fn work(&self, worker: usize) {
        let mut seen = 0;
        let mut cores = Cores::default();
        while !self.shutdown.load(Ordering::SeqCst) {
            let (epoch, chunks) = unpack(self.wait(worker, seen));
            cores.keep_off(self.leader.load(Ordering::Relaxed));
            self.take_part(worker, epoch, chunks);
            seen = epoch;
        }
    }

    /// Works on stage `epoch` as far as there are chunks left, and opens the next one if it is complete.
    fn take_part(&self, worker: usize, epoch: u64, chunks: usize) {
        self.workers[worker].hold.begin();
        self.claim_and_run(worker, epoch, chunks);
        self.workers[worker].hold.end();
        self.close_if_complete(worker, epoch, chunks);
    }

    /// Claims and runs chunks of stage `epoch` until none is left, those of the worker's own range first, so
    /// that the same worker sees the same data run after run.
    fn claim_and_run(&self, worker: usize, epoch: u64, chunks: usize) {
        let threads = self.workers.len();
        for step in 0..threads {
            let owner = (worker + step) % threads;
            let (start, end) = (owner * chunks / threads, (owner + 1) * chunks / threads);
            if start == end {
                continue;
            }
            let ticket = &self.workers[owner].ticket;
            let mut word = ticket.load(Ordering::Relaxed);
            loop {
                let (tag, next) = unpack(word);
                let next = match tag.cmp(&epoch) {
                    std::cmp::Ordering::Equal => next,
                    std::cmp::Ordering::Less => start,
                    // The stage is over and a later one is open.
                    std::cmp::Ordering::Greater => return,
                };
                if next >= end {
                    break;
                }
                let claim = pack(epoch, next + 1);
                match ticket.compare_exchange_weak(word, claim, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        if self.failed.load(Ordering::Relaxed) || self.run_chunk(worker, epoch, next) {
                            self.count(worker, epoch);
                        }
                        word = ticket.load(Ordering::Relaxed);
                    }
                    Err(current) => word = current,
                }
            }
        }
    }

    /// Notes that the worker has done a chunk of stage `epoch`. At once, for it may lose its core in the middle of the
    /// next; and in memory of its own, for which the workers do not compete.
    fn count(&self, worker: usize, epoch: u64) {
        let done = &self.workers[worker].done;
        let (tag, count) = unpack(done.load(Ordering::Relaxed));
        done.store(pack(epoch, if tag == epoch { count + 1 } else { 1 }), Ordering::Release);
    }

    /// Opens the next stage if all `chunks` of stage `epoch` are done and nobody else does it.
    fn close_if_complete(&self, worker: usize, epoch: u64, chunks: usize) {
        // Of two workers that finish at the same time, one at least must see what both have counted.
        fence(Ordering::SeqCst);
        let counts = self.workers.iter().map(|worker| unpack(worker.done.load(Ordering::Acquire)));
        let done: usize = counts.filter(|(tag, _)| *tag == epoch).map(|(_, count)| count).sum();
        if chunks == 0 || done < chunks || self.closed.0.fetch_max(epoch, Ordering::AcqRel) >= epoch {
            return;
        }
        // Guests stay for less than a microsecond, unless they lose their core.
        let mut spins = 0;
        while self.guests.0.load(Ordering::SeqCst) > 0 {
            spins += 1;
            if spins < 1000 { std::hint::spin_loop() } else { std::thread::sleep(Duration::from_micros(50)) }
        }
        let next = self.stage.load(Ordering::Relaxed) + 1;
        self.open_from(next, epoch, worker);
    }

    /// Runs a claimed chunk of the open stage. Returns whether it is this worker's to count; if not, another worker was
    /// done with it sooner, and the stage may be over.
    fn run_chunk(&self, worker: usize, epoch: u64, chunk: usize) -> bool {
        // SAFETY: the caller holds a claim on a chunk of the open stage. Until that chunk is counted the stage stays
        // open and `lead` does not return, so the list and its stages are alive.
        let stage = unsafe { self.stage_at(self.stage.load(Ordering::Relaxed)) };
        let Worker { hold, scratch, .. } = &self.workers[worker];
        let name = pack(epoch, chunk + 1);
        let mut mine = true;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut workbench = lock(scratch);
            let Some(piece) = stage.piece(chunk, worker) else {
                stage.run(chunk, &mut Scratch { worker, bytes: workbench.buffer.as_mut_slice() });
                return;
            };
            // SAFETY: the stage is open.
            unsafe { workbench.prepare(epoch, &piece) };
            hold.offer(name);
            mine = false;
            // From here on the stage may close at any time.
            // SAFETY: prepared; who frees what pieces read calls `settle`, which waits for `hold`.
            unsafe { piece.compute(workbench.buffer.as_mut_slice()) };
            mine = hold.take(name);
            if mine {
                // SAFETY: computed; the chunk is not counted, so the stage is open.
                unsafe { piece.store(workbench.buffer.as_slice()) };
            }
        }));
        if let Err(payload) = outcome {
            mine = mine || hold.take(name);
            if mine {
                self.fail(payload);
            }
        }
        mine
    }

    /// Another worker's piece of stage `epoch`: whose, and its name.
    fn offered(&self, worker: usize, epoch: u64) -> Option<(&Hold, u64)> {
        let threads = self.workers.len();
        let others = (1..threads).map(|step| &self.workers[(worker + step) % threads].hold);
        others.map(|hold| (hold, hold.offered())).find(|(_, name)| {
            let (tag, number) = unpack(*name);
            tag == epoch && number > 0
        })
    }

    /// Does what helps a worker to go on that finds no chunk of stage `epoch` left. Returns whether something did; if
    /// not, the chunks that are missing are no pieces.
    fn help(&self, worker: usize, epoch: u64, chunks: usize) -> bool {
        // Whoever did the last chunk may have lost its core before it looked.
        self.close_if_complete(worker, epoch, chunks);
        let Some((holder, name)) = self.offered(worker, epoch) else {
            return unpack(self.open.0.load(Ordering::Acquire)).0 != epoch;
        };
        let patience = Duration::from_micros(self.patience.load(Ordering::Relaxed).into());
        let start = Instant::now();
        while holder.offered() == name {
            if start.elapsed() > patience {
                if self.compute_too(worker, holder, name) {
                    self.count(worker, epoch);
                    self.close_if_complete(worker, epoch, chunks);
                }
                break;
            }
            (0..16).for_each(|_| std::hint::spin_loop());
        }
        true
    }

    /// Computes the piece `name` that another worker has at hand. Returns whether this one was done sooner and so has to
    /// count the chunk.
    fn compute_too(&self, worker: usize, holder: &Hold, name: u64) -> bool {
        let (epoch, number) = unpack(name);
        let Worker { hold, scratch, .. } = &self.workers[worker];
        let mut mine = false;
        hold.begin();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let guest = Guest::new(&self.guests.0);
            if holder.offered() != name {
                return;
            }
            // SAFETY: the piece was there after this worker became a guest, so its stage is open, and whoever closes it
            // waits for guests to leave.
            let stage = unsafe { self.stage_at(self.stage.load(Ordering::Relaxed)) };
            let mut workbench = lock(scratch);
            let Some(piece) = stage.piece(number - 1, worker) else { return };
            // SAFETY: the stage is open.
            unsafe { workbench.prepare(epoch, &piece) };
            drop(guest);
            // SAFETY: prepared; who frees what pieces read calls `settle`, which waits for `hold`.
            unsafe { piece.compute(workbench.buffer.as_mut_slice()) };
            mine = holder.take(name);
            if mine {
                // SAFETY: computed; the chunk is not counted, so the stage is open.
                unsafe { piece.store(workbench.buffer.as_slice()) };
            }
        }));
        hold.end();
        if let Err(payload) = outcome {
            mine = mine || holder.take(name);
            if mine {
                self.fail(payload);
            }
        }
        mine
    }

    /// # Safety
    /// `index` is below the stage count, and the run cannot end during the use of the result.
    unsafe fn stage_at(&self, index: u32) -> &dyn Stage {
        // SAFETY: promised by the caller; the pointer comes from the slice given to `lead`.
        unsafe { *self.stages.load(Ordering::Relaxed).add(index as usize) }
    }

    fn fail(&self, payload: Box<dyn Any + Send>) {
        lock(&self.panic).get_or_insert(payload);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Opens the first stage from `index` on that has chunks, or ends the run. Called by the one worker that
    /// completed the stage before (or by the leader), which nobody else can do at the same time.
    fn open_from(&self, mut index: u32, epoch: u64, worker: usize) {
        let count = self.stage_count.load(Ordering::Relaxed);
        while index < count && !self.failed.load(Ordering::Relaxed) {
            // SAFETY: the run ends only further down, by this very call.
            let stage = unsafe { self.stage_at(index) };
            match catch_unwind(AssertUnwindSafe(|| {
                let chunks = stage.chunks();
                assert!(
                    chunks <= MAX_CHUNKS,
                    "a stage has {chunks} chunks, at most {MAX_CHUNKS} are possible"
                );
                chunks
            })) {
                Err(payload) => self.fail(payload),
                Ok(0) => index += 1,
                Ok(chunks) => {
                    self.stage.store(index, Ordering::Relaxed);
                    let patience =
                        stage.patience().map_or(0, |time| time.as_micros().clamp(1, 1 << 20) as u32);
                    self.patience.store(patience, Ordering::Relaxed);
                    self.open.0.store(pack(epoch + 1, chunks), Ordering::SeqCst);
                    // The opener takes part at once, so one sleeper less than there are chunks is of use.
                    self.wake(worker, chunks - 1);
                    return;
                }
            }
        }
        self.open.0.store(pack(epoch + 1, 0), Ordering::SeqCst);
        if worker != 0 && self.sleepers.0.load(Ordering::SeqCst) > 0 {
            self.unpark(0);
        }
    }

    /// Wakes up to `count` sleepers other than `worker`.
    fn wake(&self, worker: usize, mut count: usize) {
        if count == 0 || self.sleepers.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        for other in (0..self.workers.len()).filter(|&other| other != worker) {
            if count > 0 && self.unpark(other) {
                count -= 1;
            }
        }
    }

    /// Wakes `worker` if it sleeps.
    fn unpark(&self, worker: usize) -> bool {
        let state = &self.workers[worker];
        let sleeps = state.parked.load(Ordering::SeqCst) && state.parked.swap(false, Ordering::SeqCst);
        if sleeps {
            self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
            if let Some(thread) = &*lock(&state.thread) {
                thread.unpark();
            }
        }
        sleeps
    }

    /// Waits until the open stage is another than `seen` (or the pool shuts down) and returns its word.
    fn wait(&self, worker: usize, seen: u64) -> u64 {
        let Waiting { spins, yields } = self.waiting;
        loop {
            let mut word = self.open.0.load(Ordering::Acquire);
            for attempt in 0..spins + yields {
                if unpack(word).0 != seen {
                    return word;
                }
                if attempt < spins {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
                word = self.open.0.load(Ordering::Acquire);
            }
            let (epoch, chunks) = unpack(word);
            if epoch != seen {
                return word;
            }
            if chunks == 0 || !self.help(worker, seen, chunks) {
                break;
            }
        }
        let state = &self.workers[worker];
        state.parked.store(true, Ordering::SeqCst);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        let mut word = self.open.0.load(Ordering::SeqCst);
        while unpack(word).0 == seen
            && state.parked.load(Ordering::SeqCst)
            && !self.shutdown.load(Ordering::SeqCst)
        {
            std::thread::park();
            word = self.open.0.load(Ordering::SeqCst);
        }
        if state.parked.swap(false, Ordering::SeqCst) {
            self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        }
        self.open.0.load(Ordering::SeqCst)
    }
}

/// Someone who reads what belongs to the open stage.
struct Guest<'a>(&'a AtomicU32);

impl<'a> Guest<'a> {
    fn new(guests: &'a AtomicU32) -> Self {
        guests.fetch_add(1, Ordering::SeqCst);
        Self(guests)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
