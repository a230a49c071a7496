//! From the file's rows to the packed layout, and back to numbers.

use super::integers::{INTEGERS, Integer, with_format};
use super::interleave::{self, Line, Tile};
use super::layout::{BLOCK, GROUP, Geometry, Layout, Pieces};
use super::scales::{pack_scales, row_scales};
use half::{bf16, f16};
use puna_quant::codes::{source_quads, word};

/// Packs the rows `source` (at most 16, as in the file) into one group; missing rows become zeros.
pub(super) fn pack_group(geometry: &Geometry, source: &[u8], destination: &mut [u8]) {
    let row_bytes = geometry.row_bytes();
    match geometry.layout {
        Layout::Rows => return destination[..source.len()].copy_from_slice(source),
        Layout::Integer(position) => {
            with_format!(position, pack_integers(source, row_bytes, destination));
        }
        Layout::Half => pack_floats::<2>(source, row_bytes, destination),
        Layout::Single | Layout::Brain => pack_floats::<4>(source, row_bytes, destination),
    }
    interleave::finish();
}

/// Interleaves units of `N` bytes of the rows, from first to last, and fills up with zeros what they lack of `group`.
fn pack_floats<const N: usize>(source: &[u8], row_bytes: usize, group: &mut [u8]) {
    let rows = source.len() / row_bytes;
    for (index, place) in group.chunks_exact_mut(size_of::<Tile>()).enumerate() {
        let mut tile: Tile = [[0; 16]; GROUP];
        let at = index * 16;
        // The usual case has no lengths to look at.
        if rows == GROUP && at + 16 <= row_bytes {
            for (row, bytes) in tile.iter_mut().enumerate() {
                *bytes = *source[row * row_bytes + at..].first_chunk().unwrap_or(&[0; 16]);
            }
        } else {
            let width = row_bytes.saturating_sub(at).min(16);
            for (bytes, row) in tile.iter_mut().zip(source.chunks_exact(row_bytes)).filter(|_| width > 0) {
                bytes[..width].copy_from_slice(&row[at..][..width]);
            }
        }
        interleave::write(&interleave::interleave::<N>(&tile), place);
    }
}

/// Packs the rows of a group of integers, block by block: so the packed bytes, which may be touched for the first time, are
/// written from first to last.
fn pack_integers<const F: usize>(source: &[u8], row_bytes: usize, group: &mut [u8]) {
    let integer = const { &INTEGERS[F] };
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let (code_bytes, record_bytes) = const { (INTEGERS[F].code_bytes(), INTEGERS[F].scales.bytes()) };
    let per_source = const { INTEGERS[F].scales.blocks() };
    let block_bytes = integer.dtype.format().bytes;
    for index in 0..row_bytes / block_bytes {
        let first = index * per_source;
        if let Some((head, bytes)) = pieces.head(first) {
            group[head..][..bytes].fill(0);
        }
        let record = &mut group[pieces.record(first)..][..record_bytes];
        for (row, source) in source.chunks_exact(row_bytes).enumerate() {
            pack_scales(integer, &source[index * block_bytes..][..block_bytes], row, record);
        }
        let codes = &mut group[pieces.codes(first)..][..per_source * code_bytes];
        for (part, plane) in codes.chunks_exact_mut(code_bytes).enumerate() {
            let mut quads = [[0; GROUP]; 8];
            for (row, source) in source.chunks_exact(row_bytes).enumerate() {
                let block = &source[index * block_bytes..][..block_bytes];
                for (quad, codes) in source_quads(integer.dtype, block, part).into_iter().enumerate() {
                    quads[quad][row] = codes;
                }
            }
            pack_quads(integer.bits, &quads, plane);
        }
    }
}

/// The planes of codes of so many bits, as (bits in the plane, lowest bit of the code that it holds). The planes lie
/// one after the other.
const fn planes(bits: usize) -> &'static [(usize, usize)] {
    match bits {
        1 => &[(1, 0)],
        2 => &[(2, 0)],
        3 => &[(2, 0), (1, 2)],
        4 => &[(4, 0)],
        5 => &[(4, 0), (1, 4)],
        6 => &[(4, 0), (2, 4)],
        _ => &[(8, 0)],
    }
}

/// Which unit of 64 bytes of a plane of `width` bits holds a quad, and from which bit of its bytes on.
const fn place(width: usize, quad: usize) -> (usize, usize) {
    match width {
        4 => (quad % 4, quad / 4 * 4),
        _ => (quad * width / 8, quad * width % 8),
    }
}

