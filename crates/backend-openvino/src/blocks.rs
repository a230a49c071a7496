//! Memory of a paged cache.

use half::{bf16, f16};
use puna_backend::BackendError;

use crate::caches::Turn;
use crate::ir::Element;
use crate::pages::{BLOCK, Slot};

/// The keys or the values of one state, `[blocks, heads, 32, width]`.
pub(crate) struct Blocks {
    heads: usize,
    width: usize,
    element: Element,
    count: usize,
    /// Of caches of f16 the blocks that hold bf16 now, because a program for prompts wrote them.
    has_bf16: Vec<bool>,
    /// Words of four bytes keep the memory aligned.
    words: Vec<u32>,
}

impl Blocks {
    pub(crate) fn new(heads: usize, width: usize, element: Element) -> Self {
        Self { heads, width, element, count: 0, has_bf16: Vec::new(), words: Vec::new() }
    }

    pub(crate) fn element(&self) -> Element {
        self.element
    }

    /// Sets the type of the numbers, of which there are none yet.
    pub(crate) fn set_element(&mut self, element: Element) {
        self.element = element;
        self.count = 0;
        self.has_bf16.clear();
        self.words.clear();
    }

    pub(crate) fn shape(&self) -> Vec<i64> {
        vec![self.count as i64, self.heads as i64, BLOCK as i64, self.width as i64]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }

    fn row_bytes(&self) -> usize {
        self.width * self.element.bits() / 8
    }

    /// Bytes of one cell when it is saved.
    pub(crate) fn cell_bytes(&self) -> usize {
        self.heads * self.row_bytes()
    }

    /// Room for at least so many blocks.
    pub(crate) fn make_room(&mut self, blocks: usize) -> Result<(), BackendError> {
        if blocks <= self.count {
            return Ok(());
        }
        // Growing by a quarter keeps copies rare.
        let count = blocks.max(self.count + self.count / 4 + 1);
        let bytes = count.saturating_mul(BLOCK).saturating_mul(self.cell_bytes());
        let words = bytes.div_ceil(4);
        self.words.try_reserve_exact(words - self.words.len()).map_err(|_| BackendError::OutOfMemory {
            device: "OpenVINO".to_owned(),
            bytes: bytes as u64,
            purpose: "caches",
        })?;
        self.words.resize(words, 0);
        self.has_bf16.resize(count, false);
        self.count = count;
        Ok(())
    }

    /// Sees to it that a run's blocks hold bf16, or that they hold the cache's own numbers. `past`: cells of them that
    /// hold something.
    pub(crate) fn express(&mut self, blocks: &[u32], past: usize, bf16: bool) {
        for (index, block) in blocks.iter().enumerate() {
            let block = *block as usize;
            if self.has_bf16.get(block).is_none_or(|has| *has == bf16) {
                continue;
            }
            self.has_bf16[block] = bf16;
            if index * BLOCK < past {
                let bytes = BLOCK * self.cell_bytes();
                let numbers: &mut [u16] =
                    bytemuck::cast_slice_mut(&mut self.bytes_mut()[block * bytes..][..bytes]);
                match bf16 {
                    true => numbers
                        .iter_mut()
                        .for_each(|x| *x = bf16::from_f32(f16::from_bits(*x).to_f32()).to_bits()),
                    false => numbers
                        .iter_mut()
                        .for_each(|x| *x = f16::from_f32(bf16::from_bits(*x).to_f32()).to_bits()),
                }
            }
        }
    }

    /// Sees to it that the block of a slot holds the cache's own numbers.
    fn settle(&mut self, slot: Slot) {
        self.express(&[slot.block], BLOCK, false);
    }

    fn row(&self, slot: Slot, head: usize) -> std::ops::Range<usize> {
        let row = (slot.block as usize * self.heads + head) * BLOCK + slot.offset as usize;
        row * self.row_bytes()..(row + 1) * self.row_bytes()
    }

    pub(crate) fn copy(&mut self, copies: &[(Slot, Slot)]) {
        for (from, to) in copies {
            self.settle(*from);
            self.settle(*to);
            for head in 0..self.heads {
                let (from, to) = (self.row(*from, head), self.row(*to, head));
                self.bytes_mut().copy_within(from, to.start);
            }
        }
    }

