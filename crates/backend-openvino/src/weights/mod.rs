//! Tensors of the file as constants: codes of 4 or 8 bits with scales and zero points, or floats.
//!
//! Formats that are integers with a scale per group keep their codes; all others are decoded and written again as 8-bit
//! integers with a scale per group of 32.

mod blocks;

use half::f16;
use puna_quant::DType;

use crate::ir::Element;
use blocks::Group;

/// How a tensor is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coding {
    /// Format in the file.
    pub dtype: DType,
    /// Type of the codes, or of the numbers themselves.
    pub element: Element,
    /// Elements that share a scale.
    pub group: usize,
    /// Whether each group has a zero point.
    pub has_zeros: bool,
    /// Elements of a row.
    width: usize,
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
    /// How a tensor of this format with rows of `width` elements is written.
    pub fn of(dtype: DType, width: usize) -> Self {
        let (element, group, has_zeros) = match dtype {
            DType::F32 | DType::F64 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
                (Element::F32, 1, false)
            }
            DType::F16 => (Element::F16, 1, false),
            DType::BF16 => (Element::BF16, 1, false),
            DType::Q4_0 => (Element::I4, 32, false),
            DType::Q4_1 | DType::Q4_K => (Element::U4, 32, true),
            DType::Q5_1 | DType::Q5_K => (Element::U8, 32, true),
            DType::Q6_K => (Element::I8, 16, false),
            // A width that is no multiple of 32 has one group.
            _ if width.is_multiple_of(RECODED_GROUP) => (Element::I8, RECODED_GROUP, false),
            _ => (Element::I8, width, false),
        };
        Self { dtype, element, group, has_zeros, width }
    }

    /// The same with codes of whole bytes, as tables need them.
    pub fn in_bytes(mut self) -> Self {
        self.element = match self.element {
            Element::I4 => Element::I8,
            Element::U4 => Element::U8,
            other => other,
        };
        self
    }

    /// The same with codes of another type.
    pub fn with_element(self, element: Element) -> Self {
        Self { element, ..self }
    }

    /// The element type, if the tensor is written as plain numbers.
    pub fn float(&self) -> Option<Element> {
        matches!(self.element, Element::F32 | Element::F16 | Element::BF16).then_some(self.element)
    }

    /// Writes one part of a tensor whose bytes in the file are `source`.
    pub fn write(&self, part: Part, source: &[u8], out: &mut [u8]) {
        if self.float().is_some() {
            match self.dtype {
                DType::F32 | DType::F16 | DType::BF16 => {
                    let length = source.len().min(out.len());
                    out[..length].copy_from_slice(&source[..length]);
                }
                _ => floats(self.dtype, source, out),
            }
            return;
        }
        let group_bytes = match part {
            Part::Codes => self.group * self.element.bits() / 8,
            Part::Scales | Part::Zeros => 2,
        };
        let mut outs = out.chunks_exact_mut(group_bytes.max(1));
        let mut codes = vec![0; self.group];
        blocks::each_group(self.dtype, self.group, self.width, source, &mut codes, |group, codes| {
            let Some(out) = outs.next() else { return };
            match part {
                Part::Codes => self.write_codes(codes, out),
                Part::Scales => out.copy_from_slice(&f16::from_f32(group.scale).to_le_bytes()),
                Part::Zeros => out.copy_from_slice(&f16::from_f32(zero_of(group)).to_le_bytes()),
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

/// The zero point within what half precision holds.
fn zero_of(group: &Group) -> f32 {
    group.zero.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32())
}

/// Group of formats that are decoded and written again.
const RECODED_GROUP: usize = 32;

/// Writes a tensor as `f32`.
pub fn floats(dtype: DType, source: &[u8], out: &mut [u8]) {
    let format = dtype.format();
    // Some whole blocks at a time, so that a large tensor is never held twice.
    let blocks = (4096 / format.block).max(1);
    let mut floats = vec![0.0_f32; blocks * format.block];
    let parts = source.chunks(blocks * format.bytes).zip(out.chunks_mut(blocks * format.block * 4));
    for (source, out) in parts {
        let floats = &mut floats[..source.len() / format.bytes * format.block];
        (format.decode)(source, floats);
        for (out, float) in out.chunks_exact_mut(4).zip(floats) {
            out.copy_from_slice(&float.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a plugin makes of the parts of a coding.
    fn reconstruct(coding: &Coding, source: &[u8], elements: usize) -> Vec<f32> {
        let mut parts = [Part::Codes, Part::Scales, Part::Zeros].map(|part| {
            let bytes = match part {
                Part::Codes => elements * coding.element.bits() / 8,
                _ => elements / coding.group * 2,
            };
            let mut out = vec![0; bytes];
            coding.write(part, source, &mut out);
            out
        });
        let half = |bytes: &[u8], index: usize| {
            f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
        };
        if !coding.has_zeros {
            parts[2].fill(0);
        }
        (0..elements)
            .map(|index| {
                let code = match coding.element {
                    Element::U8 => parts[0][index] as f32,
                    Element::I8 => parts[0][index] as i8 as f32,
                    Element::U4 => (parts[0][index / 2] >> (4 * (index % 2)) & 15) as f32,
                    Element::I4 => ((parts[0][index / 2] << (4 * (1 - index % 2))) as i8 >> 4) as f32,
                    other => panic!("{other:?}"),
                };
                let group = index / coding.group;
                (code - half(&parts[2], group)) * half(&parts[1], group)
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
            for coding in [Coding::of(format.dtype, width), Coding::of(format.dtype, width).in_bytes()] {
                if coding.float().is_some() {
                    continue;
                }
                let found = reconstruct(&coding, &source, numbers.len());
                let error = found.iter().zip(&right).map(|(a, b)| (a - b) as f64).map(|x| x * x).sum::<f64>();
                let error = error / right.iter().map(|x| *x as f64 * *x as f64).sum::<f64>();
                let native = blocks::is_native(format.dtype);
                let most = if native { 1e-6 } else { 5e-5 };
                assert!(error < most, "{} {:?}: {error:.1e}", format.name, coding.element);
            }
        }
    }

    #[test]
    fn tensors_of_odd_width_have_one_group_per_row() {
        let coding = Coding::of(DType::Q4_0, 64);
        assert_eq!((coding.element, coding.group, coding.has_zeros), (Element::I4, 32, false));
        assert_eq!(Coding::of(DType::IQ2_XXS, 256).group, 32);
        assert_eq!(Coding::of(DType::F16, 7).float(), Some(Element::F16));
    }
}
