//! The worker pool under stress.

#![allow(clippy::print_stderr)] // says what hangs before it ends the program

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use puna_backend_cpu::apart::{Apart, Piece};
use puna_backend_cpu::pool::{Pool, Scratch, Stage, Waiting};

/// Checks that its chunks run once each, after all chunks of the stage before.
struct Counting<'a> {
    chunks: usize,
    /// Chunks run so far in the whole list, and how many there must be before this stage.
    total: &'a AtomicUsize,
    before: usize,
    seen: Vec<AtomicUsize>,
}

impl Stage for Counting<'_> {
    fn chunks(&self) -> usize {
        assert_eq!(
            self.total.load(Ordering::SeqCst),
            self.before,
            "opened before the stage before was complete"
        );
        self.chunks
    }

    fn run(&self, chunk: usize, scratch: &mut Scratch<'_>) {
        assert!(self.total.load(Ordering::SeqCst) >= self.before);
        scratch.floats()[0] = chunk as f32;
        self.seen[chunk].fetch_add(1, Ordering::SeqCst);
        assert_eq!(scratch.floats()[0], chunk as f32, "scratch shared by two workers");
        self.total.fetch_add(1, Ordering::SeqCst);
    }

    fn scratch_bytes(&self) -> usize {
        64
    }
}

fn check(pool: &Pool, sizes: &[usize]) {
    let total = AtomicUsize::new(0);
    let mut before = 0;
    let stages: Vec<Counting<'_>> = sizes
        .iter()
        .map(|&chunks| {
            let seen = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
            let stage = Counting { chunks, total: &total, before, seen };
            before += chunks;
            stage
        })
        .collect();
    let list: Vec<&dyn Stage> = stages.iter().map(|stage| stage as &dyn Stage).collect();
    pool.run(&list).unwrap();
    for stage in &stages {
        for seen in &stage.seen {
            assert_eq!(seen.load(Ordering::SeqCst), 1);
        }
    }
}

#[test]
fn every_chunk_runs_once_and_in_stage_order() {
    for threads in [1, 2, 3, 8] {
        for waiting in [Waiting::default(), Waiting { spins: 0, yields: 0 }, Waiting { spins: 0, yields: 2 }]
        {
            let pool = Pool::with_waiting(threads, waiting).unwrap();
            assert_eq!(pool.threads(), threads);
            check(&pool, &[]);
            check(&pool, &[0, 0, 0]);
            let sizes: Vec<usize> = (0..2000).map(|i| [1, 2, 3, 0, 7, 1, 64, 5][i % 8]).collect();
            check(&pool, &sizes);
            for run in 0..300 {
                check(&pool, &[run % 5, 1, run % 3]);
            }
        }
    }
}

#[test]
fn later_stages_see_the_results_of_earlier_ones() {
    struct Fill<'a>(&'a [AtomicUsize]);
    impl Stage for Fill<'_> {
        fn chunks(&self) -> usize {
            self.0.len()
        }
        fn run(&self, chunk: usize, _: &mut Scratch<'_>) {
            self.0[chunk].store(chunk + 1, Ordering::Relaxed);
        }
    }
    struct Sum<'a>(&'a [AtomicUsize], &'a AtomicUsize);
    impl Stage for Sum<'_> {
        // As many chunks as the first stage left in its last element.
        fn chunks(&self) -> usize {
            self.0.last().unwrap().load(Ordering::Relaxed)
        }
        fn run(&self, chunk: usize, _: &mut Scratch<'_>) {
            self.1.fetch_add(self.0[chunk].load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    let pool = Pool::new(3).unwrap();
    for count in 1..200 {
        let values: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        let sum = AtomicUsize::new(0);
        pool.run(&[&Fill(&values), &Sum(&values, &sum)]).unwrap();
        assert_eq!(sum.into_inner(), count * (count + 1) / 2);
    }
}

#[test]
fn panics_reach_the_caller_and_the_pool_goes_on() {
    struct Panics {
        at: usize,
    }
    impl Stage for Panics {
        fn chunks(&self) -> usize {
            assert!(self.at != 100, "no chunks");
            16
        }
        fn run(&self, chunk: usize, _: &mut Scratch<'_>) {
            assert!(chunk != self.at, "chunk {chunk}");
        }
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        for at in [0, 7, 15, 100] {
            let total = AtomicUsize::new(0);
            let after = Counting { chunks: 1, total: &total, before: 0, seen: vec![AtomicUsize::new(0)] };
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(&[&Panics { at }, &after])));
            let payload = outcome.expect_err("the panic was lost");
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .unwrap_or_else(|| payload.downcast_ref::<&str>().copied().unwrap_or_default().to_owned());
            assert_eq!(text, if at == 100 { "no chunks".to_owned() } else { format!("chunk {at}") });
            assert_eq!(total.load(Ordering::SeqCst), 0, "a stage ran after the panic");
            check(&pool, &[3, 1, 20]);
        }
    }
    std::panic::set_hook(hook);
}

