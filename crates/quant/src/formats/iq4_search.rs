//! Careful encoders of the formats with a non-uniform value table: iq4_nl and iq4_xs.

use super::fit::{Best, normalised, round_within, weights};
use super::iq4::{nearest, nearest_value};
use super::k_search::half;
use super::round::put_nibbles;
use super::{inverse, put_half, quantize_blocks, signed_peak};
use crate::IQ4_VALUES;

pub(crate) fn quantize_iq4_nl(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 32], importance, block: &mut [u8; 18]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let d = half(scale(&x, &weights(&x, importance)) * unit) / unit;
        let inverse = inverse(d);
        put_half(block, 0, d * unit);
        put_nibbles(&mut block[2..], &x.map(|x| nearest(x * inverse)));
    });
}

pub(crate) fn quantize_iq4_xs(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 136]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let w = weights(&x, importance);
        let (x, w) = (x.as_chunks::<32>().0, w.as_chunks::<32>().0);
        let (d, scales) = block_scales(x, w, unit);
        put_half(block, 0, d * unit);
        let mut high_bits = 0u16;
        for sub in 0..8 {
            let scale = (scales[sub] + 32.0) as u8;
            block[4 + sub / 2] |= (scale & 15) << (4 * (sub % 2));
            high_bits |= u16::from(scale >> 4) << (2 * sub);
            let inverse = inverse(d * scales[sub]);
            put_nibbles(&mut block[8 + 16 * sub..], &x[sub].map(|x| nearest(x * inverse)));
        }
        block[2..4].copy_from_slice(&high_bits.to_le_bytes());
    });
}

/// d and the integer scales of the sub-blocks.
fn block_scales(x: &[[f32; 32]], w: &[[f32; 32]], unit: f32) -> (f32, [f32; 8]) {
    let keep = |value: f32| half(value * unit) / unit;
    let fits: [f32; 8] = std::array::from_fn(|sub| scale(&x[sub], &w[sub]));
    let mut d = keep(signed_peak(&fits) / -32.0);
    let mut scales = fits.map(|fit| round_within(fit * inverse(d), -32.0, 31.0));
    let mut best = Best { gain: 0.0, scale: d };
    let mut sums = (0.0, 0.0);
    for sub in 0..8 {
        let (cross, square) = products(&x[sub], &w[sub], inverse(d * scales[sub]));
        sums = (sums.0 + cross * scales[sub], sums.1 + square * scales[sub] * scales[sub]);
    }
    best.consider(sums);
    d = keep(best.scale);
    for sub in 0..8 {
        let error = |scale: f32| {
            let step = d * scale;
            let (cross, square) = products(&x[sub], &w[sub], inverse(step));
            step * (step * square - 2.0 * cross)
        };
        let start = scales[sub];
        let mut least = error(start);
        for scale in [start - 1.0, start + 1.0] {
            let error = error(scale);
            if error < least && (-32.0..32.0).contains(&scale) {
                (least, scales[sub]) = (error, scale);
            }
        }
    }
    (d, scales)
}

/// The scale with the smallest weighted error that was found: starts put the peak on or near the ends of the table.
fn scale(x: &[f32; 32], w: &[f32; 32]) -> f32 {
    let top = signed_peak(x);
    if top == 0.0 {
        return 0.0;
    }
    let (low, high) = (f32::from(IQ4_VALUES[0]), f32::from(IQ4_VALUES[15]));
    let mut best = Best { gain: 0.0, scale: 0.0 };
    for step in -4..=4 {
        best.consider(products(x, w, (low + 3.0 * step as f32) / top));
    }
    for step in -2..=2 {
        best.consider(products(x, w, (high + 5.0 * step as f32) / top));
    }
    for _ in 0..2 {
        if !best.consider(products(x, w, inverse(best.scale))) {
            break;
        }
    }
    best.scale
}

/// Sums of w x v and w v² for the values v nearest to `x inverse`.
#[inline(always)]
fn products(x: &[f32; 32], w: &[f32; 32], inverse: f32) -> (f32, f32) {
    let (mut cross, mut square) = ([0.0; 4], [0.0; 4]);
    for (x, w) in x.as_chunks::<4>().0.iter().zip(w.as_chunks::<4>().0) {
        for lane in 0..4 {
            let value = nearest_value(x[lane] * inverse);
            let weighted = w[lane] * value;
            cross[lane] += weighted * x[lane];
            square[lane] += weighted * value;
        }
    }
    (cross.iter().sum(), square.iter().sum())
}
