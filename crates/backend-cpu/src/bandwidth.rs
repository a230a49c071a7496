//! How fast the threads can read memory: the limit of generation, which reads every weight once for each token.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::isa::Features;
use crate::kernels::prefetch::{self, Cache};
use crate::kernels::vector::{Kernel, Vector, dispatch};
use crate::memory::AlignedBuffer;

/// Result of [`read_bandwidth`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bandwidth {
    /// Bytes read in a second by all threads together, in the median pass of the best number of streams: single passes of a
    /// machine that others use, too, are faster than what lasts.
    pub bytes_per_second: f64,
    /// Streams that each thread read at once in these passes.
    pub streams: usize,
}

/// Numbers of streams to try.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

/// Reads `bytes` (rounded down to whole pages for every stream) with `threads` threads again and again for about
/// `time`, each thread a part of its own in one to eight streams, and returns what the best number of streams gives. `None` if there is no
/// memory for it or less than a page for each stream.
pub fn read_bandwidth(features: Features, threads: usize, bytes: usize, time: Duration) -> Option<Bandwidth> {
    const PAGE: usize = 4096;
    let threads = threads.max(1);
    let part = bytes / threads / (8 * PAGE) * (8 * PAGE);
    if part == 0 {
        return None;
    }
    let mut memory = AlignedBuffer::large(part * threads)?;
    // Pages that nobody wrote to are all the same page of zeros. This number is 1.0 in all its four bytes' reading.
    memory.as_mut_slice().fill(0x3f);
    let mut best = Bandwidth { bytes_per_second: 0.0, streams: 0 };
    for streams in STREAMS {
        let begin = Instant::now();
        let mut rates = Vec::new();
        while begin.elapsed() < time / STREAMS.len() as u32 {
            let barrier = Barrier::new(threads);
            let slowest = std::thread::scope(|scope| {
                let workers: Vec<_> = memory
                    .as_slice()
                    .chunks_exact(part)
                    .map(|part| {
                        let barrier = &barrier;
                        scope.spawn(move || {
                            barrier.wait();
                            let start = Instant::now();
                            std::hint::black_box(dispatch(features, Read { part, streams }));
                            start.elapsed()
                        })
                    })
                    .collect();
                workers.into_iter().filter_map(|worker| worker.join().ok()).max()
            })?;
            rates.push((part * threads) as f64 / slowest.as_secs_f64().max(1e-9));
        }
        rates.sort_by(f64::total_cmp);
        let median = rates.get(rates.len() / 2).copied().unwrap_or_default();
        if median > best.bytes_per_second {
            best = Bandwidth { bytes_per_second: median, streams };
        }
    }
    Some(best)
}

struct Read<'a> {
    part: &'a [u8],
    streams: usize,
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Vector>(self) -> f32 {
        match self.streams {
            1 => read::<V, 1>(self.part),
            2 => read::<V, 2>(self.part),
            4 => read::<V, 4>(self.part),
            _ => read::<V, 8>(self.part),
        }
    }
}

/// Touches every number of `part` in `N` streams side by side.
#[inline(always)]
fn read<V: Vector, const N: usize>(part: &[u8]) -> f32 {
    /// How far ahead lines are asked for.
    const AHEAD: usize = 2048;
    /// Numbers of a cache line.
    const LINE: usize = 16;
    let length = part.len() / N;
    let mut totals = [V::splat(0.0); N];
    for line in (0..length).step_by(4 * LINE) {
        for stream in 0..N {
            let place = part.as_ptr().wrapping_add(stream * length + line);
            prefetch::line(Cache::First, place.wrapping_add(AHEAD));
            for number in (0..LINE).step_by(V::LANES) {
                // SAFETY: the streams are whole pages, hence whole lines, of `part`; any bytes are numbers.
                let value = unsafe { V::load(place.cast::<f32>().add(number)) };
                totals[stream] = totals[stream].max(value);
            }
        }
    }
    totals.iter().map(|total| total.largest()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_rate_is_found_at_every_level() {
        for (level, features) in Features::detect().levels() {
            let found = read_bandwidth(features, 2, 1 << 20, Duration::from_millis(4));
            let found = found.unwrap_or_else(|| panic!("{level}: no memory"));
            assert!(found.bytes_per_second > 1e6 && STREAMS.contains(&found.streams), "{level}: {found:?}");
        }
        assert_eq!(read_bandwidth(Features::SCALAR, 2, 1000, Duration::ZERO), None);
    }
}
