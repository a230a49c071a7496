//! How workers behave when a busy thread of somebody else shares a core with one of them.
//!
//! The system takes the core away at the end of a time slice of some milliseconds, which is most likely in the middle
//! of a chunk; then all workers wait for that chunk until the other thread's slice is over, too. Where a stage takes
//! only microseconds, as in generation, the worker that shares its core costs more than it helps: it rests, for
//! longer each time it is interrupted again, and the others finish the stages without it.

use std::time::{Duration, Instant};

/// Stages that took less cannot have been interrupted by another thread's slice.
const LONG: Duration = Duration::from_micros(800);
/// Interruptions are cheap for stages that usually take longer than this.
const SHORT: Duration = Duration::from_micros(200);
/// The first rest.
const SHORTEST: Duration = Duration::from_millis(8);
/// No rest is longer: after it, the worker sees whether the core is free again.
const LONGEST: Duration = Duration::from_millis(500);

/// State of one worker.
pub struct Pace {
    /// Times that the system took the core away, as far as looked at.
    interruptions: i64,
    /// End of the last stage.
    last: Instant,
    /// Running mean of what stages take.
    usual: Duration,
    /// How long the next rest is.
    rest: Duration,
    /// End of the last rest.
    rested: Instant,
}

impl Pace {
    /// A worker with a core of its own.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { interruptions: 0, last: now, usual: Duration::ZERO, rest: SHORTEST, rested: now }
    }

    /// Called by the worker's thread when it starts to look for work, and after a rest.
    pub fn begin(&mut self) {
        (self.last, self.interruptions) = (Instant::now(), interruptions());
        self.rested = self.last;
    }

    /// Called between stages, when the worker holds no chunk: how long to rest, if that is better.
    pub fn pause(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let time = now - self.last;
        self.last = now;
        let usual = self.usual;
        self.usual = (usual * 15 + time.min(LONG)) / 16;
        if time < LONG {
            return None;
        }
        let (before, after) = (self.interruptions, interruptions());
        self.interruptions = after;
        if after == before || usual > SHORT {
            return None;
        }
        // A long time without interruption is a sign that the last ones had passing reasons.
        let rest = if now - self.rested > 2 * self.rest { SHORTEST } else { self.rest };
        self.rest = (2 * rest).min(LONGEST);
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
        pace.begin();
        let mut interrupted = || {
            // As if the last stage had ended long ago and the system had counted an interruption since.
            pace.last = Instant::now() - 2 * LONG;
            pace.interruptions = interruptions() - 1;
            pace.usual = Duration::from_micros(10);
            pace.pause()
        };
        let first = interrupted();
        let second = interrupted();
        if cfg!(target_os = "linux") {
            assert_eq!((first, second), (Some(SHORTEST), Some(2 * SHORTEST)));
        }
        pace.usual = 2 * SHORT;
        pace.last = Instant::now() - 2 * LONG;
        pace.interruptions = interruptions() - 1;
        assert_eq!(pace.pause(), None, "long stages are worth sharing");
        assert_eq!(pace.pause(), None, "nothing happened");
    }
}
