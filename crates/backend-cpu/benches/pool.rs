//! Microseconds per stage of the worker pool: `cargo bench -p puna-backend-cpu --bench pool`.
#![allow(clippy::print_stdout)] // a benchmark reports on the terminal

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use puna_backend_cpu::pool::{Pool, Scratch, Stage, Waiting};

struct Tiny {
    chunks: usize,
    /// Dependent additions in a chunk.
    work: u64,
}

impl Stage for Tiny {
    fn chunks(&self) -> usize {
        self.chunks
    }

    fn run(&self, chunk: usize, _: &mut Scratch<'_>) {
        let mut value = chunk as u64;
        for i in 0..self.work {
            value = std::hint::black_box(value + i);
        }
    }
}

/// Median and least microseconds per stage.
fn measure(pool: &Pool, stage: &Tiny) -> (f64, f64) {
    let list: Vec<&dyn Stage> = (0..400).map(|_| stage as &dyn Stage).collect();
    let mut times: Vec<f64> = (0..25)
        .map(|_| {
            let start = Instant::now();
            pool.run(&list).expect("memory");
            start.elapsed().as_secs_f64() * 1e6 / list.len() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn main() {
    println!("threads  chunks  work  us/stage (median and best of 25 runs of 400 stages)");
    for threads in [1, 2] {
        let pool = Pool::new(threads).expect("threads");
        for (chunks, work) in [(1, 0), (2, 0), (8, 0), (2, 200), (8, 200), (64, 200)] {
            let (median, best) = measure(&pool, &Tiny { chunks, work });
            println!("{threads:7} {chunks:7} {work:5}  {median:.3} {best:.3}");
        }
    }
    // A stage of about 100 us on one thread, while another thread computes without pause. Waiting long before
    // parking keeps a preempted worker off the waiter's core.
    let stage = Tiny { chunks: 16, work: 5000 };
    let eager = Waiting { spins: 0, yields: 0 };
    let patient = Waiting { spins: 100_000, yields: 0 };
    for (name, threads, waiting) in [
        ("one thread", 1, Waiting::default()),
        ("two threads", 2, Waiting::default()),
        ("two that park at once", 2, eager),
        ("two that spin for milliseconds", 2, patient),
    ] {
        let pool = Pool::with_waiting(threads, waiting).expect("threads");
        let (alone, _) = measure(&pool, &stage);
        let stop = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(0);
                }
            });
            let (beside, _) = measure(&pool, &stage);
            stop.store(true, Ordering::Relaxed);
            beside
        });
        println!("16 chunks of 5000, {name}: {alone:.1} us alone, {beside:.1} us beside a busy thread");
    }
}
