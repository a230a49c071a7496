//! Ctrl-C as a request to stop what is under way. A second one, before the first was heard, ends the program.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static INSTALL: Once = Once::new();

/// From now on Ctrl-C sets the request instead of ending the program.
pub fn install() {
    INSTALL.call_once(|| {
        let handler = || {
            if REQUESTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        };
        // Without a handler Ctrl-C ends the program, which is acceptable.
        let _ = ctrlc::set_handler(handler);
    });
}

/// True once per Ctrl-C.
pub fn take() -> bool {
    REQUESTED.swap(false, Ordering::SeqCst)
}
