//! Ctrl-C. While something runs that can be stopped ([`busy`]) it is a request to do so, and a second one, before the
//! first was heard, ends the program; otherwise it ends the program at once. Files that were being written are gone
//! then, and so they are when the program is told to end (SIGTERM) or its terminal is closed (SIGHUP), which end it always.

use crate::files;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Once = Once::new();

/// From now on Ctrl-C and the end are handled here. To be called before there are other threads.
pub fn install() {
    INSTALL.call_once(|| {
        #[cfg(unix)]
        ends::install();
        handle_ctrl_c();
    });
}

/// The same for what hears of its end itself.
pub fn install_ctrl_c() {
    INSTALL.call_once(handle_ctrl_c);
}

fn handle_ctrl_c() {
    let handler = || {
        let heard = BUSY.load(Ordering::SeqCst) > 0 && !REQUESTED.swap(true, Ordering::SeqCst);
        if !heard {
            files::abandon();
            std::process::exit(130);
        }
    };
    // Without a handler Ctrl-C ends the program, which is acceptable.
    let _ = ctrlc::set_handler(handler);
}

/// Signals that end the program.
#[cfg(unix)]
mod ends {
    use nix::sys::signal::{SigSet, Signal, raise};

    /// Waits for them on a thread of its own: they are blocked everywhere else, in threads that start later, too.
    pub(super) fn install() {
        let ignored = ignored();
        let signals = [Signal::SIGTERM, Signal::SIGHUP];
        let signals = signals.into_iter().filter(|signal| ignored & 1 << (*signal as u32 - 1) == 0);
        let signals: SigSet = signals.collect();
        // Without this they end the program, which is acceptable.
        if signals.iter().next().is_none() || signals.thread_block().is_err() {
            return;
        }
        let waiting = std::thread::Builder::new().name("signals".into()).spawn(move || {
            let Ok(signal) = signals.wait() else { return };
            crate::files::abandon();
            // Whoever waits for the program is to see what ended it.
            let _ = signals.thread_unblock();
            let _ = raise(signal);
            std::process::exit(128 + signal as i32);
        });
        if waiting.is_err() {
            let _ = signals.thread_unblock();
        }
    }

    /// The signals that do not end the program because whoever started it said so (`nohup`), a bit each. A blocked one would
    /// be waited for all the same. Where that cannot be known, a closed terminal is left alone.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.unwrap_or(1 << (Signal::SIGHUP as u32 - 1))
    }
}

/// A limit on the size of files (`ulimit -f`) becomes an error of the write that meets it, as a full disk is, in place of
/// a signal that ends the program. Threads that start later inherit this.
pub fn limits_are_errors() {
    #[cfg(unix)]
    {
        use nix::sys::signal::{SigSet, Signal};
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGXFSZ);
        // Without it the limit ends the program, which is acceptable.
        let _ = blocked.thread_block();
    }
}

/// Something that looks for requests, until it is dropped.
pub struct Busy(());

/// Says that something begins that calls [`take`] now and then. A request that came before belongs to something
/// else and is forgotten.
pub fn busy() -> Busy {
    if BUSY.fetch_add(1, Ordering::SeqCst) == 0 {
        take();
    }
    Busy(())
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// True once per Ctrl-C.
pub fn take() -> bool {
    REQUESTED.swap(false, Ordering::SeqCst)
}
