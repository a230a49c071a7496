//! Matrices in the layout that kernels read. Integer formats lie in tiles of 16 rows, in these blocks of 256 columns one after
//! the other, in these planes: codes, upper bits of codes, scales, numbers of super-blocks, which `formats.cuh` takes apart
//! again. So a tile is read from its start to its end.
//!
//! Codes lie in the order in which matrix units take them: lane `4 g + t` of 32 has of the rows `g` and `8 + g` the columns
//! `4 t` to `4 t + 3` and `16 + 4 t` to `16 + 4 t + 3` of each chunk of 32, two *quads*; what it has of several chunks is together.

use half::f16;
use puna_quant::codes::{six_bit_pair, source_quads, sub_scale};
use puna_quant::integers::{INTEGERS, Integer, Scales};
use puna_quant::{DType, FloatField};

/// Columns that share a scale.
const CHUNK: usize = 32;
/// Chunks of a group; the last group of a row is filled up with zeros.
const GROUP: usize = 8;
/// Rows of a tile; the last one is filled up with zeros.
pub const TILE: usize = 16;

/// How a matrix of one format lies in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Part of the names of its kernels.
    pub name: &'static str,
    /// The file's format.
    pub dtype: DType,
    /// What the codes of table formats stand for, else zeros.
    pub table: [i8; 16],
    /// Factor of scales.
    pub factor: f32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Bytes of the planes of one chunk: codes, upper bits, scales; and bytes for each group.
    Planes {
        integer: &'static Integer,
        codes: usize,
        high: usize,
        scale: usize,
        super_block: usize,
        /// The device's code for each code of a table.
        order: [u8; 16],
    },
    /// Numbers as they are, of so many bytes.
    Plain { bytes: usize },
    /// Decoded to `f32`.
    Decoded,
}

impl Layout {
    /// The layout for rows of `columns` numbers. Every format has one; what has no kernel of its own becomes `f32`.
    pub fn new(dtype: DType, columns: usize) -> Self {
        let decoded = Self { name: "single", dtype, table: [0; 16], factor: 1.0, kind: Kind::Decoded };
        let whole = columns.is_multiple_of(CHUNK);
        match dtype {
            DType::F32 => Self { kind: Kind::Plain { bytes: 4 }, ..decoded },
            DType::F16 if whole => Self { name: "half", kind: Kind::Plain { bytes: 2 }, ..decoded },
            DType::BF16 if whole => Self { name: "brain", kind: Kind::Plain { bytes: 2 }, ..decoded },
            _ => match INTEGERS.iter().find(|integer| integer.dtype == dtype) {
                Some(integer) if whole => Self::planes(integer),
                _ => decoded,
            },
        }
    }

    fn planes(integer: &'static Integer) -> Self {
        let bits = if integer.table.is_some() { 4 } else { integer.bits };
        let (code_name, codes, high) = match (integer.table.is_some(), bits) {
            (true, _) => ("table4", 16, 0),
            (_, 1 | 2) => ("code2", 8, 0),
            (_, 3) => ("code3", 8, 4),
            (_, 4) => ("code4", 16, 0),
            (_, 5) => ("code5", 16, 4),
            (_, 6) => ("code6", 16, 8),
            _ => ("code8", 32, 0),
        };
        let (scale_name, scale, super_block) = match integer.scales {
            Scales::Single(_) => ("half", 2, 0),
            Scales::Affine => ("affine", 4, 0),
            Scales::Exponent => ("exponent", 1, 0),
            Scales::Minifloat => ("minifloat", 2, 0),
            Scales::SuperAffine => ("super", 2, 4),
            Scales::SuperNibbles => ("nibbles", 2, 4),
            Scales::SuperSingle => ("single", 1, 2),
            Scales::SuperHalf => ("halves", 2, 2),
        };
        let name = NAMES.iter().find(|name| {
            name.strip_prefix(code_name).and_then(|rest| rest.strip_prefix('_')) == Some(scale_name)
        });
        let (mut table, mut order) = ([0; 16], [0; 16]);
        if let Some(values) = integer.table {
            (table, order) = sorted_table(values.map(|value| (value as i32 - integer.offset) as i8));
        }
        let kind = Kind::Planes { integer, codes, high, scale, super_block, order };
        let name = name.copied().unwrap_or("single");
        Self { name, dtype: integer.dtype, table, factor: integer.factor, kind }
    }

