//! The scale records of integer formats: from a block of the file, and back to numbers.

use super::integers::{Integer, Scales};
use half::f16;
use puna_quant::codes::{half_word, six_bit_pair, sub_scale};
use puna_quant::{DType, FloatField};

/// Writes the F16 number `index` of a block of the file to `place`.
#[inline(always)]
fn pack_half(dtype: DType, block: &[u8], index: usize, place: &mut [u8]) {
    match dtype.format().floats[index] {
        FloatField::F16(at) => place.copy_from_slice(&block[at..at + 2]),
        FloatField::SplitF16(at) => {
            let bits = (0..4).fold(0, |bits, i| bits | u16::from(block[at + 2 * i + 1] >> 4) << (4 * i));
            place.copy_from_slice(&bits.to_le_bytes());
        }
        other => unreachable!("{other:?} is no half-precision scale"),
    }
}

/// Writes the scales of one block of the file, which is one record, as those of row `row`.
#[inline(always)]
pub(super) fn pack_scales(integer: &Integer, block: &[u8], row: usize, record: &mut [u8]) {
    let dtype = integer.dtype;
    let mut half = |index: usize| {
        pack_half(dtype, block, index, &mut record[index * 32 + row * 2..][..2]);
    };
    match integer.scales {
        Scales::Single(_) => half(0),
        Scales::Affine => {
            half(0);
            half(1);
        }
        Scales::Exponent => record[row] = block[0],
        Scales::Minifloat => {
            for part in 0..4 {
                // The sign is ignored, and not-a-number without it counts as 0.
                record[part * 16 + row] = if block[part] == 0x7f { 0 } else { block[part] & 0x7f };
            }
        }
        Scales::SuperAffine => {
            half(0);
            half(1);
            for part in 0..8 {
                let (scale, minimum) = six_bit_pair(&block[4..16], part);
                record[64 + part * 32 + row] = scale;
                record[64 + part * 32 + 16 + row] = minimum;
            }
        }
        Scales::SuperNibbles => {
            half(0);
            half(1);
            for part in 0..16 {
                record[64 + part / 2 * 32 + row * 2 + part % 2] = block[part];
            }
        }
        Scales::SuperSingle => {
            half(0);
            for part in 0..8 {
                record[32 + part * 16 + row] = sub_scale(dtype, block, part) as u8;
            }
        }
        Scales::SuperHalf => {
            half(0);
            for part in 0..16 {
                record[32 + part * 16 + row] = sub_scale(dtype, block, part) as u8;
            }
        }
    }
}

/// Scales and minima of the two halves of block `part` of a record for one row: `w = scale (value - offset) + minimum`.
pub(super) fn row_scales(integer: &Integer, record: &[u8], part: usize, row: usize) -> [(f32, f32); 2] {
    let half = |vector: usize| f16::from_bits(half_word(&record[vector * 32 + row * 2..], 0)).to_f32();
    let signed = |at: usize| (half(0) * integer.factor * f32::from(record[at + row] as i8), 0.0);
    match integer.scales {
        Scales::Single(_) => [(half(0), 0.0); 2],
        Scales::Affine => [(half(0), half(1)); 2],
        Scales::Exponent => [(puna_quant::half_e8m0(record[row]), 0.0); 2],
        Scales::Minifloat => [0, 1].map(|side| {
            let code = record[(part * 2 + side) * 16 + row];
            // Exponents of four bits are biased by 7, those of F16 by 15; the fractions align.
            (f16::from_bits(u16::from(code) << 7).to_f32() * integer.factor, 0.0)
        }),
        Scales::SuperAffine => {
            let (scale, minimum) = (record[64 + part * 32 + row], record[64 + part * 32 + 16 + row]);
            [(half(0) * f32::from(scale), -(half(1) * f32::from(minimum))); 2]
        }
        Scales::SuperNibbles => [0, 1].map(|side| {
            let pair = record[64 + part * 32 + row * 2 + side];
            (half(0) * f32::from(pair & 15), -(half(1) * f32::from(pair >> 4)))
        }),
        Scales::SuperSingle => [signed(32 + part * 16); 2],
        Scales::SuperHalf => [0, 1].map(|side| signed(32 + (part * 2 + side) * 16)),
    }
}