#[test]
fn loops_cover_their_range() {
    for threads in [1, 2, 3] {
        let pool = Pool::new(threads).unwrap();
        for count in [0, 1, 2, 1000, (1 << 20) + 5] {
            let sum = AtomicUsize::new(0);
            pool.parallel_for(count, |index| {
                sum.fetch_add(index + 1, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), count * (count + 1) / 2);
        }
    }
}

#[test]
fn worker_threads_have_names() {
    let pool = Pool::new(2).unwrap();
    let names = std::sync::Mutex::new(std::collections::BTreeSet::new());
    for _ in 0..200 {
        pool.parallel_for(2, |_| {
            names.lock().unwrap().insert(std::thread::current().name().map(str::to_owned));
            std::thread::sleep(std::time::Duration::from_micros(100));
        });
    }
    assert!(names.lock().unwrap().contains(&Some("puna-cpu-1".to_owned())));
}

/// What the pieces of [`Stuck`] share.
#[derive(Default)]
struct Board {
    /// Whether worker 1 is in the middle of a piece, and whether it may go on.
    stuck: AtomicBool,
    release: AtomicBool,
    /// Results of the chunks, added up by whoever stores them.
    results: [AtomicUsize; 8],
}

impl Board {
    /// Waits for a flag, but not for ever.
    fn wait(flag: &AtomicBool) -> bool {
        let start = Instant::now();
        while !flag.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_micros(200));
        }
        flag.load(Ordering::SeqCst)
    }
}

/// Worker 1 gets stuck in its first piece until the run is over; the others begin when it is.
#[derive(Clone, Copy)]
struct Stuck<'a> {
    board: &'a Board,
    chunk: usize,
    worker: usize,
}

// SAFETY: the test keeps the board until the pool is settled; it is made of atomics.
unsafe impl Apart for Stuck<'_> {
    fn input(&self) -> usize {
        0
    }

    unsafe fn prepare(&self, _: &mut [u8]) {}

    unsafe fn compute(&self, scratch: &mut [u8]) {
        scratch[0] = self.chunk as u8 + 1;
        if self.worker != 1 {
            assert!(Board::wait(&self.board.stuck), "worker 1 took no piece");
        } else if !self.board.stuck.swap(true, Ordering::SeqCst) {
            Board::wait(&self.board.release);
        }
    }

    unsafe fn store(&self, scratch: &[u8]) {
        self.board.results[self.chunk].fetch_add(scratch[0].into(), Ordering::SeqCst);
    }
}

/// Longer than any of the pieces here takes that is not stuck.
const PATIENCE: Option<Duration> = Some(Duration::from_micros(50));

impl Stage for Stuck<'_> {
    fn chunks(&self) -> usize {
        self.board.results.len()
    }

    fn run(&self, _: usize, _: &mut Scratch<'_>) {
        panic!("chunks are pieces");
    }

    fn patience(&self) -> Option<Duration> {
        PATIENCE
    }

    fn piece(&self, chunk: usize, worker: usize) -> Option<Piece> {
        Some(Piece::new(Stuck { chunk, worker, ..*self }))
    }

    fn scratch_bytes(&self) -> usize {
        64
    }
}

