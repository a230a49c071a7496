//! Reading blocks of a file as groups of codes with a scale and a zero point.

use half::f16;
use puna_quant::DType;

/// What a group's codes are multiplied with, after its zero point is taken away.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Group {
    pub(super) scale: f32,
    pub(super) zero: f32,
}

impl Group {
    /// `scale · code + least` with unsigned codes. A scale of zero leaves the constant `least`, which only codes of
    /// zero can stand for.
    fn affine(scale: f32, least: f32, codes: &mut [u8]) -> Self {
        if scale != 0.0 {
            return Self { scale, zero: -least / scale };
        }
        codes.fill(0);
        Self { scale: least, zero: if least == 0.0 { 0.0 } else { -1.0 } }
    }

    fn plain(scale: f32) -> Self {
        Self { scale, zero: 0.0 }
    }
}

/// Whether the format's own codes are kept.
#[cfg(test)]
pub(super) fn is_native(dtype: DType) -> bool {
    use DType::{Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    matches!(dtype, Q4_0 | Q4_1 | Q4_K | Q5_0 | Q5_1 | Q5_K | Q6_K | Q8_0)
}

/// Calls `each` with every group of a tensor, in order. `codes` is work space of one group: bytes, signed ones as
/// two's complement.
pub(super) fn each_group(
    dtype: DType,
    group: usize,
    width: usize,
    source: &[u8],
    codes: &mut [u8],
    mut each: impl FnMut(&Group, &[u8]),
) {
    let bytes = dtype.format().bytes;
    let half = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match dtype {
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
            for block in source.chunks_exact(bytes) {
                let group = small_block(dtype, block, codes);
                each(&group, codes);
            }
        }
        DType::Q8_0 => {
            for block in source.chunks_exact(bytes) {
                codes.copy_from_slice(&block[2..]);
                each(&Group::plain(half(block, 0)), codes);
            }
        }
        DType::Q4_K | DType::Q5_K => {
            for block in source.chunks_exact(bytes) {
                let (scale, least) = (half(block, 0), half(block, 2));
                for index in 0..8 {
                    k_codes(dtype, block, index, codes);
                    let (factor, offset) = k_factors(&block[4..16], index);
                    let group = Group::affine(scale * factor as f32, -least * offset as f32, codes);
                    each(&group, codes);
                }
            }
        }
        DType::Q6_K => {
            for block in source.chunks_exact(bytes) {
                for index in 0..16 {
                    q6_codes(block, index, codes);
                    let factor = block[192 + index] as i8;
                    each(&Group::plain(half(block, 208) * factor as f32), codes);
                }
            }
        }
        _ => recoded(dtype, group, width, source, codes, each),
    }
}

/// Decoded and written again as signed bytes.
fn recoded(
    dtype: DType,
    group: usize,
    width: usize,
    source: &[u8],
    codes: &mut [u8],
    mut each: impl FnMut(&Group, &[u8]),
) {
    let format = dtype.format();
    let mut row = vec![0.0_f32; width];
    for source in source.chunks_exact(width / format.block * format.bytes) {
        (format.decode)(source, &mut row);
        for floats in row.chunks_exact(group) {
            let most = floats.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            // The scale as it will be stored decides the codes.
            let scale = f16::from_f32(most / 127.0).to_f32();
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (code, x) in codes.iter_mut().zip(floats) {
                *code = (x * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
            }
            each(&Group::plain(scale), codes);
        }
    }
}

/// Blocks of 32 with one scale and perhaps a least value; low nibbles come first, fifth bits in a word of their own.
fn small_block(dtype: DType, block: &[u8], codes: &mut [u8]) -> Group {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let has_least = matches!(dtype, DType::Q4_1 | DType::Q5_1);
    let has_fifth = matches!(dtype, DType::Q5_0 | DType::Q5_1);
    let mut at = if has_least { 4 } else { 2 };
    let fifth = match has_fifth {
        true => {
            at += 4;
            u32::from_le_bytes([block[at - 4], block[at - 3], block[at - 2], block[at - 1]])
        }
        false => 0,
    };
    for (index, code) in codes.iter_mut().enumerate() {
        let nibble = block[at + index % 16] >> (4 * (index / 16)) & 15;
        *code = nibble | ((fifth >> index & 1) as u8 * 16);
    }
    match dtype {
        DType::Q4_0 | DType::Q5_0 => {
            let middle = if has_fifth { 16 } else { 8 };
            codes.iter_mut().for_each(|code| *code = code.wrapping_sub(middle));
            Group::plain(half(0))
        }
        _ => Group::affine(half(0), half(2), codes),
    }
}

/// Codes of one of the eight groups of a Q4_K or Q5_K block.
fn k_codes(dtype: DType, block: &[u8], group: usize, codes: &mut [u8]) {
    let (fifth, nibbles) = match dtype {
        DType::Q5_K => (Some(&block[16..48]), &block[48..]),
        _ => (None, &block[16..]),
    };
    for (index, code) in codes.iter_mut().enumerate() {
        let nibble = nibbles[group / 2 * 32 + index] >> (4 * (group % 2)) & 15;
        *code = nibble | fifth.map_or(0, |fifth| (fifth[index] >> group & 1) * 16);
    }
}

/// Six-bit factor and offset of one of the eight groups.
fn k_factors(packed: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => (
            packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
        ),
    }
}

/// Codes of one of the sixteen groups of a Q6_K block, less 32.
fn q6_codes(block: &[u8], group: usize, codes: &mut [u8]) {
    for (index, code) in codes.iter_mut().enumerate() {
        let element = group * 16 + index;
        let (part, within) = (element / 128, element % 128);
        let (quarter, column) = (within / 32, within % 32);
        let low = block[part * 64 + column + quarter % 2 * 32] >> (4 * (quarter / 2)) & 15;
        let high = block[128 + part * 32 + column] >> (2 * quarter) & 3;
        *code = (low | high << 4).wrapping_sub(32);
    }
}