    /// Whether kernels for integers take it, so that its rows are whole chunks.
    pub fn is_quantised(&self) -> bool {
        matches!(self.kind, Kind::Planes { .. })
    }

    /// Whether it is plain `f32` on the device.
    pub fn is_single(&self) -> bool {
        self.name == "single"
    }

    /// Bytes of a row of so many columns on the device.
    pub fn row_bytes(&self, columns: usize) -> usize {
        match self.kind {
            Kind::Planes { codes, high, scale, super_block, .. } => {
                let groups = (columns / CHUNK).div_ceil(GROUP);
                groups * (GROUP * (codes + high + scale) + super_block)
            }
            Kind::Plain { bytes } => columns * bytes,
            Kind::Decoded => columns * 4,
        }
    }

    /// Rows that there is room for when a matrix has so many.
    pub fn room_rows(&self, rows: usize) -> usize {
        if self.is_quantised() { rows.next_multiple_of(TILE) } else { rows }
    }

    /// Writes rows of the file, of `columns` columns, as rows of the device; the first one begins a tile.
    pub fn pack(&self, source: &[u8], columns: usize, destination: &mut [u8]) {
        let row_bytes = self.row_bytes(columns).max(1);
        destination.fill(0);
        let format = self.dtype.format();
        let source_bytes = (columns / format.block * format.bytes).max(1);
        let rows = source.chunks_exact(source_bytes);
        if let Kind::Planes { integer, codes, high, scale, super_block, order } = self.kind {
            let tiles = destination.chunks_exact_mut(TILE * row_bytes);
            for (from, to) in source.chunks(TILE * source_bytes).zip(tiles) {
                for (row, from) in from.chunks_exact(source_bytes).enumerate() {
                    pack_row(integer, from, row, [codes, high, scale, super_block], &order, to);
                }
            }
            return;
        }
        for (from, to) in rows.zip(destination.chunks_exact_mut(row_bytes)) {
            if let Kind::Plain { .. } = self.kind {
                to.copy_from_slice(from);
                continue;
            }
            let mut floats = vec![0.0_f32; columns];
            (format.decode)(from, &mut floats);
            for (bytes, float) in to.chunks_exact_mut(4).zip(&floats) {
                bytes.copy_from_slice(&float.to_le_bytes());
            }
        }
    }
}

/// Layouts with kernels of their own, as in `formats.cuh`.
pub const NAMES: &[&str] = &[
    "code2_half",
    "code2_nibbles",
    "code3_halves",
    "code4_half",
    "code4_affine",
    "code4_super",
    "code5_half",
    "code5_affine",
    "code5_super",
    "code6_halves",
    "code8_half",
    "table4_half",
    "table4_single",
    "table4_halves",
    "table4_exponent",
    "table4_minifloat",
];

/// Values in the order of the device's codes, negative ones from code 0 on, the others from code 8 on; and the device's code for
/// each value.
fn sorted_table(values: [i8; 16]) -> ([i8; 16], [u8; 16]) {
    let (mut table, mut order, mut next) = ([0; 16], [0; 16], [0, 8]);
    for (code, value) in values.into_iter().enumerate() {
        let known = values[..code].iter().position(|other| *other == value);
        order[code] = known.map_or_else(
            || {
                let place = &mut next[usize::from(value >= 0)];
                *place += 1;
                *place - 1
            },
            |known| order[known],
        );
        table[usize::from(order[code]) % 16] = value;
    }
    (table, order)
}

