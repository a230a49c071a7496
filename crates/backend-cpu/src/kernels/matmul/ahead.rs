//! In which order the groups of a matrix are read, and how memory is asked for before.

use super::integers::EIGHT_BITS;
use super::layout::{Layout, Pieces};
use crate::isa;
use crate::kernels::prefetch::{self, Cache};
use std::ops::Range;

/// Groups that a kernel reads side by side, one of each of `count` streams. A stream is memory without a gap: all its groups follow
/// each other.
#[derive(Clone, Copy)]
pub(super) struct Abreast {
    pub(super) first: usize,
    /// From the group of one stream to that of the next.
    apart: usize,
    pub(super) count: usize,
    /// Whether the call has no more groups.
    pub(super) last: bool,
}

impl Abreast {
    /// Cuts groups into so many streams, and those that are left into one.
    pub(super) fn cut(groups: Range<usize>, streams: usize) -> impl Iterator<Item = Self> {
        let apart = groups.len() / streams;
        let (end, rest) = (groups.start + apart, groups.start + apart * streams);
        let abreast = (groups.start..end).map(move |first| Self {
            first,
            apart,
            count: streams,
            last: first + 1 == end && rest == groups.end,
        });
        let left = (rest..groups.end).map(move |first| Self {
            first,
            apart: 0,
            count: 1,
            last: first + 1 == groups.end,
        });
        abreast.chain(left)
    }

    /// The group of stream `stream`.
    #[inline(always)]
    pub(super) fn group(self, stream: usize) -> usize {
        self.first + stream * self.apart
    }
}

/// Groups that AVX-512 kernels read side by side. One token waits for memory, and of how many streams it comes fastest is a matter of
/// the processor (docs/performance.md); for more tokens, each number of an activation is read for two groups.
#[cfg(target_arch = "x86_64")]
pub(super) fn streams(layout: Layout, tokens: usize) -> usize {
    match (isa::amd_family(), layout) {
        _ if tokens > 1 => 2,
        (Some(26..), _) => 2,
        (_, Layout::Integer(_)) => 4,
        _ => 2,
    }
}

/// What a kernel that reads groups step by step asks for: the same place some steps later, at the end that in the groups
/// that are read next.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    steps: usize,
    distance: usize,
    jump: isize,
    cache: Cache,
}

impl Ahead {
    /// For groups of `layout` in `steps` steps of `step_bytes` bytes each. `jump` is from a group to the one that is read next in its
    /// stream.
    pub(super) fn new(
        layout: Layout,
        groups: Abreast,
        (steps, step_bytes): (usize, usize),
        jump: isize,
    ) -> Self {
        let (bytes, cache) = Self::reach(layout, groups.count);
        Self { steps, distance: (bytes / step_bytes).clamp(1, steps.max(1)), jump, cache }
    }

    /// Bytes of each stream between what is read and what is asked for, and where it should come to, while `streams` groups are
    /// read side by side. By measurement (docs/performance.md): with Intel's processors memory is slower by up to a tenth at twice
    /// the distance, and nearer it answers too late. With Zen 4, lines for the
    /// first-level cache are in the way of reads of more than two streams, and too far ahead more are under way than there is room
    /// for: with 8 bits nearer than with fewer, which take longer.
    fn reach(layout: Layout, streams: usize) -> (usize, Cache) {
        match (isa::amd_family(), layout) {
            (None | Some(26..), _) => (3072, Cache::First),
            (Some(_), Layout::Integer(EIGHT_BITS)) if streams > 2 => (1024, Cache::Second),
            (Some(_), Layout::Integer(_)) if streams > 2 => (2048, Cache::Second),
            (Some(_), Layout::Integer(_)) => (2048, Cache::First),
            (Some(_), _) => (512, Cache::First),
        }
    }

    /// Asks for the cache line of an address, which need not be valid.
    #[inline(always)]
    pub(super) fn line(self, place: *const u8) {
        prefetch::line(self.cache, place);
    }

    /// The same for `bytes` bytes.
    #[inline(always)]
    pub(super) fn lines(self, place: *const u8, bytes: usize) {
        prefetch::lines(self.cache, place, bytes);
    }

    /// Asks for the scale records that belong to the time of `block` in the group at `group`, if there are any, and returns where the
    /// codes lie that do.
    #[inline(always)]
    pub(super) fn codes(self, pieces: Pieces, group: *const u8, block: usize) -> *const u8 {
        let (jump, target) = self.target(block);
        let group = group.wrapping_offset(jump);
        if let Some((head, bytes)) = pieces.head(target) {
            self.lines(group.wrapping_add(head), bytes);
        }
        group.wrapping_add(pieces.codes(target))
    }

    /// The step to ask for, and how many bytes after the groups at hand those lie that it belongs to.
    #[inline(always)]
    pub(super) fn target(self, step: usize) -> (isize, usize) {
        let target = step + self.distance;
        if target < self.steps { (0, target) } else { (self.jump, target - self.steps) }
    }
}
