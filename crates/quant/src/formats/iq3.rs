//! 3-bit lattice formats: each run of four elements is a lattice point with signs.

use super::iq2::put_point;
use super::{decode_blocks, half_at};
use crate::grids;

/// `d f16 | qs[64] | u32[8]`; x = d (s + 1/2) / 2 point sign. A u32 serves 32 elements: four sign indices of seven
/// bits, each for two points, below the four-bit s.
pub(crate) fn decode_iq3_xxs(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 98], x: &mut [f32; 256]| {
        let d = half_at(block, 0);
        let (fields, _) = block[66..].as_chunks::<4>();
        for (run, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let fields = u32::from_le_bytes(fields[run / 8]);
            let scale = d * (0.5 + (fields >> 28) as f32) * 0.5;
            let signs = grids::signs((fields >> (7 * (run % 8 / 2))) as u8);
            let point = &grids::IQ3_XXS[usize::from(block[2 + run])];
            put_point(x, scale, point, signs >> (4 * (run % 2)));
        }
    });
}

/// `d f16 | qs[64] | qh[8] | signs[32] | scales[4]`; x = d (2 s + 1) point sign. `qh` holds bit 8 of eight point
/// indices a byte, a nibble of `scales` serves 32 elements.
pub(crate) fn decode_iq3_s(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 110], x: &mut [f32; 256]| {
        let d = half_at(block, 0);
        for (run, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let group = run / 8;
            let high_bit = (block[66 + group] >> (run % 8)) & 1;
            let index = usize::from(block[2 + run]) | usize::from(high_bit) << 8;
            let s = (block[106 + group / 2] >> (4 * (group % 2))) & 15;
            let scale = d * f32::from(1 + 2 * s);
            put_point(x, scale, &grids::IQ3_S[index], block[74 + run / 2] >> (4 * (run % 2)));
        }
    });
}
