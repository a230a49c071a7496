//! 4-bit formats with a non-uniform value table: iq4_nl and iq4_xs.

use super::round::put_nibbles;
use super::{decode_blocks, encode_blocks, half_at, high, inverse, low, put_half, signed_peak};

/// Value of each four-bit code, dense around zero.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `d f16 | qs[16]`; x = d value(q).
pub(crate) fn decode_iq4_nl(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 18], x: &mut [f32; 32]| {
        put_values(x, half_at(block, 0), &block[2..]);
    });
}

/// `d f16 | scales_h u16 | scales_l[4] | qs[128]`; 8 sub-blocks of 32 with six-bit scales; x = d (s - 32) value(q).
pub(crate) fn decode_iq4_xs(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 136], x: &mut [f32; 256]| {
        let d = half_at(block, 0);
        let scales_high = u16::from_le_bytes([block[2], block[3]]);
        for (sub, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let low_bits = (block[4 + sub / 2] >> (4 * (sub % 2))) & 15;
            let high_bits = (scales_high >> (2 * sub)) & 3;
            let s = i32::from(low_bits) | i32::from(high_bits) << 4;
            put_values(x, d * (s - 32) as f32, &block[8 + 16 * sub..]);
        }
    });
}

/// Writes the 32 elements of the nibbles `qs`.
#[inline(always)]
fn put_values(x: &mut [f32; 32], scale: f32, qs: &[u8]) {
    for j in 0..16 {
        x[j] = scale * f32::from(IQ4_VALUES[usize::from(low(qs[j]))]);
        x[j + 16] = scale * f32::from(IQ4_VALUES[usize::from(high(qs[j]))]);
    }
}

/// Tries scales that put the element of largest magnitude on or near an end of the table, fits each by least
/// squares with weights x², and keeps the one with the smallest weighted error.
pub(crate) fn encode_iq4_nl(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 32], block: &mut [u8; 18]| {
        let d = best_scale(x);
        put_half(block, 0, d);
        let scale = inverse(d);
        put_nibbles(&mut block[2..], &x.map(|x| nearest(x * scale)));
    });
}

/// Least-squares scale of a block; 0 if nothing in it is distinguishable from 0.
fn best_scale(x: &[f32; 32]) -> f32 {
    let peak = signed_peak(x);
    if peak.abs() < 1e-15 {
        return 0.0;
    }
    // Values that the peak is put on. The table reaches further on its negative side, so all but one are there.
    let end = f32::from(IQ4_VALUES[0]);
    let targets: [f32; 16] = std::array::from_fn(|i| if i == 0 { -end } else { end + i as f32 - 8.0 });
    let scales = targets.map(|target| target / peak);
    let (mut cross, mut square) = ([0.0; 16], [0.0; 16]);
    for &x in x {
        for i in 0..16 {
            let value = nearest_value(x * scales[i]);
            cross[i] += x * x * value * x;
            square[i] += x * x * value * value;
        }
    }
    let (mut best, mut best_gain) = (0.0, 0.0);
    for (cross, square) in cross.into_iter().zip(square) {
        // The fit d = cross / square lowers the weighted error by cross² / square.
        if square > 0.0 && cross * cross > best_gain * square {
            best = cross / square;
            best_gain = cross * best;
        }
    }
    best
}

/// Numbers half-way between neighbouring table values.
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        midpoints[i] = (IQ4_VALUES[i] as f32 + IQ4_VALUES[i + 1] as f32) / 2.0;
        i += 1;
    }
    midpoints
};

/// Code of the table value nearest to `value`, of equals the upper; code 0 for NaN.
pub(super) fn nearest(value: f32) -> u8 {
    MIDPOINTS.iter().filter(|&&midpoint| value >= midpoint).count() as u8
}

/// The table value of that code, as a sum of steps so that it vectorises.
#[inline(always)]
pub(super) fn nearest_value(value: f32) -> f32 {
    let mut nearest = f32::from(IQ4_VALUES[0]);
    for i in 0..15 {
        let step = f32::from(IQ4_VALUES[i + 1]) - f32::from(IQ4_VALUES[i]);
        nearest += if value >= MIDPOINTS[i] { step } else { 0.0 };
    }
    nearest
}