/// Writes the codes of 32 columns of 16 rows, a row for each lane, as the planes of a block.
#[inline(always)]
fn pack_quads(bits: usize, quads: &[[u32; GROUP]; 8], mut block: &mut [u8]) {
    for &(width, shift) in planes(bits) {
        let mask = (0xff >> (8 - width)) * 0x0101_0101;
        let mut lines = [Line([0; 64]); 8];
        for (quad, codes) in quads.iter().enumerate() {
            let (unit, bit) = place(width, quad);
            let line: &mut [u32; GROUP] = bytemuck::cast_mut(&mut lines[unit].0);
            for (value, code) in line.iter_mut().zip(codes) {
                *value |= (code >> shift & mask) << bit;
            }
        }
        interleave::write(&lines[..width], block);
        block = &mut block[width * 64..];
    }
}

/// The codes of the 32 columns of one row in a packed block.
fn unpack_row(bits: usize, block: &[u8], row: usize) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (column, code) in codes.iter_mut().enumerate() {
        let mut first = 0;
        for &(width, shift) in planes(bits) {
            let (unit, bit) = place(width, column / 4);
            let byte = block[(first + unit) * 64 + row * 4 + column % 4];
            *code |= (byte >> bit & 0xff >> (8 - width)) << shift;
            first += width;
        }
    }
    codes
}

/// The values of the 32 columns of one row in a packed block, less the offset.
pub(super) fn row_values(integer: &Integer, block: &[u8], row: usize) -> [i32; BLOCK] {
    unpack_row(integer.bits, block, row).map(|code| {
        let value = match integer.table {
            Some(table) => table[usize::from(code & 15)],
            None if integer.bits == 1 => 2 * code,
            None => code,
        };
        i32::from(value) - integer.offset
    })
}

/// The codes of a block of a group, and its scale record.
pub(super) fn block_bytes<'a>(integer: &Integer, group: &'a [u8], block: usize) -> (&'a [u8], &'a [u8]) {
    let pieces = Pieces::of(integer);
    let bytes = |at: usize, count: usize| &group[at..][..count];
    (bytes(pieces.codes(block), integer.code_bytes()), bytes(pieces.record(block), integer.scales.bytes()))
}

/// Writes the exact values of one row of a group to `output` (`columns` numbers).
pub(super) fn decode_row(geometry: &Geometry, group: &[u8], row: usize, output: &mut [f32]) {
    match geometry.layout {
        Layout::Integer(position) => {
            let integer = &INTEGERS[position];
            for (block, values) in output.chunks_exact_mut(BLOCK).enumerate() {
                let (plane, record) = block_bytes(integer, group, block);
                let scales = row_scales(integer, record, block % integer.scales.blocks(), row);
                for (value, (column, number)) in
                    values.iter_mut().zip(row_values(integer, plane, row).into_iter().enumerate())
                {
                    let (scale, minimum) = scales[column / 16];
                    // The product is exact (at most 24 significant bits), so the order of the factors is free.
                    *value = scale * number as f32 + minimum;
                }
            }
        }
        Layout::Single => {
            for (column, value) in output.iter_mut().enumerate() {
                *value = f32::from_bits(word(group, column * GROUP + row));
            }
        }
        Layout::Half => {
            for (column, value) in output.iter_mut().enumerate() {
                let at = (column * GROUP + row) * 2;
                *value = f16::from_le_bytes([group[at], group[at + 1]]).to_f32();
            }
        }
        Layout::Brain => {
            for (column, value) in output.iter_mut().enumerate() {
                let at = ((column / 2 * GROUP + row) * 2 + column % 2) * 2;
                *value = bf16::from_le_bytes([group[at], group[at + 1]]).to_f32();
            }
        }
        Layout::Rows => {
            let bytes = geometry.row_bytes();
            (geometry.dtype.format().decode)(&group[row * bytes..][..bytes], output);
        }
    }
}

/// Decodes a group of [`Layout::Rows`] to `decoded`, 16 rows for each column; columns of padding and rows past the last
/// one are zero. `line` has room for one row.
pub(super) fn decode_group(
    geometry: &Geometry,
    group: &[u8],
    rows: usize,
    line: &mut [f32],
    decoded: &mut [f32],
) {
    decoded.fill(0.0);
    for row in 0..rows.min(GROUP) {
        decode_row(geometry, group, row, &mut line[..geometry.columns]);
        for (column, value) in line[..geometry.columns].iter().enumerate() {
            decoded[column * GROUP + row] = *value;
        }
    }
}
