//! Work memory of a program: slots with lifetimes, laid out once so that slots share bytes when they never
//! live at the same time.

use puna_graph::Symbol;

/// Index of a slot in an [`Arena`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId(pub usize);

/// One value's memory.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The step's axis of the value.
    pub symbol: Symbol,
    /// Numbers in one row.
    pub width: usize,
    /// Bytes in all, at the bounds of the program.
    pub bytes: usize,
    first: usize,
    last: usize,
    /// Byte at which it starts; known after [`Arena::lay_out`].
    pub offset: usize,
}

/// All slots of a program.
#[derive(Clone, Default, Debug)]
pub struct Arena {
    slots: Vec<Slot>,
    bytes: usize,
}

/// Enough for vector registers and for the transactions of devices.
const ALIGNMENT: usize = 256;

impl Arena {
    /// A new slot that lives in task `task`.
    pub fn add(&mut self, symbol: Symbol, width: usize, bytes: usize, task: usize) -> SlotId {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        self.slots.push(Slot { symbol, width, bytes, first: task, last: task, offset: 0 });
        SlotId(self.slots.len() - 1)
    }

    /// The slot is used by task `task`.
    pub fn touch(&mut self, slot: SlotId, task: usize) {
        let slot = &mut self.slots[slot.0];
        slot.first = slot.first.min(task);
        slot.last = slot.last.max(task);
    }

    /// The slot has room for at least so many bytes.
    pub fn grow(&mut self, slot: SlotId, bytes: usize) {
        let slot = &mut self.slots[slot.0];
        slot.bytes = slot.bytes.max(bytes.next_multiple_of(ALIGNMENT));
    }

    /// The slot.
    pub fn slot(&self, slot: SlotId) -> &Slot {
        &self.slots[slot.0]
    }

    /// Bytes of work memory, after [`Arena::lay_out`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives every slot its place: largest first, each at the lowest offset that is free during its life.
    pub fn lay_out(&mut self) {
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        order.sort_by_key(|index| (std::cmp::Reverse(self.slots[*index].bytes), *index));
        let mut placed: Vec<usize> = Vec::with_capacity(order.len());
        for index in order {
            let slot = self.slots[index];
            let mut busy: Vec<(usize, usize)> = placed
                .iter()
                .map(|other| &self.slots[*other])
                .filter(|other| other.first <= slot.last && slot.first <= other.last)
                .map(|other| (other.offset, other.offset + other.bytes))
                .collect();
            busy.sort_unstable();
            let mut offset = 0;
            for (start, end) in busy {
                if offset + slot.bytes <= start {
                    break;
                }
                offset = offset.max(end);
            }
            self.slots[index].offset = offset;
            self.bytes = self.bytes.max(offset + slot.bytes);
            placed.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_live_together_never_overlap() {
        let mut arena = Arena::default();
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let first = random(50) as usize;
            let slot = arena.add(Symbol::Tokens, 1, 1 + random(1000) as usize, first);
            arena.touch(slot, first + random(10) as usize);
        }
        arena.lay_out();
        for (index, a) in arena.slots.iter().enumerate() {
            assert!(a.offset + a.bytes <= arena.bytes());
            for b in &arena.slots[..index] {
                let together = a.first <= b.last && b.first <= a.last;
                let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                assert!(!together || apart, "{a:?} overlaps {b:?}");
            }
        }
        let separate: usize = arena.slots.iter().map(|slot| slot.bytes).sum();
        assert!(arena.bytes() < separate / 3, "{} of {separate} bytes", arena.bytes());
    }
}
