//! From the file's rows to the packed layout, and back to numbers.

use super::layout::{BLOCK, GROUP, Geometry, INTEGERS, Integer, Layout, NONLINEAR, Scales};
use half::{bf16, f16};
use puna_quant::DType;

/// Packs the rows `source` (at most 16, as in the file) into one group; missing rows become zeros.
pub(super) fn pack_group(geometry: &Geometry, source: &[u8], destination: &mut [u8]) {
    let row_bytes = geometry.row_bytes();
    if geometry.layout == Layout::Rows {
        destination[..source.len()].copy_from_slice(source);
        return;
    }
    destination.fill(0);
    for (row, bytes) in source.chunks_exact(row_bytes.max(1)).enumerate() {
        match geometry.layout {
            Layout::Integer(position) => {
                let (codes, scales) = destination.split_at_mut(geometry.scale_offset);
                pack_integer_row(&INTEGERS[position], bytes, row, codes, scales);
            }
            Layout::Single => {
                for (column, value) in bytes.chunks_exact(4).enumerate() {
                    destination[(column * GROUP + row) * 4..][..4].copy_from_slice(value);
                }
            }
            Layout::Half => {
                for (column, value) in bytes.chunks_exact(2).enumerate() {
                    destination[(column * GROUP + row) * 2..][..2].copy_from_slice(value);
                }
            }
            Layout::Brain => {
                for (pair, values) in bytes.chunks(4).enumerate() {
                    destination[(pair * GROUP + row) * 4..][..values.len()].copy_from_slice(values);
                }
            }
            Layout::Rows => {}
        }
    }
}

fn pack_integer_row(integer: &Integer, source: &[u8], row: usize, codes: &mut [u8], scales: &mut [u8]) {
    let format = integer.dtype.format();
    let per_source = format.block / BLOCK;
    let code_bytes = integer.code_bytes();
    for (index, block) in source.chunks_exact(format.bytes).enumerate() {
        let records = &mut scales[index * integer.scales.bytes()..][..integer.scales.bytes()];
        pack_scales(integer, block, row, records);
        for part in 0..per_source {
            let quads = source_quads(integer.dtype, block, part);
            let plane = &mut codes[(index * per_source + part) * code_bytes..][..code_bytes];
            pack_quads(integer.bits, &quads, row, plane);
        }
    }
}

/// Writes the codes of 32 columns of one row into the planes of a block.
fn pack_quads(bits: usize, quads: &[u32; 8], row: usize, plane: &mut [u8]) {
    let mut put = |unit: usize, value: u32| {
        plane[unit * 64 + row * 4..][..4].copy_from_slice(&value.to_le_bytes());
    };
    if bits == 8 {
        for (unit, quad) in quads.iter().enumerate() {
            put(unit, *quad);
        }
        return;
    }
    for unit in 0..4 {
        put(unit, quads[unit] & 0x0f0f_0f0f | (quads[unit + 4] & 0x0f0f_0f0f) << 4);
    }
    match bits {
        5 => put(4, (0..8).fold(0, |high, quad| high | (quads[quad] >> 4 & 0x0101_0101) << quad)),
        6 => {
            for half in 0..2 {
                put(
                    4 + half,
                    (0..4).fold(0, |high, i| high | (quads[half * 4 + i] >> 4 & 0x0303_0303) << (2 * i)),
                );
            }
        }
        _ => {}
    }
}

/// The codes of the 32 columns of one row in a packed block.
pub(super) fn unpack_row(bits: usize, plane: &[u8], row: usize) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (column, code) in codes.iter_mut().enumerate() {
        let (quad, place) = (column / 4, row * 4 + column % 4);
        *code = if bits == 8 {
            plane[quad * 64 + place]
        } else {
            let low = plane[quad % 4 * 64 + place] >> (quad / 4 * 4) & 15;
            let high = match bits {
                5 => plane[256 + place] >> quad & 1,
                6 => plane[256 + quad / 4 * 64 + place] >> (quad % 4 * 2) & 3,
                _ => 0,
            };
            low | high << 4
        };
    }
    codes
}

/// Reads four bytes, little end first.
fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes([bytes[index * 4], bytes[index * 4 + 1], bytes[index * 4 + 2], bytes[index * 4 + 3]])
}

