//! Room for recursion over what a template nests.
//!
//! The template engine recurses over nested expressions and nested values, without limit when it drops them. How deep
//! they can get is bounded by the length of the source and by the steps of a render, so a thread with a stack in
//! proportion to those cannot overflow. Only the part of a stack that is used takes memory.

use crate::Error;

/// Stack for work that nests nothing.
const BASE: usize = 4 << 20;
/// Stack for each byte of source: a level of an expression takes at least one byte, and its compilation less than this.
pub(crate) const PER_SOURCE_BYTE: usize = 1 << 10;
/// Stack for each step: a level of a value takes at least five steps.
pub(crate) const PER_STEP: usize = 160;

/// Runs `work` on a thread with `room` bytes of stack more than usual.
pub(crate) fn with_room<T: Send>(
    room: usize,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let bytes = BASE.saturating_add(room);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("chat template".to_owned()).stack_size(bytes);
        match builder.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(Error::Thread { bytes, reason: error.to_string() }),
        }
    })
}
