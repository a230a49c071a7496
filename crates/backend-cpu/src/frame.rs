//! What tasks see while a step runs.

use puna_graph::{Step, Symbol};

use crate::isa::Features;
use crate::kernels::rows::{Rows, RowsMut};
use crate::memory::AlignedBuffer;
use crate::precision::Precision;
use crate::states::Caches;
use crate::weights::Weights;
use puna_backend::arena::{Arena, SlotId};

/// A step, and the memory that the program works in.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Data of the step.
    pub step: &'a Step,
    /// Instruction sets in use.
    pub features: Features,
    /// Workers that share the tasks.
    pub threads: usize,
    /// Weights of the segment.
    pub weights: &'a Weights,
    /// Caches of the segment.
    pub caches: &'a Caches,
    /// Places of the values.
    pub arena: &'a Arena,
    /// Memory of the values. The order of tasks and the disjoint ranges of chunks keep accesses apart.
    pub memory: &'a AlignedBuffer,
}

impl Frame<'_> {
    /// The number a symbol stands for.
    pub fn extent(&self, symbol: Symbol) -> usize {
        self.step.extent(symbol)
    }

    /// How far the step's kernels may depart from f32.
    pub fn precision(&self) -> Precision {
        self.weights.precision().of(self.step)
    }

    /// First byte of a slot.
    pub fn pointer(&self, slot: SlotId) -> *mut u8 {
        // SAFETY: the arena laid the slot out within this memory.
        unsafe { self.memory.as_pointer().add(self.arena.slot(slot).offset) }
    }

    /// The slot's rows, to read.
    pub fn rows(&self, slot: SlotId) -> Rows<'_> {
        let place = self.arena.slot(slot);
        let rows = self.extent(place.symbol);
        // SAFETY: the slot has room for the rows of any step within the program's bounds, and tasks that write
        // it ran before this one.
        unsafe { Rows::from_raw(self.pointer(slot).cast(), rows, place.width, place.width) }
    }

    /// The slot's rows, to write.
    pub fn rows_mut(&self, slot: SlotId) -> RowsMut<'_> {
        let place = self.arena.slot(slot);
        let rows = self.extent(place.symbol);
        // SAFETY: as for `rows`; chunks write rows or columns of their own.
        unsafe { RowsMut::from_raw(self.pointer(slot).cast(), rows, place.width, place.width) }
    }

    /// All numbers of a slot.
    pub fn floats(&self, slot: SlotId) -> &[f32] {
        let place = self.arena.slot(slot);
        // SAFETY: as for `rows`.
        unsafe {
            std::slice::from_raw_parts(self.pointer(slot).cast(), self.extent(place.symbol) * place.width)
        }
    }

    /// All integers of a slot that holds integers.
    pub fn integers(&self, slot: SlotId) -> &[i32] {
        let place = self.arena.slot(slot);
        // SAFETY: as for `rows`; any bytes are integers.
        unsafe {
            std::slice::from_raw_parts(self.pointer(slot).cast(), self.extent(place.symbol) * place.width)
        }
    }
}
