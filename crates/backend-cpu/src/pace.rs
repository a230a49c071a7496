//! How a worker behaves when a busy thread of somebody else wants its core.
//!
//! The system then runs both in turns of some milliseconds. A worker that loses its core while it computes a piece holds
//! up nobody ([`crate::apart`]), so half a core is worth having. Stages without pieces it leaves to the others. And it
//! keeps off the leader's core: the system finds two threads of one process on one core and somebody else's on the
//! other well balanced, and leaves them there.

use std::time::{Duration, Instant};

/// For how long a worker counts on losing its core again: several turns of two threads.
const SHARED: Duration = Duration::from_millis(100);
/// For how long it keeps off the leader's core once it has met it there.
const APART: Duration = Duration::from_millis(500);

/// State of one worker.
pub struct Pace {
    /// Until when the core counts as shared.
    shared: Option<Instant>,
    cores: Cores,
}

impl Pace {
    /// A worker with a core of its own; called on its thread.
    pub fn new() -> Self {
        Self { shared: None, cores: Cores::default() }
    }

    /// Called when another worker took over this one's piece.
    pub fn lost(&mut self) {
        self.shared = Some(Instant::now() + SHARED);
    }

    /// Called when a stage is open that other workers will do if this one does not: whether this one should take part.
    pub fn takes_part(&mut self, pieces: bool, leader: usize) -> bool {
        self.cores.keep_off(leader);
        let Some(until) = self.shared else { return true };
        if Instant::now() > until {
            self.shared = None;
        }
        pieces || self.shared.is_none()
    }
}

/// Number of the core that the calling thread runs on, if the system tells.
pub fn core() -> usize {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the function has no preconditions.
        usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
    }
    #[cfg(not(target_os = "linux"))]
    usize::MAX
}

/// The cores that the worker's thread may run on.
#[derive(Default)]
struct Cores {
    /// What it may by rights, and until when it keeps off one of these.
    #[cfg(target_os = "linux")]
    kept: Option<(libc::cpu_set_t, Instant)>,
}

#[cfg(target_os = "linux")]
impl Cores {
    /// Leaves the core `leader` if that is where the thread runs and there is another.
    fn keep_off(&mut self, leader: usize) {
        const SIZE: usize = size_of::<libc::cpu_set_t>();
        let met = core() == leader && leader < 8 * SIZE;
        match self.kept {
            None if !met => {}
            Some((_, until)) if !met && Instant::now() < until => {}
            // SAFETY: the sets live during the calls, and `leader` is a number within them.
            _ => unsafe {
                let all = match self.kept {
                    Some((all, _)) => all,
                    None => {
                        let mut all: libc::cpu_set_t = std::mem::zeroed();
                        if libc::sched_getaffinity(0, SIZE, &mut all) != 0 {
                            return;
                        }
                        all
                    }
                };
                let mut set = all;
                if met {
                    libc::CPU_CLR(leader, &mut set);
                    if libc::CPU_COUNT(&set) == 0 {
                        return;
                    }
                }
                // If it fails, the thread stays where the system wants it.
                libc::sched_setaffinity(0, SIZE, &set);
                self.kept = met.then(|| (all, Instant::now() + APART));
            },
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Cores {
    fn keep_off(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_lost_its_core_takes_part_in_pieces_only_and_for_a_while() {
        let mut pace = Pace::new();
        assert!(pace.takes_part(false, usize::MAX) && pace.takes_part(true, usize::MAX));
        pace.lost();
        assert!(!pace.takes_part(false, usize::MAX) && pace.takes_part(true, usize::MAX));
        pace.shared = Some(Instant::now() - Duration::from_millis(1));
        assert!(pace.takes_part(false, usize::MAX));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_worker_leaves_the_leaders_core() {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return println!("skipped: there is only one core");
        }
        std::thread::spawn(|| {
            let (mut cores, leader) = (Cores::default(), core());
            cores.keep_off(leader);
            if cores.kept.is_some() {
                assert_ne!(core(), leader);
            }
            let until = cores.kept.map(|(all, _)| (all, Instant::now() - APART));
            cores.kept = until;
            cores.keep_off(usize::MAX);
            assert!(cores.kept.is_none(), "it may go everywhere again");
        })
        .join()
        .unwrap();
    }
}
