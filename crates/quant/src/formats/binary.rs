//! Formats of one and two bits in plain order: q1_0 and q2_0.

use super::{decode_blocks, half_at};

/// `d f16 | qs[16]`; bit j set: x = d, clear: x = -d.
pub(crate) fn decode_q1_0(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 18], x: &mut [f32; 128]| {
        let d = half_at(block, 0);
        for j in 0..128 {
            x[j] = if (block[2 + j / 8] >> (j % 8)) & 1 == 0 { -d } else { d };
        }
    });
}

/// `d f16 | qs[16]`; x = (q - 1) d.
pub(crate) fn decode_q2_0(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 18], x: &mut [f32; 64]| {
        let d = half_at(block, 0);
        for j in 0..64 {
            let q = (block[2 + j / 4] >> (2 * (j % 4))) & 3;
            x[j] = (i32::from(q) - 1) as f32 * d;
        }
    });
}
