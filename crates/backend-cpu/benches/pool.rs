//! Microseconds per stage of the worker pool: `cargo bench -p puna-backend-cpu --bench pool`.
#![allow(clippy::print_stdout)] // a benchmark reports on the terminal

use std::time::Instant;

use puna_backend_cpu::pool::{Pool, Scratch, Stage};

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

fn main() {
    println!("threads  chunks  work  us/stage (median and best of 25 runs of 400 stages)");
    for threads in [1, 2] {
        let pool = match Pool::new(threads) {
            Ok(pool) => pool,
            Err(error) => return println!("{error}"),
        };
        for (chunks, work) in [(1, 0), (2, 0), (8, 0), (2, 200), (8, 200), (64, 200)] {
            let stage = Tiny { chunks, work };
            let list: Vec<&dyn Stage> = (0..400).map(|_| &stage as &dyn Stage).collect();
            let mut times: Vec<f64> = (0..25)
                .map(|_| {
                    let start = Instant::now();
                    if let Err(error) = pool.run(&list) {
                        println!("{error}");
                    }
                    start.elapsed().as_secs_f64() * 1e6 / list.len() as f64
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!("{threads:7} {chunks:7} {work:5}  {:.3} {:.3}", times[times.len() / 2], times[0]);
        }
    }
}
