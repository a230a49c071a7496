//! The bytes of all constants.

use std::collections::HashMap;

/// Constants one after another, each at a multiple of 64 bytes. It is made twice: first only to know its size, then
/// in memory of the library, so that weights are written once and in place.
#[derive(Default)]
pub struct Blob {
    length: u64,
    /// Offsets of small constants by their bytes.
    shared: HashMap<Vec<u8>, u64>,
    /// What is to be written where.
    pieces: Vec<Piece>,
}

/// A part of the blob that is written later.
pub struct Piece {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Writes them.
    pub fill: Fill,
}

/// Writes a piece into exactly its bytes.
pub type Fill = Box<dyn Fn(&mut [u8]) + Send>;

const ALIGNMENT: u64 = 64;

impl Blob {
    /// Room for `bytes` bytes that `fill` writes; returns its offset.
    pub fn reserve(&mut self, bytes: u64, fill: Fill) -> u64 {
        let offset = self.length;
        self.pieces.push(Piece { offset, bytes, fill });
        self.length = (offset + bytes).next_multiple_of(ALIGNMENT);
        offset
    }

    /// Offset of these bytes, which are written once however often they are asked for.
    pub fn shared(&mut self, bytes: &[u8]) -> u64 {
        if let Some(offset) = self.shared.get(bytes) {
            return *offset;
        }
        let copy = bytes.to_vec();
        let offset = self.reserve(bytes.len() as u64, Box::new(move |out| out.copy_from_slice(&copy)));
        self.shared.insert(bytes.to_vec(), offset);
        offset
    }

    /// Bytes in all.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The parts, in ascending order; together they and the gaps between them make the blob.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}
