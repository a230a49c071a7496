//! Tensors of the file as constants: codes of 4 or 8 bits with scales and zero points, or floats.
//!
//! Formats that are integers with a scale per group keep their codes; all others are decoded and written again as 8-bit
//! integers with a scale per group of 32.

mod blocks;
mod rules;

use half::{bf16, f16};
use puna_quant::DType;

use crate::ir::Element;
pub use rules::{Kind, Use};

/// How a tensor is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coding {
    /// Format in the file.
    pub dtype: DType,
    /// Type of the codes, or of the numbers themselves.
    pub element: Element,
    /// Elements that share a scale.
    pub group: usize,
    /// Type of the scales.
    pub scales: Element,
    /// Type of the zero points, of which each group has one if it has any.
    pub zeros: Option<Element>,
    /// What becomes of the format's codes.
    recode: Recode,
    /// Elements of a row.
    width: usize,
}

/// What becomes of the codes of a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Recode {
    /// They stay.
    Kept,
    /// Decoded and written again as signed integers without zero points.
    Signed,
    /// Multiplied with a whole number, so that zero points can be rounded.
    Fine,
}

/// One of the constants that a tensor becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Codes, or the numbers themselves.
    Codes,
    /// A factor per group.
    Scales,
    /// What is taken from the codes of a group before they are multiplied.
    Zeros,
}

impl Coding {
    /// The element type, if the tensor is written as plain numbers.
    pub fn float(&self) -> Option<Element> {
        matches!(self.element, Element::F32 | Element::F16 | Element::BF16).then_some(self.element)
    }

    /// Writes one part of a tensor whose bytes in the file are `source`.
    pub fn write(&self, part: Part, source: &[u8], out: &mut [u8]) {
        if self.float().is_some() {
            match (self.dtype, self.element) {
                (DType::F32, Element::F32) | (DType::F16, Element::F16) | (DType::BF16, Element::BF16) => {
                    let length = source.len().min(out.len());
                    out[..length].copy_from_slice(&source[..length]);
                }
                (_, Element::F16) => halves(self.dtype, source, out),
                (_, Element::BF16) => shorts(self.dtype, source, out),
                _ => floats(self.dtype, source, out),
            }
            return;
        }
        let group_bytes = match part {
            Part::Codes => self.group * self.element.bits() / 8,
            Part::Scales => self.scales.bits() / 8,
            Part::Zeros => self.zeros.map_or(0, Element::bits) / 8,
        };
        let mut outs = out.chunks_exact_mut(group_bytes.max(1));
        blocks::each_group(self, source, |group, codes| {
            let Some(out) = outs.next() else { return };
            match (part, self.zeros) {
                (Part::Codes, _) => self.write_codes(codes, out),
                (Part::Scales, _) => write_number(group.scale, self.scales, out),
                (Part::Zeros, Some(Element::U8)) => out[0] = group.zero.round().clamp(0.0, 255.0) as u8,
                (Part::Zeros, zeros) => write_number(group.zero, zeros.unwrap_or(self.scales), out),
            }
        });
    }

    fn write_codes(&self, codes: &[u8], out: &mut [u8]) {
        match self.element {
            Element::I4 | Element::U4 => {
                for (out, pair) in out.iter_mut().zip(codes.chunks_exact(2)) {
                    *out = pair[0] & 15 | pair[1] << 4;
                }
            }
            _ => out.copy_from_slice(codes),
        }
    }
}

/// Writes the number, or the one next to it that single or half precision holds.
fn write_number(number: f32, element: Element, out: &mut [u8]) {
    match element {
        Element::F32 => out.copy_from_slice(&number.clamp(-f32::MAX, f32::MAX).to_le_bytes()),
        _ => {
            let most = f16::MAX.to_f32();
            out.copy_from_slice(&f16::from_f32(number.clamp(-most, most)).to_le_bytes());
        }
    }
}

/// Writes a tensor as `f32`.
pub fn floats(dtype: DType, source: &[u8], out: &mut [u8]) {
    numbers(dtype, source, out, |float, out: &mut [u8; 4]| *out = float.to_le_bytes());
}

/// Writes a tensor as `f16`.
fn halves(dtype: DType, source: &[u8], out: &mut [u8]) {
    numbers(dtype, source, out, |float, out: &mut [u8; 2]| *out = f16::from_f32(float).to_le_bytes());
}

/// Writes a tensor as `bf16`.
fn shorts(dtype: DType, source: &[u8], out: &mut [u8]) {
    numbers(dtype, source, out, |float, out: &mut [u8; 2]| *out = bf16::from_f32(float).to_le_bytes());
}

