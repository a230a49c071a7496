//! Careful encoders of q2_K to q6_K; the layouts are those of the decoders in `k_quants`.

use super::fit::{normalised, weights};
use super::k_quants::two_bit_group;
use super::k_search::{Affine, Symmetric, affine_block, split, symmetric_block};
use super::{put_half, quantize_blocks};

pub(crate) fn quantize_q2_k(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 84]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let w = weights(&x, importance);
        let found: Affine<2, 16> = affine_block(&split(&x, &w), unit, 3.0, 15.0);
        let (scales, mins, q) =
            (found.scales.as_flattened(), found.mins.as_flattened(), found.q.as_flattened());
        put_half(block, 80, found.d);
        put_half(block, 82, found.dmin);
        for group in 0..16 {
            block[group] = scales[group] | mins[group] << 4;
            let (start, shift) = two_bit_group(group);
            for l in 0..16 {
                block[16 + start + l] |= q[group][l] << shift;
            }
        }
    });
}

pub(crate) fn quantize_q3_k(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 110]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let w = weights(&x, importance);
        let found: Symmetric<2, 16> = symmetric_block(&split(&x, &w), unit, (-4.0, 3.0), 32.0);
        let (scales, q) = (found.scales.as_flattened(), found.q.as_flattened());
        put_half(block, 108, found.d);
        for group in 0..16 {
            let scale = (scales[group] + 32) as u8;
            block[96 + group % 8] |= (scale & 15) << (4 * (group / 8));
            block[104 + group % 4] |= (scale >> 4) << (2 * (group / 4));
            let (start, shift) = two_bit_group(group);
            for l in 0..16 {
                let q = (q[group][l] + 4) as u8;
                block[32 + start + l] |= (q & 3) << shift;
                block[16 * (group % 2) + l] |= (q >> 2) << (group / 2);
            }
        }
    });
}

pub(crate) fn quantize_q4_k(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 144]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let w = weights(&x, importance);
        let found: Affine<1, 32> = affine_block(&split(&x, &w), unit, 15.0, 63.0);
        put_half(block, 0, found.d);
        put_half(block, 2, found.dmin);
        put_scales_and_mins(&mut block[4..16], &found.scales[0], &found.mins[0]);
        for sub in 0..8 {
            for l in 0..32 {
                block[16 + 32 * (sub / 2) + l] |= found.q[0][sub][l] << (4 * (sub % 2));
            }
        }
    });
}

pub(crate) fn quantize_q5_k(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 176]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let w = weights(&x, importance);
        let found: Affine<1, 32> = affine_block(&split(&x, &w), unit, 31.0, 63.0);
        put_half(block, 0, found.d);
        put_half(block, 2, found.dmin);
        put_scales_and_mins(&mut block[4..16], &found.scales[0], &found.mins[0]);
        for sub in 0..8 {
            for l in 0..32 {
                let q = found.q[0][sub][l];
                block[48 + 32 * (sub / 2) + l] |= (q & 15) << (4 * (sub % 2));
                block[16 + l] |= (q >> 4) << sub;
            }
        }
    });
}

pub(crate) fn quantize_q6_k(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 210]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let w = weights(&x, importance);
        let found: Symmetric<2, 16> = symmetric_block(&split(&x, &w), unit, (-32.0, 31.0), 128.0);
        let (scales, q) = (found.scales.as_flattened(), found.q.as_flattened());
        put_half(block, 208, found.d);
        for group in 0..16 {
            block[192 + group] = scales[group] as u8;
            let (half, run, start) = (group / 8, group % 8 / 2, 16 * (group % 2));
            for l in 0..16 {
                let q = (q[group][l] + 32) as u8;
                block[64 * half + 32 * (run % 2) + start + l] |= (q & 15) << (4 * (run / 2));
                block[128 + 32 * half + start + l] |= (q >> 4) << (2 * run);
            }
        }
    });
}

/// The six-bit scales and minima as q4_K and q5_K keep them.
fn put_scales_and_mins(packed: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for sub in 0..4 {
        packed[sub] = scales[sub] | scales[sub + 4] >> 4 << 6;
        packed[sub + 4] = mins[sub] | mins[sub + 4] >> 4 << 6;
        packed[sub + 8] = (scales[sub + 4] & 15) | (mins[sub + 4] & 15) << 4;
    }
}