/// The unsigned codes of columns `32 part..` of a block of the file, four to a word.
fn source_quads(dtype: DType, block: &[u8], part: usize) -> [u32; 8] {
    const NIBBLES: u32 = 0x0f0f_0f0f;
    // Spreads bits 0..4 to the bottoms of the four bytes.
    let spread = |bits: u32| (bits & 15).wrapping_mul(0x0020_4081) & 0x0101_0101;
    let halves = |bytes: &[u8]| -> [u32; 8] {
        std::array::from_fn(|quad| word(bytes, quad % 4) >> (quad / 4 * 4) & NIBBLES)
    };
    let fifth = |mut quads: [u32; 8], high: u32| {
        for (quad, code) in quads.iter_mut().enumerate() {
            *code |= spread(high >> (4 * quad)) << 4;
        }
        quads
    };
    match dtype {
        DType::Q4_0 | DType::IQ4_NL => halves(&block[2..]),
        DType::Q4_1 => halves(&block[4..]),
        DType::Q5_0 => fifth(halves(&block[6..]), word(&block[2..], 0)),
        DType::Q5_1 => fifth(halves(&block[8..]), word(&block[4..], 0)),
        DType::Q8_0 => std::array::from_fn(|quad| word(&block[2..], quad) ^ 0x8080_8080),
        DType::Q4_K => {
            let bytes = &block[16 + part / 2 * 32..];
            std::array::from_fn(|quad| word(bytes, quad) >> (part % 2 * 4) & NIBBLES)
        }
        DType::Q5_K => {
            let (high, bytes) = (&block[16..48], &block[48 + part / 2 * 32..]);
            std::array::from_fn(|quad| {
                word(bytes, quad) >> (part % 2 * 4) & NIBBLES | (word(high, quad) >> part & 0x0101_0101) << 4
            })
        }
        DType::Q6_K => {
            let (half, quarter) = (part / 4, part % 4);
            let low = &block[64 * half + quarter % 2 * 32..];
            let high = &block[128 + 32 * half..];
            std::array::from_fn(|quad| {
                word(low, quad) >> (quarter / 2 * 4) & NIBBLES
                    | (word(high, quad) >> (2 * quarter) & 0x0303_0303) << 4
            })
        }
        other => unreachable!("{other} has no integer layout"),
    }
}

/// The 6-bit scale and minimum of sub-block `index` of a Q4_K or Q5_K block.
fn six_bit_pair(packed: &[u8], index: usize) -> (u8, u8) {
    if index < 4 {
        (packed[index] & 63, packed[index + 4] & 63)
    } else {
        (
            packed[index + 4] & 15 | packed[index - 4] >> 6 << 4,
            packed[index + 4] >> 4 | packed[index] >> 6 << 4,
        )
    }
}

fn pack_scales(integer: &Integer, block: &[u8], row: usize, record: &mut [u8]) {
    let mut half = |vector: usize, from: usize| {
        record[vector * 32 + row * 2..][..2].copy_from_slice(&block[from..from + 2]);
    };
    match integer.scales {
        Scales::Single => half(0, 0),
        Scales::Affine => {
            half(0, 0);
            half(1, 2);
        }
        Scales::SuperAffine => {
            half(0, 0);
            half(1, 2);
            for part in 0..8 {
                let (scale, minimum) = six_bit_pair(&block[4..16], part);
                record[64 + part * 32 + row] = scale;
                record[64 + part * 32 + 16 + row] = minimum;
            }
        }
        Scales::SuperHalf => {
            half(0, 208);
            for part in 0..16 {
                record[32 + part * 16 + row] = block[192 + part];
            }
        }
    }
}

/// Scales and minima of the two halves of block `part` of a record for one row: `w = scale (code - offset) + minimum`.
pub(super) fn row_scales(scales: Scales, record: &[u8], part: usize, row: usize) -> [(f32, f32); 2] {
    let half = |vector: usize| {
        let at = vector * 32 + row * 2;
        f16::from_le_bytes([record[at], record[at + 1]]).to_f32()
    };
    match scales {
        Scales::Single => [(half(0), 0.0); 2],
        Scales::Affine => [(half(0), half(1)); 2],
        Scales::SuperAffine => {
            let (scale, minimum) = (record[64 + part * 32 + row], record[64 + part * 32 + 16 + row]);
            [(half(0) * f32::from(scale), -(half(1) * f32::from(minimum))); 2]
        }
        Scales::SuperHalf => [0, 1].map(|side| {
            let scale = record[32 + (part * 2 + side) * 16 + row] as i8;
            (half(0) * f32::from(scale), 0.0)
        }),
    }
}

/// Writes the exact values of one row of a group to `output` (`columns` numbers).
pub(super) fn decode_row(geometry: &Geometry, group: &[u8], row: usize, output: &mut [f32]) {
    match geometry.layout {
        Layout::Integer(position) => {
            let integer = &INTEGERS[position];
            for (block, values) in output.chunks_exact_mut(BLOCK).enumerate() {
                let plane = &group[block * integer.code_bytes()..][..integer.code_bytes()];
                let per_record = integer.scales.blocks();
                let record = &group[geometry.scale_offset + block / per_record * integer.scales.bytes()..]
                    [..integer.scales.bytes()];
                let scales = row_scales(integer.scales, record, block % per_record, row);
                let codes = unpack_row(integer.bits, plane, row);
                for (column, value) in values.iter_mut().enumerate() {
                    let (scale, minimum) = scales[column / 16];
                    // The product is exact (at most 24 significant bits), so the order of the factors is free.
                    *value = scale * (code_value(integer, codes[column]) - integer.offset) as f32 + minimum;
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

/// The unsigned number a code stands for.
pub(super) fn code_value(integer: &Integer, code: u8) -> i32 {
    i32::from(if integer.table { NONLINEAR[usize::from(code & 15)] } else { code })
}