/// Decodes a tensor and has each number written into its bytes.
fn numbers<const N: usize>(dtype: DType, source: &[u8], out: &mut [u8], write: impl Fn(f32, &mut [u8; N])) {
    let format = dtype.format();
    // Some whole blocks at a time, so that a large tensor is never held twice.
    let blocks = (4096 / format.block).max(1);
    let mut floats = vec![0.0_f32; blocks * format.block];
    let parts = source.chunks(blocks * format.bytes).zip(out.chunks_mut(blocks * format.block * N));
    for (source, out) in parts {
        let floats = &mut floats[..source.len() / format.bytes * format.block];
        (format.decode)(source, floats);
        for (out, float) in out.as_chunks_mut::<N>().0.iter_mut().zip(floats) {
            write(*float, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a plugin makes of the parts of a coding.
    fn reconstruct(coding: &Coding, source: &[u8], elements: usize) -> Vec<f32> {
        let part = |part: Part, bits: usize| {
            let mut out = vec![0; elements * bits / 8];
            coding.write(part, source, &mut out);
            out
        };
        let codes = part(Part::Codes, coding.element.bits());
        let groups = elements / coding.group;
        let of_groups = |which: Part, bytes: usize| {
            let mut out = vec![0; groups * bytes];
            coding.write(which, source, &mut out);
            out
        };
        let numbers = |part: Part, element: Element| -> Vec<f32> {
            let bytes = of_groups(part, element.bits() / 8);
            match element {
                Element::U8 => bytes.into_iter().map(f32::from).collect(),
                Element::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
                Element::F16 => {
                    bytes.as_chunks().0.iter().map(|two| f16::from_le_bytes(*two).to_f32()).collect()
                }
                other => panic!("{other:?}"),
            }
        };
        let scales = numbers(Part::Scales, coding.scales);
        let zeros = coding.zeros.map_or(vec![0.0; groups], |element| numbers(Part::Zeros, element));
        (0..elements)
            .map(|index| {
                let code = match coding.element {
                    Element::U8 => codes[index] as f32,
                    Element::I8 => codes[index] as i8 as f32,
                    Element::U4 => (codes[index / 2] >> (4 * (index % 2)) & 15) as f32,
                    Element::I4 => ((codes[index / 2] << (4 * (1 - index % 2))) as i8 >> 4) as f32,
                    other => panic!("{other:?}"),
                };
                let group = index / coding.group;
                (code - zeros[group]) * scales[group]
            })
            .collect()
    }

    /// Every format that weights may have, encoded from the same numbers: what the constants mean is what the
    /// decoder says, up to the rounding of scales, zero points and (for formats written again) codes.
    #[test]
    fn constants_mean_what_the_decoder_says() {
        let width = 512;
        let numbers: Vec<f32> = (0..2 * width)
            .map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0) * (1.0 + (i / 64) as f32 / 9.0))
            .collect();
        for format in puna_quant::FORMATS {
            let Some(quantize) = format.quantize else { continue };
            let mut source = vec![0; numbers.len() / format.block * format.bytes];
            quantize(&numbers, None, &mut source);
            let mut right = vec![0.0; numbers.len()];
            (format.decode)(&source, &mut right);
            for role in [Use::Table, Use::Output, Use::Factor] {
                for kind in [Kind::Cpu, Kind::CpuDynamic, Kind::Gpu, Kind::Npu] {
                    let coding = Coding::of(format.dtype, width, role, kind);
                    if coding.float().is_some() {
                        continue;
                    }
                    let found = reconstruct(&coding, &source, numbers.len());
                    let error =
                        found.iter().zip(&right).map(|(a, b)| (a - b) as f64).map(|x| x * x).sum::<f64>();
                    let error = error / right.iter().map(|x| *x as f64 * *x as f64).sum::<f64>();
                    // Rounded scales or none, zero points with 1/17 of a step, integers of eight bits for a group or a
                    // row, and of four bits.
                    let most = match (coding.recode, coding.element) {
                        (Recode::Kept, _) if coding.scales == Element::F32 => 1e-12,
                        (Recode::Kept, _) => 1e-6,
                        (Recode::Fine, _) => 2e-5,
                        (Recode::Signed, Element::I4) => 1.5e-2,
                        (Recode::Signed, _) => 5e-5,
                    };
                    let name = format.name;
                    assert!(error < most, "{name} {role:?} {kind:?} {:?}: {error:.1e}", coding.element);
                }
            }
        }
    }

    /// Groups whose numbers lie all on one side of zero, far from it, or are all the same.
    #[test]
    fn fine_codes_hold_groups_that_zero_is_no_part_of() {
        for (scale, least) in [(0.1, 0.4), (0.01, -3.0), (0.0, 0.7), (0.0, 0.0), (0.2, -1.33), (1e-4, 2.0)] {
            let mut source = Vec::new();
            source.extend(f16::from_f32(scale).to_le_bytes());
            source.extend(f16::from_f32(least).to_le_bytes());
            source.extend((0..16).map(|index| index as u8 * 16 + (15 - index as u8)));
            let mut right = vec![0.0; 32];
            (DType::Q4_1.format().decode)(&source, &mut right);
            let coding = Coding::of(DType::Q4_1, 32, Use::Factor, Kind::CpuDynamic);
            let found = reconstruct(&coding, &source, 32);
            let most = right.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            for (found, right) in found.iter().zip(&right) {
                assert!((found - right).abs() <= most / 200.0, "{scale} {least}: {found} {right}");
            }
        }
    }
}
