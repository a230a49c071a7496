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
    /// Words of four bytes keep the memory aligned.
    words: Vec<u32>,
}

impl Blocks {
    pub(crate) fn new(heads: usize, width: usize, element: Element) -> Self {
        Self { heads, width, element, count: 0, words: Vec::new() }
    }

    pub(crate) fn element(&self) -> Element {
        self.element
    }

    /// Sets the type of the numbers, of which there are none yet.
    pub(crate) fn set_element(&mut self, element: Element) {
        self.element = element;
        self.count = 0;
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
        self.count = count;
        Ok(())
    }

    fn row(&self, slot: Slot, head: usize) -> std::ops::Range<usize> {
        let row = (slot.block as usize * self.heads + head) * BLOCK + slot.offset as usize;
        row * self.row_bytes()..(row + 1) * self.row_bytes()
    }

    pub(crate) fn copy(&mut self, copies: &[(Slot, Slot)]) {
        for (from, to) in copies {
            for head in 0..self.heads {
                let (from, to) = (self.row(*from, head), self.row(*to, head));
                self.bytes_mut().copy_within(from, to.start);
            }
        }
    }

    /// Turns pairs of a key by a change of position.
    pub(crate) fn turn(&mut self, slot: Slot, delta: i32, turn: &Turn) {
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
    pub(crate) fn save(&self, slot: Option<Slot>, bytes: &mut Vec<u8>) {
        for head in 0..self.heads {
            match slot {
                Some(slot) => bytes.extend_from_slice(&self.bytes()[self.row(slot, head)]),
                None => bytes.resize(bytes.len() + self.row_bytes(), 0),
            }
        }
    }

    /// Takes a cell's numbers, as many as [`Blocks::cell_bytes`].
    pub(crate) fn restore(&mut self, slot: Slot, bytes: &[u8]) {
        for (head, bytes) in bytes.chunks_exact(self.row_bytes().max(1)).enumerate() {
            let range = self.row(slot, head);
            self.bytes_mut()[range].copy_from_slice(bytes);
        }
    }
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
}
