//! How workers behave when a busy thread of somebody else shares a core with one of them.
//!
//! The system takes the core away at the end of a time slice of some milliseconds, most likely in the middle of a chunk;
//! then all workers wait for that chunk until the other thread's slice is over, too. Or it moves two workers to one
//! core, where one looks for work that the other could do if it ran. Where a stage takes only microseconds, as in
//! generation, the worker that has to wait for a core costs more than it helps: it rests, for longer each time that
//! follows soon, and the others finish the stages without it.

use std::time::{Duration, Instant};

/// How often to look, at most: several time slices, for a single one that is lost costs less than a rest.
const LOOK: Duration = Duration::from_millis(16);
/// A worker that waits for less than this part of the time is worth its core.
const PART: u32 = 4;
/// Where stages usually take longer than this, half a core is better than none.
const SHORT: Duration = Duration::from_micros(200);
/// Longer stages count as this in the mean.
const LONG: Duration = Duration::from_micros(800);
/// The first rest.
const SHORTEST: Duration = Duration::from_millis(32);
/// No rest is longer: after it, the worker sees whether the core is free again.
const LONGEST: Duration = Duration::from_millis(500);

/// State of one worker.
pub struct Pace {
    queue: Queue,
    /// Time spent waiting for a core, and when that was looked at.
    lost: Duration,
    looked: Instant,
    /// Start of the stage at hand.
    started: Instant,
    /// Running mean of what stages take.
    usual: Duration,
    /// How long the next rest is.
    rest: Duration,
    /// End of the last rest.
    rested: Instant,
}

impl Pace {
    /// A worker with a core of its own; called on its thread.
    pub fn new() -> Self {
        let (mut queue, now) = (Queue::open(), Instant::now());
        let lost = queue.waited();
        Self { queue, lost, looked: now, started: now, usual: Duration::ZERO, rest: SHORTEST, rested: now }
    }

    /// Called when the worker has found work and holds no chunk yet: how long to rest, if that is better.
    pub fn begin(&mut self) -> Option<Duration> {
        self.started = Instant::now();
        let time = self.started - self.looked;
        if time < LOOK {
            return None;
        }
        let before = self.look();
        self.judge(time, self.lost.saturating_sub(before))
    }

    /// Called after the worker's share of a stage.
    pub fn end(&mut self) {
        self.usual = (self.usual * 15 + self.started.elapsed().min(LONG)) / 16;
    }

    /// Called after a rest.
    pub fn rested(&mut self) {
        self.look();
        self.rested = self.looked;
    }

    /// Takes in how long the thread has waited for a core; returns what was known before.
    fn look(&mut self) -> Duration {
        self.looked = Instant::now();
        std::mem::replace(&mut self.lost, self.queue.waited())
    }

    /// How long to rest if of the last `time` so much was lost.
    fn judge(&mut self, time: Duration, lost: Duration) -> Option<Duration> {
        if lost * PART < time || self.usual > SHORT {
            return None;
        }
        // A long time without a wait is a sign that the last ones had passing reasons.
        let rest = if self.looked - self.rested > 2 * self.rest { SHORTEST } else { self.rest };
        self.rest = (2 * rest).min(LONGEST);
        Some(rest)
    }
}

/// The system's account of how long a thread was ready to run but had no core.
struct Queue {
    #[cfg(target_os = "linux")]
    file: Option<std::fs::File>,
}

impl Queue {
    /// The account of this thread. Where the system has none, it never waits.
    fn open() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            file: std::fs::File::open("/proc/thread-self/schedstat").ok(),
        }
    }

    /// The second number of the file, in nanoseconds.
    #[cfg(target_os = "linux")]
    fn waited(&mut self) -> Duration {
        use std::os::unix::fs::FileExt;
        let mut text = [0; 96];
        let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let words = std::str::from_utf8(&text[..read]).unwrap_or_default();
        let number = words.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(number.unwrap_or(0))
    }

    #[cfg(not(target_os = "linux"))]
    fn waited(&mut self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_waits_follow_each_other() {
        let mut pace = Pace::new();
        let ms = Duration::from_millis;
        pace.usual = Duration::from_micros(10);
        assert_eq!(pace.judge(ms(16), ms(8)), Some(SHORTEST));
        assert_eq!(pace.judge(ms(16), ms(8)), Some(2 * SHORTEST));
        for _ in 0..10 {
            pace.judge(ms(16), ms(8));
        }
        assert_eq!(pace.judge(ms(16), ms(8)), Some(LONGEST));
        pace.looked = pace.rested + 3 * LONGEST;
        assert_eq!(pace.judge(ms(16), ms(8)), Some(SHORTEST), "the last rest was long ago");
        assert_eq!(pace.judge(ms(16), ms(3)), None, "a small part of the time");
        pace.usual = 2 * SHORT;
        assert_eq!(pace.judge(ms(16), ms(8)), None, "long stages are worth sharing");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_account_grows_while_threads_share_a_core() {
        if !std::path::Path::new("/proc/thread-self/schedstat").exists() {
            return println!("skipped: this system keeps no such account");
        }
        // More threads than cores, all of them busy.
        let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from) + 1;
        let waited = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut queue, start) = (Queue::open(), Instant::now());
                        while start.elapsed() < Duration::from_millis(60) {
                            std::hint::spin_loop();
                        }
                        queue.waited()
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum::<Duration>()
        });
        assert!(waited > Duration::from_millis(1), "{waited:?}");
    }
}