    /// Turns pairs of a key by a change of position.
    pub(crate) fn turn(&mut self, slot: Slot, delta: i32, turn: &Turn) {
        self.settle(slot);
        for head in 0..self.heads {
            let range = self.row(slot, head);
            let element = self.element;
            let row = &mut self.bytes_mut()[range];
            let mut floats = decoded(row, element);
            turn.turn(&mut floats, delta);
            encode(&floats, element, row);
        }
    }

    /// Appends a cell's numbers; zeros for a cell that is nowhere.
    pub(crate) fn save(&mut self, slot: Option<Slot>, bytes: &mut Vec<u8>) {
        slot.into_iter().for_each(|slot| self.settle(slot));
        for head in 0..self.heads {
            match slot {
                Some(slot) => bytes.extend_from_slice(&self.bytes()[self.row(slot, head)]),
                None => bytes.resize(bytes.len() + self.row_bytes(), 0),
            }
        }
    }

    /// Takes a cell's numbers, as many as [`Blocks::cell_bytes`].
    pub(crate) fn restore(&mut self, slot: Slot, bytes: &[u8]) {
        self.settle(slot);
        for (head, bytes) in bytes.chunks_exact(self.row_bytes().max(1)).enumerate() {
            let range = self.row(slot, head);
            self.bytes_mut()[range].copy_from_slice(bytes);
        }
    }
}

/// Numbers of one format in another.
pub(crate) fn recast(bytes: Vec<u8>, from: Element, to: Element) -> Vec<u8> {
    if from == to {
        return bytes;
    }
    let floats = decoded(&bytes, from);
    let mut recast = vec![0; floats.len() * to.bits() / 8];
    encode(&floats, to, &mut recast);
    recast
}

fn decoded(bytes: &[u8], element: Element) -> Vec<f32> {
    match element {
        Element::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Element::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

fn encode(floats: &[f32], element: Element, out: &mut [u8]) {
    match element {
        Element::F16 => {
            for (out, x) in out.chunks_exact_mut(2).zip(floats) {
                out.copy_from_slice(&f16::from_f32(*x).to_le_bytes());
            }
        }
        Element::BF16 => {
            for (out, x) in out.chunks_exact_mut(2).zip(floats) {
                out.copy_from_slice(&bf16::from_f32(*x).to_le_bytes());
            }
        }
        _ => {
            for (out, x) in out.chunks_exact_mut(4).zip(floats) {
                out.copy_from_slice(&x.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_copied_saved_and_restored() {
        for element in [Element::F32, Element::F16, Element::BF16] {
            let mut blocks = Blocks::new(2, 4, element);
            blocks.make_room(2).expect("there is memory");
            let slot = |block, offset| Slot { block, offset };
            let mut row = vec![0; 2 * 4 * element.bits() / 8];
            encode(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], element, &mut row);
            blocks.restore(slot(0, 31), &row);
            blocks.copy(&[(slot(0, 31), slot(1, 3))]);
            blocks.make_room(9).expect("there is memory");
            let mut saved = Vec::new();
            blocks.save(Some(slot(1, 3)), &mut saved);
            assert_eq!(saved, row);
            blocks.save(None, &mut saved);
            assert_eq!(saved.len(), 2 * blocks.cell_bytes());
        }
    }

    #[test]
    fn blocks_hold_bf16_while_prompts_run() {
        let mut blocks = Blocks::new(1, 2, Element::F16);
        blocks.make_room(2).expect("there is memory");
        let slot = Slot { block: 1, offset: 5 };
        let mut row = vec![0; 4];
        encode(&[1.5, -2.0], Element::F16, &mut row);
        blocks.restore(slot, &row);
        blocks.express(&[1], 6, true);
        let range = blocks.row(slot, 0);
        assert_eq!(decoded(&blocks.bytes()[range.clone()], Element::BF16), [1.5, -2.0]);
        // What is saved is in the cache's own format.
        let mut saved = Vec::new();
        blocks.save(Some(slot), &mut saved);
        assert_eq!(saved, row);
        assert_eq!(decoded(&blocks.bytes()[range], Element::F16), [1.5, -2.0]);
    }
}
