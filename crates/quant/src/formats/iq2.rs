//! 2-bit lattice formats: each run of eight elements is a lattice point with signs; x = scale point sign, with
//! scale = d (s + 1/2) / 4 of a four-bit s.

use super::{decode_blocks, half_at, high, low};
use crate::grids;

/// `d f16 | u16[32]`; 32 elements take two u32: four point indices, then four sign indices below the scale.
pub(crate) fn decode_iq2_xxs(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 66], x: &mut [f32; 256]| {
        let d = half_at(block, 0);
        let (groups, _) = block[2..].as_chunks::<8>();
        for (group, x) in groups.iter().zip(x.as_chunks_mut::<32>().0) {
            let fields = u32::from_le_bytes([group[4], group[5], group[6], group[7]]);
            let scale = group_scale(d, (fields >> 28) as u8);
            for (l, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
                let signs = grids::signs((fields >> (7 * l)) as u8);
                put_point(x, scale, &grids::IQ2_XXS[usize::from(group[l])], signs);
            }
        }
    });
}

/// `d f16 | u16[32] | scales[8]`; a u16 holds a 9-bit point index and a 7-bit sign index.
pub(crate) fn decode_iq2_xs(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 74], x: &mut [f32; 256]| {
        let d = half_at(block, 0);
        for (run, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let field = u16::from_le_bytes([block[2 + 2 * run], block[3 + 2 * run]]);
            let scale = run_scale(d, &block[66..], run);
            let point = &grids::IQ2_XS[usize::from(field & 511)];
            put_point(x, scale, point, grids::signs((field >> 9) as u8));
        }
    });
}

/// `d f16 | qs[32] | signs[32] | qh[8] | scales[8]`; `qh` holds bits 8 and 9 of four point indices a byte.
pub(crate) fn decode_iq2_s(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 82], x: &mut [f32; 256]| {
        let d = half_at(block, 0);
        for (run, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let high_bits = (block[66 + run / 4] >> (2 * (run % 4))) & 3;
            let index = usize::from(block[2 + run]) | usize::from(high_bits) << 8;
            let scale = run_scale(d, &block[74..], run);
            put_point(x, scale, &grids::IQ2_S[index], block[34 + run]);
        }
    });
}

/// Scale of a run of eight: each nibble of `scales` serves two runs.
#[inline(always)]
fn run_scale(d: f32, scales: &[u8], run: usize) -> f32 {
    let byte = scales[run / 4];
    group_scale(d, if run % 4 < 2 { low(byte) } else { high(byte) })
}

#[inline(always)]
fn group_scale(d: f32, s: u8) -> f32 {
    d * (0.5 + f32::from(s)) * 0.25
}

/// Writes a lattice point times `scale`; bit j of `signs` negates element j.
#[inline(always)]
pub(super) fn put_point<const N: usize>(x: &mut [f32; N], scale: f32, point: &[i8; N], signs: u8) {
    for j in 0..N {
        let magnitude = scale * f32::from(point[j]);
        x[j] = if (signs >> j) & 1 == 0 { magnitude } else { -magnitude };
    }
}
