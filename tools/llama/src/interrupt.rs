//! Ctrl-C. While something runs that can be stopped ([`busy`]) it is a request to do so, and a second one, before the
//! first was heard, ends the program; otherwise it ends the program at once. Files that were being written are gone
//! then.

use crate::files;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Once = Once::new();

/// From now on Ctrl-C is handled here.
pub fn install() {
    INSTALL.call_once(|| {
        let handler = || {
            let heard = BUSY.load(Ordering::SeqCst) > 0 && !REQUESTED.swap(true, Ordering::SeqCst);
            if !heard {
                files::abandon();
                std::process::exit(130);
            }
        };
        // Without a handler Ctrl-C ends the program, which is acceptable.
        let _ = ctrlc::set_handler(handler);
    });
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