/// One row of a tile: `bytes` are those of a chunk in the planes of codes, upper bits and scales, and of a group; `to` was zeros.
fn pack_row(integer: &Integer, from: &[u8], row: usize, bytes: [usize; 4], order: &[u8; 16], to: &mut [u8]) {
    let format = integer.dtype.format();
    let parts = (format.block / CHUNK).max(1);
    let [codes, high, scale, super_block] = bytes;
    let high_at = TILE * GROUP * codes;
    let scale_at = high_at + TILE * GROUP * high;
    let super_at = scale_at + TILE * GROUP * scale;
    let block_bytes = super_at + TILE * super_block;
    for (block_index, block) in from.chunks_exact(format.bytes).enumerate() {
        for part in 0..parts {
            let chunk = block_index * parts + part;
            let (group, place) = (chunk / GROUP, chunk % GROUP);
            let to = &mut to[group * block_bytes..][..block_bytes];
            let quads = source_quads(integer.dtype, block, part);
            match codes {
                32 => pack_bytes(quads, row, place, to),
                16 if integer.table.is_some() => pack_selectors(quads, order, row, place, to),
                16 => pack_nibbles(quads, row, place, to),
                // A single bit stands for 0 or 2.
                _ => pack_pairs(quads.map(|quad| quad << u32::from(integer.bits == 1)), row, place, to),
            }
            let plane = &mut to[high_at..];
            match (high, integer.bits) {
                (4, 3) => pack_bits(quads.map(|quad| quad >> 2), row, place, plane),
                (4, _) => pack_bits(quads.map(|quad| quad >> 4), row, place, plane),
                (8, _) => pack_pairs(quads.map(|quad| quad >> 4), row, place, plane),
                _ => {}
            }
            pack_scale(integer, block, part, &mut to[scale_at + (row * GROUP + place) * scale..][..scale]);
        }
        if super_block > 0 {
            let group = block_index * parts / GROUP;
            let place = &mut to[group * block_bytes + super_at + row * super_block..][..super_block];
            for (index, bytes) in place.chunks_exact_mut(2).enumerate() {
                bytes.copy_from_slice(&half_field(integer.dtype, block, index).to_le_bytes());
            }
        }
    }
}

/// Sets bits of the word at a byte of a plane.
fn add_word(plane: &mut [u8], at: usize, word: u32) {
    for (byte, bits) in plane[at..][..4].iter_mut().zip(word.to_le_bytes()) {
        *byte |= bits;
    }
}

/// Where the 16 bytes are that a lane has of a row, the given one of so many pieces.
fn piece_at(row: usize, t: usize, piece: usize, pieces: usize) -> usize {
    ((row / 8 * pieces + piece) * 32 + row % 8 * 4 + t) * 16
}

/// Codes of eight bits, as signed bytes: a piece has two chunks.
fn pack_bytes(quads: [u32; 8], row: usize, chunk: usize, plane: &mut [u8]) {
    for (index, quad) in quads.iter().enumerate() {
        let at = piece_at(row, index % 4, chunk / 2, 4) + chunk % 2 * 8 + index / 4 * 4;
        add_word(plane, at, quad ^ 0x8080_8080);
    }
}

/// Codes of four bits: a piece has four chunks; the second quad is in the upper halves.
fn pack_nibbles(quads: [u32; 8], row: usize, chunk: usize, plane: &mut [u8]) {
    for (index, quad) in quads.iter().enumerate() {
        let at = piece_at(row, index % 4, chunk / 4, 2) + chunk % 4 * 4;
        add_word(plane, at, (quad & 0x0f0f_0f0f) << (index / 4 * 4));
    }
}

/// Positions in a table: as codes of four bits, but a word has its first quad's neighbours in its lower half.
fn pack_selectors(quads: [u32; 8], order: &[u8; 16], row: usize, chunk: usize, plane: &mut [u8]) {
    for (index, quad) in quads.iter().enumerate() {
        let at = piece_at(row, index % 4, chunk / 4, 2) + chunk % 4 * 4;
        let codes = quad.to_le_bytes().map(|code| u32::from(order[usize::from(code) % 16]));
        let half = codes.iter().rev().fold(0, |half, code| half << 4 | code);
        add_word(plane, at, half << (index / 4 * 16));
    }
}

/// Codes of two bits: a piece has all chunks, in it a word for four chunks and each of both quads.
fn pack_pairs(quads: [u32; 8], row: usize, chunk: usize, plane: &mut [u8]) {
    for (index, quad) in quads.iter().enumerate() {
        let at = piece_at(row, index % 4, 0, 1) + chunk / 4 * 8 + index / 4 * 4;
        add_word(plane, at, (quad & 0x0303_0303) << (chunk % 4 * 2));
    }
}