#[test]
fn a_worker_that_is_stuck_in_a_piece_holds_up_nobody() {
    for threads in [2, 3] {
        let board = Board::default();
        let pool = Pool::new(threads).unwrap();
        let right = || {
            for (chunk, result) in board.results.iter().enumerate() {
                assert_eq!(result.load(Ordering::SeqCst), chunk + 1, "chunk {chunk} is stored once");
            }
        };
        pool.run(&[&Stuck { board: &board, chunk: 0, worker: 0 }]).unwrap();
        right();
        assert!(!board.release.load(Ordering::SeqCst), "the run ended before worker 1 went on");
        // The others go on without it.
        if threads > 2 {
            check(&pool, &[1, 5, 9]);
        }
        board.release.store(true, Ordering::SeqCst);
        pool.settle();
        right();
        check(&pool, &[4, 1, 17]);
    }
}

/// A piece that panics.
#[derive(Clone, Copy)]
struct Broken;

// SAFETY: it reads nothing.
unsafe impl Apart for Broken {
    fn input(&self) -> usize {
        0
    }

    unsafe fn prepare(&self, _: &mut [u8]) {}

    unsafe fn compute(&self, _: &mut [u8]) {
        panic!("a broken piece");
    }

    unsafe fn store(&self, _: &[u8]) {}
}

impl Stage for Broken {
    fn chunks(&self) -> usize {
        3
    }

    fn run(&self, _: usize, _: &mut Scratch<'_>) {}

    fn patience(&self) -> Option<Duration> {
        PATIENCE
    }

    fn piece(&self, _: usize, _: usize) -> Option<Piece> {
        Some(Piece::new(*self))
    }
}

#[test]
fn a_panic_in_a_piece_reaches_the_caller_once() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..50 {
        assert!(catch_unwind(AssertUnwindSafe(|| pool.run(&[&Broken]))).is_err());
        check(&pool, &[2, 3]);
    }
}

/// Numbers of a stage of [`Mixing`].
const NUMBERS: usize = 24;

/// Replaces numbers by what all of them give together, so that anything that is lost, late or done twice shows in the
/// end. The places are used again two stages later.
#[derive(Clone, Copy)]
struct Mixing<'a> {
    from: &'a [AtomicU64; NUMBERS],
    to: &'a [AtomicU64; NUMBERS],
    /// How often results were stored.
    stored: &'a AtomicUsize,
    stage: usize,
    chunks: usize,
    chunk: usize,
    /// A chunk of so many has to wait for a moment in the middle, as if it had lost its core; 0: none.
    slow: usize,
}

