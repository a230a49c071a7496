//! The bytes of all constants.

use std::collections::HashMap;

use puna_graph::WeightId;

/// Constants one after another, each at a multiple of 64 bytes. First only their places are settled; they are written
/// once and in place, into memory of the library.
#[derive(Default)]
pub struct Blob {
    length: u64,
    /// Offsets of small constants by their bytes.
    shared: HashMap<Vec<u8>, u64>,
    /// What is to be written where.
    pieces: Vec<Piece>,
}

/// A part of the blob that is written later.
struct Piece {
    offset: u64,
    bytes: u64,
    /// The tensor that it is written from.
    source: Option<WeightId>,
    fill: Fill,
}

/// Writes a piece into exactly its bytes.
pub type Fill = Box<dyn Fn(&mut [u8]) + Send>;

const ALIGNMENT: u64 = 64;

impl Blob {
    /// Room for `bytes` bytes that `fill` writes from a tensor, or from nothing; returns its offset.
    pub fn reserve(&mut self, bytes: u64, source: Option<WeightId>, fill: Fill) -> u64 {
        let offset = self.length;
        self.pieces.push(Piece { offset, bytes, source, fill });
        self.length = (offset + bytes).next_multiple_of(ALIGNMENT);
        offset
    }

    /// Offset of these bytes, which are written once however often they are asked for.
    pub fn shared(&mut self, bytes: &[u8]) -> u64 {
        if let Some(offset) = self.shared.get(bytes) {
            return *offset;
        }
        let copy = bytes.to_vec();
        let offset = self.reserve(bytes.len() as u64, None, Box::new(move |out| out.copy_from_slice(&copy)));
        self.shared.insert(bytes.to_vec(), offset);
        offset
    }

    /// Bytes in all.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Writes all constants; `bytes` are as many as [`Blob::length`] says. `done` hears of each tensor as soon as
    /// nothing more is written from it.
    pub fn fill(&self, bytes: &mut [u8], mut done: impl FnMut(WeightId)) {
        let mut last: HashMap<WeightId, usize> = HashMap::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            piece.source.map(|source| last.insert(source, index));
        }
        for (index, piece) in self.pieces.iter().enumerate() {
            (piece.fill)(&mut bytes[piece.offset as usize..][..piece.bytes as usize]);
            if let Some(source) = piece.source.filter(|source| last.get(source) == Some(&index)) {
                done(source);
            }
        }
    }
}
