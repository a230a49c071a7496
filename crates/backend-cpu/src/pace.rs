//! How workers behave when a busy thread of somebody else shares a core with one of them.
//!
//! The system takes the core away at the end of a time slice of some milliseconds, which is most likely in the middle
//! of a chunk; then all workers wait for that chunk until the other thread's slice is over, too. Where a chunk takes
//! only microseconds, as in generation, the worker that shares its core costs more than it helps: it rests, for
//! longer each time it is interrupted again, and the others finish the stages without it.

use std::time::{Duration, Instant};

/// Chunks that took less cannot have been interrupted by another thread's slice.
const LONG: Duration = Duration::from_micros(800);
/// Interruptions are cheap for chunks that usually take longer than this.
const SHORT: Duration = Duration::from_micros(200);
/// How old the count of interruptions may be that a long chunk is compared with.
const FRESH: Duration = Duration::from_millis(1);
/// The first rest.
const SHORTEST: Duration = Duration::from_millis(8);
/// No rest is longer: after it, the worker sees whether the core is free again.
const LONGEST: Duration = Duration::from_millis(500);

/// State of one worker.
pub struct Pace {
    /// Times that the system took the core away, and when that was looked at.
    interruptions: i64,
    looked: Instant,
    /// End of the last chunk, or of the wait before the first.
    last: Instant,
    /// Running mean of what chunks take.
    usual: Duration,
    /// Whether a chunk was interrupted since the last rest.
    interrupted: bool,
    /// How long the next rest is.
    rest: Duration,
    /// End of the last rest.
    rested: Instant,
}

impl Pace {
    /// A worker with a core of its own.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            interruptions: 0,
            looked: now,
            last: now,
            usual: Duration::ZERO,
            interrupted: false,
            rest: SHORTEST,
            rested: now,
        }
    }

    /// Called by the worker's thread when it has found work after waiting for it.
    pub fn begin(&mut self) {
        self.last = Instant::now();
        if self.last - self.looked >= FRESH {
            (self.looked, self.interruptions) = (self.last, interruptions());
        }
    }

    /// Called after each chunk.
    pub fn chunk_done(&mut self) {
        let now = Instant::now();
        let time = now - self.last;
        self.last = now;
        let usual = self.usual;
        self.usual = (usual * 15 + time.min(LONG)) / 16;
        if time < LONG || usual > SHORT {
            return;
        }
        let before = self.interruptions;
        (self.looked, self.interruptions) = (now, interruptions());
        self.interrupted |= self.interruptions != before;
    }

    /// Called when the worker holds no chunk: how long to rest, if that is better than to look for work. The rest is
    /// taken to begin now.
    pub fn pause(&mut self) -> Option<Duration> {
        if !std::mem::take(&mut self.interrupted) {
            return None;
        }
        // A long time without interruption is a sign that the last ones had passing reasons.
        let rest = if self.last - self.rested > 2 * self.rest { SHORTEST } else { self.rest };
        self.rest = (2 * rest).min(LONGEST);
        self.rested = self.last + rest;
        Some(rest)
    }
}

/// How many times the system took the core from this thread while it could have gone on.
#[cfg(target_os = "linux")]
fn interruptions() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is valid to write, and zeros are a valid value of it.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    }
}

/// Other systems do not tell it by thread.
#[cfg(not(target_os = "linux"))]
fn interruptions() -> i64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_interruptions_follow_each_other() {
        let mut pace = Pace::new();
        let long_chunk = |pace: &mut Pace, seen: i64, usual: Duration| {
            pace.begin();
            // As if the chunk had begun long ago and the system had counted so many interruptions since.
            pace.last = Instant::now() - 2 * LONG;
            pace.interruptions = interruptions() - seen;
            pace.usual = usual;
            pace.chunk_done();
            pace.pause()
        };
        let usual = Duration::from_micros(10);
        if cfg!(target_os = "linux") {
            assert_eq!(long_chunk(&mut pace, 1, usual), Some(SHORTEST));
            assert_eq!(long_chunk(&mut pace, 1, usual), Some(2 * SHORTEST));
            pace.rested -= 100 * SHORTEST;
            assert_eq!(long_chunk(&mut pace, 1, usual), Some(SHORTEST), "the last rest was long ago");
        }
        assert_eq!(long_chunk(&mut pace, 1, 2 * SHORT), None, "long chunks are worth sharing");
        assert_eq!(long_chunk(&mut pace, 0, usual), None, "long, but not interrupted");
        pace.begin();
        pace.interruptions = interruptions() - 1;
        pace.chunk_done();
        assert_eq!(pace.pause(), None, "interrupted outside of a chunk");
    }
}