impl Mixing<'_> {
    fn range(self) -> std::ops::Range<usize> {
        self.chunk * NUMBERS / self.chunks..(self.chunk + 1) * NUMBERS / self.chunks
    }

    /// One result.
    fn mix(from: &[u64], stage: usize, index: usize) -> u64 {
        from.iter().fold((stage * NUMBERS + index) as u64, |sum, number| {
            (sum.rotate_left(7) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
    }
}

// SAFETY: `compute` reads its scratch memory only.
unsafe impl Apart for Mixing<'_> {
    fn input(&self) -> usize {
        self.from.as_ptr().addr()
    }

    unsafe fn prepare(&self, scratch: &mut [u8]) {
        let scratch: &mut [u64] = bytemuck::cast_slice_mut(&mut scratch[..8 * NUMBERS]);
        scratch.iter_mut().zip(self.from).for_each(|(copy, number)| *copy = number.load(Ordering::Relaxed));
    }

    unsafe fn compute(&self, scratch: &mut [u8]) {
        let scratch: &mut [u64] = bytemuck::cast_slice_mut(&mut scratch[..16 * NUMBERS]);
        let (from, to) = scratch.split_at_mut(NUMBERS);
        if self.slow > 0 && (self.stage * 31 + self.chunk).is_multiple_of(self.slow) {
            std::thread::sleep(Duration::from_micros(self.stage as u64 % 3 * 100));
        }
        self.range().for_each(|index| to[index] = Self::mix(from, self.stage, index));
    }

    unsafe fn store(&self, scratch: &[u8]) {
        let scratch: &[u64] = bytemuck::cast_slice(&scratch[..16 * NUMBERS]);
        self.range().for_each(|index| self.to[index].store(scratch[NUMBERS + index], Ordering::Relaxed));
        self.stored.fetch_add(1, Ordering::Relaxed);
    }
}

impl Stage for Mixing<'_> {
    fn chunks(&self) -> usize {
        self.chunks
    }

    fn run(&self, chunk: usize, scratch: &mut Scratch<'_>) {
        let this = Mixing { chunk, ..*self };
        // SAFETY: the stage is open, and its chunks store to places of their own.
        unsafe {
            this.prepare(scratch.bytes);
            this.compute(scratch.bytes);
            this.store(scratch.bytes);
        }
    }

    fn patience(&self) -> Option<Duration> {
        // Stages of pieces and others, and pieces that are computed twice even where nobody loses a core.
        (!self.stage.is_multiple_of(3)).then_some(Duration::from_micros(self.stage as u64 % 20))
    }

    fn piece(&self, chunk: usize, _: usize) -> Option<Piece> {
        self.patience().map(|_| Piece::new(Mixing { chunk, ..*self }))
    }

    fn scratch_bytes(&self) -> usize {
        16 * NUMBERS
    }
}

/// Ends the program if it is not dropped in time: a pool that hangs would hang the tests.
struct Watchdog {
    _alive: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    fn new(what: String) -> Self {
        let (_alive, gone) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            if gone.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what} hangs");
                std::process::abort();
            }
        });
        Self { _alive }
    }
}

#[test]
fn nothing_is_lost_or_done_twice_beside_a_busy_thread() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for threads in [1, 2, 3, 5] {
                for spins in [0, 200] {
                    stress(threads, Waiting { spins, ..Waiting::default() });
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
    });
}

fn stress(threads: usize, waiting: Waiting) {
    let _watchdog = Watchdog::new(format!("a pool of {threads} threads with {waiting:?}"));
    let pool = Pool::with_waiting(threads, waiting).unwrap();
    let start = Instant::now();
    let mut round = 0;
    while start.elapsed() < Duration::from_millis(600) {
        round += 1;
        let places: [[AtomicU64; NUMBERS]; 2] = Default::default();
        let stored = AtomicUsize::new(0);
        let mut right = vec![0; NUMBERS];
        let stages: Vec<Mixing<'_>> = (0..round * 7 % 100)
            .map(|stage| {
                right = (0..NUMBERS).map(|index| Mixing::mix(&right, stage, index)).collect();
                let (from, to) = (&places[stage % 2], &places[(stage + 1) % 2]);
                let chunks = [1, 2, 3, 8, NUMBERS][(stage + round) % 5];
                let slow = [0, 11, 40][round % 3];
                Mixing { from, to, stored: &stored, stage, chunks, chunk: 0, slow }
            })
            .collect();
        let list: Vec<&dyn Stage> = stages.iter().map(|stage| stage as &dyn Stage).collect();
        pool.run(&list).unwrap();
        let found = places[stages.len() % 2].iter().map(|number| number.load(Ordering::Relaxed));
        assert_eq!(found.collect::<Vec<_>>(), right, "round {round} with {threads} threads");
        let chunks: usize = stages.iter().map(|stage| stage.chunks).sum();
        assert_eq!(stored.load(Ordering::Relaxed), chunks, "round {round} with {threads} threads");
    }
    assert!(round > 10, "{threads} threads made {round} rounds only");
    pool.settle();
}
