//! 1-bit lattice formats: each run of eight elements is a ternary lattice point shifted by a common eighth;
//! x = d (2 s + 1) (point ± 1/8) with a three-bit s.

use super::{decode_blocks, half_at};
use crate::grids;
use half::f16;

/// `d f16 | qs[32] | qh u16[8]`; a u16 serves 32 elements: bits 8 to 10 of four point indices, s, sign of the shift.
pub(crate) fn decode_iq1_s(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 50], x: &mut [f32; 256]| {
        let d = half_at(block, 0);
        for (run, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let at = 34 + 2 * (run / 4);
            let field = u16::from_le_bytes([block[at], block[at + 1]]);
            let index = usize::from(block[2 + run]) | usize::from((field >> (3 * (run % 4))) & 7) << 8;
            put_shifted(x, d, (field >> 12) & 7, index, field & 0x8000 != 0);
        }
    });
}

/// `qs[32] | qh[16] | scales u16[4]`; a nibble of `qh` serves one run: bits 8 to 10 of its point index and the sign
/// of the shift. A u16 of `scales` holds the s of four groups of 16 elements; see [`iq1_m_scale`] for d.
pub(crate) fn decode_iq1_m(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 56], x: &mut [f32; 256]| {
        let d = iq1_m_scale(&block[48..]).to_f32();
        for (run, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let nibble = (block[32 + run / 2] >> (4 * (run % 2))) & 15;
            let index = usize::from(block[run]) | usize::from(nibble & 7) << 8;
            let group = run / 2;
            let at = 48 + 2 * (group / 4);
            let s = (u16::from_le_bytes([block[at], block[at + 1]]) >> (3 * (group % 4))) & 7;
            put_shifted(x, d, s, index, nibble & 8 != 0);
        }
    });
}

/// The half-precision d of an iq1_m block, spread over the top nibbles of the four u16 of its field `scales`, the
/// lowest nibble first.
#[inline(always)]
pub(crate) fn iq1_m_scale(scales: &[u8]) -> f16 {
    let bits = (0..4).fold(0, |bits, i| bits | u16::from(scales[2 * i + 1] >> 4) << (4 * i));
    f16::from_bits(bits)
}

#[inline(always)]
fn put_shifted(x: &mut [f32; 8], d: f32, s: u16, index: usize, negative_shift: bool) {
    let scale = d * f32::from(2 * s + 1);
    let shift = if negative_shift { -0.125 } else { 0.125 };
    for (x, &digit) in x.iter_mut().zip(&grids::IQ1[index]) {
        *x = scale * (f32::from(digit) + shift);
    }
}