/// Codes of one bit: half a piece has all chunks, in it a word for each of both quads.
fn pack_bits(quads: [u32; 8], row: usize, chunk: usize, plane: &mut [u8]) {
    for (index, quad) in quads.iter().enumerate() {
        let at = piece_at(row, index % 4, 0, 1) / 2 + index / 4 * 4;
        add_word(plane, at, (quad & 0x0101_0101) << chunk);
    }
}

/// The scale of one chunk.
fn pack_scale(integer: &Integer, block: &[u8], part: usize, to: &mut [u8]) {
    let dtype = integer.dtype;
    match integer.scales {
        Scales::Single(_) => to.copy_from_slice(&half_field(dtype, block, 0).to_le_bytes()),
        Scales::Affine => {
            to[..2].copy_from_slice(&half_field(dtype, block, 0).to_le_bytes());
            to[2..].copy_from_slice(&half_field(dtype, block, 1).to_le_bytes());
        }
        Scales::Exponent => to[0] = block[0],
        Scales::Minifloat => {
            for side in 0..2 {
                let code = block[part * 2 + side];
                // The sign is ignored, and not-a-number counts as 0.
                to[side] = if code == 0x7f { 0 } else { code & 0x7f };
            }
        }
        Scales::SuperAffine => (to[0], to[1]) = six_bit_pair(&block[4..16], part),
        Scales::SuperNibbles => to.copy_from_slice(&block[2 * part..][..2]),
        Scales::SuperSingle => to[0] = sub_scale(dtype, block, part) as u8,
        Scales::SuperHalf => {
            to[0] = sub_scale(dtype, block, 2 * part) as u8;
            to[1] = sub_scale(dtype, block, 2 * part + 1) as u8;
        }
    }
}

/// The bits of the F16 number `index` of a block.
fn half_field(dtype: DType, block: &[u8], index: usize) -> u16 {
    match dtype.format().floats.get(index) {
        Some(FloatField::F16(at)) => u16::from_le_bytes([block[*at], block[*at + 1]]),
        Some(FloatField::SplitF16(at)) => {
            (0..4).fold(0, |bits, i| bits | u16::from(block[*at + 2 * i + 1] >> 4) << (4 * i))
        }
        _ => f16::ZERO.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_integer_format_has_a_layout_with_kernels() {
        for integer in &INTEGERS {
            let layout = Layout::new(integer.dtype, 256);
            assert!(layout.is_quantised() && NAMES.contains(&layout.name), "{}", integer.dtype);
            assert!(layout.row_bytes(4096) >= 4096 * integer.bits / 8, "{}", integer.dtype);
        }
    }

    #[test]
    fn tables_have_negative_values_first() {
        for integer in INTEGERS.iter().filter(|integer| integer.table.is_some()) {
            let layout = Layout::new(integer.dtype, 256);
            let Kind::Planes { order, .. } = layout.kind else { panic!("{}", integer.dtype) };
            let values =
                integer.table.map_or([0; 16], |table| table.map(|value| value as i32 - integer.offset));
            for (code, value) in values.iter().enumerate() {
                assert_eq!(
                    layout.table[order[code] as usize] as i32, *value as i8 as i32,
                    "{}",
                    integer.dtype
                );
            }
            assert!(layout.table[..8].iter().all(|value| *value <= 0), "{}", integer.dtype);
            assert!(layout.table[8..].iter().all(|value| *value >= 0), "{}", integer.dtype);
        }
    }

    #[test]
    fn other_formats_are_plain_or_decoded() {
        assert_eq!(Layout::new(DType::BF16, 64).row_bytes(64), 128);
        assert_eq!(Layout::new(DType::F16, 63).row_bytes(63), 63 * 4);
        let layout = Layout::new(DType::I16, 2);
        let mut row = [0; 8];
        layout.pack(&[3, 0, 0xff, 0xff], 2, &mut row);
        assert_eq!(row, [3.0_f32.to_le_bytes(), (-1.0_f32).to_le_bytes()].concat()[..]);
    }
}
