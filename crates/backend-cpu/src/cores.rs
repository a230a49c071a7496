//! Keeps workers off the leader's core.
//!
//! When a busy thread of somebody else holds one of two cores, the system finds two threads of one process on one core
//! and somebody else's on the other well balanced, and leaves them there. A worker that moves away gets a part of the
//! other core. That it often loses it holds up nobody, where chunks are pieces ([`crate::apart`]).

#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

/// For how long a worker keeps off the leader's core once it has met it there.
#[cfg(target_os = "linux")]
const APART: Duration = Duration::from_millis(500);

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
pub struct Cores {
    /// What it may by rights, and until when it keeps off one of these.
    #[cfg(target_os = "linux")]
    kept: Option<(libc::cpu_set_t, Instant)>,
}

#[cfg(target_os = "linux")]
impl Cores {
    /// Leaves the core `leader` if that is where the thread runs and there is another; after a while it may run
    /// everywhere again.
    pub fn keep_off(&mut self, leader: usize) {
        let met = core() == leader;
        match self.kept {
            None if !met => {}
            Some((_, until)) if !met && Instant::now() < until => {}
            _ if met => self.avoid(leader),
            _ => self.forget(),
        }
    }

    fn avoid(&mut self, core: usize) {
        const SIZE: usize = size_of::<libc::cpu_set_t>();
        if core >= 8 * SIZE {
            return;
        }
        // SAFETY: the sets live during the calls, and `core` is a number within them.
        unsafe {
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
            let mut rest = all;
            libc::CPU_CLR(core, &mut rest);
            // If it fails, the thread stays where the system wants it.
            if libc::CPU_COUNT(&rest) > 0 && libc::sched_setaffinity(0, SIZE, &rest) == 0 {
                self.kept = Some((all, Instant::now() + APART));
            }
        }
    }

    fn forget(&mut self) {
        if let Some((all, _)) = self.kept.take() {
            // SAFETY: the set lives during the call.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &all) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Cores {
    /// Systems without such calls place their threads themselves.
    pub fn keep_off(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

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
