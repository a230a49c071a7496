//! Keys and values in the host's memory.

use half::f16;
use puna_backend::{BackendError, CellMove};
use puna_graph::ops::Rope;

use crate::ir::Element;

/// The keys or the values of one state, `[heads, capacity, width]`.
pub(crate) struct Plane {
    heads: usize,
    width: usize,
    capacity: usize,
    numbers: Numbers,
}

/// Numbers in the format of the cache.
enum Numbers {
    F32(Vec<f32>),
    F16(Vec<u16>),
}

impl Plane {
    pub(crate) fn new(heads: usize, width: usize, element: Element) -> Self {
        let numbers = match element {
            Element::F16 => Numbers::F16(Vec::new()),
            _ => Numbers::F32(Vec::new()),
        };
        Self { heads, width, capacity: 0, numbers }
    }

    pub(crate) fn element(&self) -> Element {
        match self.numbers {
            Numbers::F32(_) => Element::F32,
            Numbers::F16(_) => Element::F16,
        }
    }

    /// Extents of the whole.
    pub(crate) fn shape(&self) -> Vec<i64> {
        vec![self.heads as i64, self.capacity as i64, self.width as i64]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.numbers {
            Numbers::F32(numbers) => bytemuck::cast_slice(numbers),
            Numbers::F16(numbers) => bytemuck::cast_slice(numbers),
        }
    }

    /// Bytes of one cell when it is saved.
    pub(crate) fn cell_bytes(&self) -> usize {
        self.heads * self.width * self.element().bits() / 8
    }

    /// Room for so many cells; what is kept of them stays.
    pub(crate) fn resize(&mut self, capacity: usize) -> Result<(), BackendError> {
        if capacity == self.capacity {
            return Ok(());
        }
        let (heads, width, old) = (self.heads, self.width, self.capacity);
        match &mut self.numbers {
            Numbers::F32(numbers) => *numbers = resized(numbers, heads, width, old, capacity)?,
            Numbers::F16(numbers) => *numbers = resized(numbers, heads, width, old, capacity)?,
        }
        self.capacity = capacity;
        Ok(())
    }

    fn at(&self, head: usize, cell: usize) -> usize {
        (head * self.capacity + cell) * self.width
    }

    /// Stores a row `[heads, width]` in a cell.
    pub(crate) fn write(&mut self, cell: usize, row: &[f32]) {
        for (head, row) in row.chunks_exact(self.width).enumerate() {
            let start = self.at(head, cell);
            match &mut self.numbers {
                Numbers::F32(numbers) => numbers[start..][..row.len()].copy_from_slice(row),
                Numbers::F16(numbers) => {
                    for (to, from) in numbers[start..].iter_mut().zip(row) {
                        *to = f16::from_f32(*from).to_bits();
                    }
                }
            }
        }
    }

    fn read(&self, head: usize, cell: usize) -> Vec<f32> {
        let range = self.at(head, cell)..self.at(head, cell) + self.width;
        match &self.numbers {
            Numbers::F32(numbers) => numbers[range].to_vec(),
            Numbers::F16(numbers) => {
                numbers[range].iter().map(|bits| f16::from_bits(*bits).to_f32()).collect()
            }
        }
    }

    pub(crate) fn copy(&mut self, moves: &[CellMove]) {
        for CellMove { from, to } in moves {
            for head in 0..self.heads {
                let (from, to) = (self.at(head, *from as usize), self.at(head, *to as usize));
                match &mut self.numbers {
                    Numbers::F32(numbers) => numbers.copy_within(from..from + self.width, to),
                    Numbers::F16(numbers) => numbers.copy_within(from..from + self.width, to),
                }
            }
        }
    }

    /// Turns pairs of a cell by a change of position.
    pub(crate) fn turn(&mut self, cell: usize, delta: i32, rope: &Turn) {
        for head in 0..self.heads {
            let mut row = self.read(head, cell);
            rope.turn(&mut row, delta);
            let start = self.at(head, cell);
            match &mut self.numbers {
                Numbers::F32(numbers) => numbers[start..][..row.len()].copy_from_slice(&row),
                Numbers::F16(numbers) => {
                    for (to, from) in numbers[start..].iter_mut().zip(&row) {
                        *to = f16::from_f32(*from).to_bits();
                    }
                }
            }
        }
    }

