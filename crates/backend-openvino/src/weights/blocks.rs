//! Reading blocks of a file as groups of codes with a scale and a zero point.

use half::f16;
use puna_quant::DType;

use super::{Coding, Recode};
use crate::ir::Element;

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

/// Calls `each` with every group of a tensor, in order, and its codes: bytes, signed ones as two's complement.
pub(super) fn each_group(coding: &Coding, source: &[u8], mut each: impl FnMut(&Group, &[u8])) {
    match coding.recode {
        Recode::Kept => each_kept(coding, source, |group, codes| each(&group, codes)),
        Recode::Signed => recoded(coding, source, each),
        Recode::Fine => each_kept(coding, source, |group, codes| each(&refined(group, codes), codes)),
    }
}

/// Multiplies codes so that a zero point which is rounded is off by little of a step, and moves them where the zero point
/// is no code.
fn refined(group: Group, codes: &mut [u8]) -> Group {
    let most = codes.iter().copied().max().unwrap_or(0) as f32;
    let (low, high) = (group.zero.min(0.0), group.zero.max(most));
    let times = (255.0 / (high - low).max(1.0)).floor();
    if times >= 1.0 {
        let shift = (-low * times).round();
        codes.iter_mut().for_each(|code| *code = (*code as f32 * times + shift).min(255.0) as u8);
        return Group { scale: group.scale / times, zero: group.zero * times + shift };
    }
    // Numbers so far from zero that their steps are finer than those of eight bits.
    let numbers = |code: u8| (code as f32 - group.zero) * group.scale;
    let reach =
        codes.iter().map(|code| numbers(*code)).fold(0.0_f32, |a, b| if b.abs() > a.abs() { b } else { a });
    let scale = reach / 255.0;
    codes.iter_mut().for_each(|code| *code = (numbers(*code) / scale).round().clamp(0.0, 255.0) as u8);
    Group { scale, zero: 0.0 }
}

/// The groups of formats that are integers with a scale per group.
fn each_kept(coding: &Coding, source: &[u8], mut each: impl FnMut(Group, &mut [u8])) {
    let dtype = coding.dtype;
    let codes = &mut vec![0; coding.group][..];
    let bytes = dtype.format().bytes;
    let half = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match dtype {
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
            for block in source.chunks_exact(bytes) {
                let group = small_block(dtype, block, codes);
                each(group, codes);
            }
        }
        DType::Q8_0 => {
            for block in source.chunks_exact(bytes) {
                codes.copy_from_slice(&block[2..]);
                each(Group::plain(half(block, 0)), codes);
            }
        }
        DType::Q4_K | DType::Q5_K => {
            for block in source.chunks_exact(bytes) {
                let (scale, least) = (half(block, 0), half(block, 2));
                for index in 0..8 {
                    k_codes(dtype, block, index, codes);
                    let (factor, offset) = k_factors(&block[4..16], index);
                    let group = Group::affine(scale * factor as f32, -least * offset as f32, codes);
                    each(group, codes);
                }
            }
        }
        DType::Q6_K => {
            for block in source.chunks_exact(bytes) {
                for index in 0..16 {
                    q6_codes(block, index, codes);
                    let factor = block[192 + index] as i8;
                    each(Group::plain(half(block, 208) * factor as f32), codes);
                }
            }
        }
        other => unreachable!("{other} has no codes of its own"),
    }
}

/// Decoded and written again as signed integers of the coding's type.
fn recoded(coding: &Coding, source: &[u8], mut each: impl FnMut(&Group, &[u8])) {
    let format = coding.dtype.format();
    let codes = &mut vec![0; coding.group][..];
    let mut row = vec![0.0_f32; coding.width];
    for source in source.chunks_exact(coding.width / format.block * format.bytes) {
        (format.decode)(source, &mut row);
        for floats in row.chunks_exact(coding.group) {
            let most = floats.iter().fold(0.0_f32, |most, x| if x.abs() > most.abs() { *x } else { most });
            // The range has one more step below zero than above; with few steps it is worth using, by the sign of the scale.
            let (step, low, high) = match coding.element {
                Element::I4 => (most / -8.0, -8.0, 7.0),
                _ => (most.abs() / 127.0, -127.0, 127.0),
            };
            // The scale as it will be stored decides the codes.
            let scale = if coding.scales == Element::F16 { f16::from_f32(step).to_f32() } else { step };
            let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
            for (code, x) in codes.iter_mut().zip(floats) {
                *code = (x * inverse).round().clamp(low, high) as i8 as u8;
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