    /// Appends a cell's numbers.
    pub(crate) fn save(&self, cell: usize, bytes: &mut Vec<u8>) {
        for head in 0..self.heads {
            let range = self.at(head, cell)..self.at(head, cell) + self.width;
            match &self.numbers {
                Numbers::F32(numbers) => numbers[range].iter().for_each(|x| bytes.extend(x.to_le_bytes())),
                Numbers::F16(numbers) => numbers[range].iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            }
        }
    }

    /// Takes a cell's numbers, as many as [`Plane::cell_bytes`].
    pub(crate) fn restore(&mut self, cell: usize, bytes: &[u8]) {
        let head_bytes = self.width * self.element().bits() / 8;
        for (head, bytes) in bytes.chunks_exact(head_bytes.max(1)).enumerate() {
            let start = self.at(head, cell);
            match &mut self.numbers {
                Numbers::F32(numbers) => {
                    for (to, b) in numbers[start..].iter_mut().zip(bytes.chunks_exact(4)) {
                        *to = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                    }
                }
                Numbers::F16(numbers) => {
                    for (to, b) in numbers[start..].iter_mut().zip(bytes.chunks_exact(2)) {
                        *to = u16::from_le_bytes([b[0], b[1]]);
                    }
                }
            }
        }
    }
}

fn resized<T: Copy + Default>(
    numbers: &[T],
    heads: usize,
    width: usize,
    old: usize,
    capacity: usize,
) -> Result<Vec<T>, BackendError> {
    let length = heads.saturating_mul(width).saturating_mul(capacity);
    let mut new = Vec::new();
    new.try_reserve_exact(length).map_err(|_| BackendError::OutOfMemory {
        device: "OpenVINO".to_owned(),
        bytes: (length * size_of::<T>()) as u64,
        purpose: "caches",
    })?;
    new.resize(length, T::default());
    let kept = old.min(capacity) * width;
    for head in 0..heads {
        new[head * capacity * width..][..kept].copy_from_slice(&numbers[head * old * width..][..kept]);
    }
    Ok(new)
}

/// How the keys of a state turn with their positions.
pub(crate) struct Turn {
    pub(crate) rope: Rope,
    pub(crate) frequencies: Vec<f64>,
    /// Elements of a key before those that turn.
    pub(crate) offset: usize,
}

impl Turn {
    /// A turn by the difference alone: a stored key already carries the magnitude.
    pub(crate) fn turn(&self, key: &mut [f32], delta: i32) {
        for (pair, frequency) in self.frequencies.iter().enumerate() {
            let (sine, cosine) = (delta as f64 * frequency).sin_cos();
            let (i, j) = self.rope.pair(pair);
            let (i, j) = (i + self.offset, j + self.offset);
            let (a, b) = (key[i] as f64, key[j] as f64);
            key[i] = (a * cosine - b * sine) as f32;
            key[j] = (a * sine + b * cosine) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_keep_their_numbers_through_growth_copies_and_saving() {
        for element in [Element::F32, Element::F16] {
            let mut plane = Plane::new(2, 3, element);
            plane.resize(4).expect("there is memory");
            let row = |cell: usize| (0..6).map(|i| (cell * 10 + i) as f32).collect::<Vec<_>>();
            (0..4).for_each(|cell| plane.write(cell, &row(cell)));
            plane.resize(7).expect("there is memory");
            plane.copy(&[CellMove { from: 1, to: 6 }]);
            assert_eq!(plane.shape(), [2, 7, 3]);
            assert_eq!([plane.read(0, 6), plane.read(1, 6)].concat(), row(1));
            let mut saved = Vec::new();
            plane.save(3, &mut saved);
            assert_eq!(saved.len(), plane.cell_bytes());
            plane.restore(0, &saved);
            assert_eq!([plane.read(0, 0), plane.read(1, 0)].concat(), row(3));
            plane.resize(2).expect("there is memory");
            assert_eq!([plane.read(0, 1), plane.read(1, 1)].concat(), row(1));
        }
    }
}
