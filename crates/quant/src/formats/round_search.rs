//! Careful encoders of the formats of 32 elements with plain integers: q4_0, q4_1, q5_0, q5_1.

use super::fit::{affine, normalised, round_within, symmetric, weights};
use super::k_search::half;
use super::round::{put_five_bits, put_nibbles};
use super::{inverse, put_half, quantize_blocks};

pub(crate) fn quantize_q4_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 32], importance, block: &mut [u8; 18]| {
        let (d, q) = symmetric_codes(x, importance, 8.0);
        put_half(block, 0, d);
        put_nibbles(&mut block[2..], &q);
    });
}

pub(crate) fn quantize_q5_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 32], importance, block: &mut [u8; 22]| {
        let (d, q) = symmetric_codes(x, importance, 16.0);
        put_half(block, 0, d);
        put_five_bits(&mut block[2..], &q);
    });
}

pub(crate) fn quantize_q4_1(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 32], importance, block: &mut [u8; 20]| {
        let (d, m, q) = affine_codes(x, importance, 15.0);
        put_half(block, 0, d);
        put_half(block, 2, m);
        put_nibbles(&mut block[4..], &q);
    });
}

pub(crate) fn quantize_q5_1(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 32], importance, block: &mut [u8; 24]| {
        let (d, m, q) = affine_codes(x, importance, 31.0);
        put_half(block, 0, d);
        put_half(block, 2, m);
        put_five_bits(&mut block[4..], &q);
    });
}

/// Scale and integers plus `most` for `x = d (q - most)`.
fn symmetric_codes(x: &[f32; 32], importance: Option<&[f32; 32]>, most: f32) -> (f32, [u8; 32]) {
    let Some((x, unit)) = normalised(x) else { return (0.0, [most as u8; 32]) };
    let d = half(symmetric(&x, &weights(&x, importance), -most, most - 1.0) * unit) / unit;
    let inverse = inverse(d);
    (d * unit, x.map(|x| (round_within(x * inverse, -most, most - 1.0) + most) as u8))
}

/// Scale, minimum and integers for `x = d q + m`.
fn affine_codes(x: &[f32; 32], importance: Option<&[f32; 32]>, most: f32) -> (f32, f32, [u8; 32]) {
    let Some((x, unit)) = normalised(x) else { return (0.0, 0.0, [0; 32]) };
    let weights = weights(&x, importance);
    let codes = |d: f32, m: f32| {
        let (d, m) = (half(d * unit) / unit, half(m * unit) / unit);
        let inverse = inverse(d);
        let q = x.map(|x| round_within((x - m) * inverse, 0.0, most));
        let error = |i: usize| weights[i] * (x[i] - (d * q[i] + m)) * (x[i] - (d * q[i] + m));
        ((0..32).map(error).sum::<f32>(), d, m, q)
    };
    let (d, m) = affine(&x, &weights, most, true);
    let mut best = codes(d, m);
    // The range as it is: exact for what was in this format before, or in one of a bit less, whose integers are even here.
    let (low, high) = x.iter().fold((x[0], x[0]), |(low, high), &x| (low.min(x), high.max(x)));
    for steps in [most, most - 1.0] {
        let plain = codes((high - low) / steps, low);
        if plain.0 < best.0 {
            best = plain;
        }
    }
    let (_, d, m, q) = best;
    (d * unit, m * unit, q.map(|q| q as u8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::round::{decode_q4_1, decode_q5_1};

    #[test]
    fn what_was_in_the_format_before_stays_as_it_is() {
        for seed in 1..200_u32 {
            let mut state = seed;
            let mut random = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            };
            let x: Vec<f32> = (0..32).map(|_| random() * 0.1 + 0.03).collect();
            let importance: Vec<f32> = (0..32).map(|_| random().abs()).collect();
            type Coder = (usize, fn(&[f32], Option<&[f32]>, &mut [u8]), fn(&[u8], &mut [f32]));
            let coders: [Coder; 2] = [(20, quantize_q4_1, decode_q4_1), (24, quantize_q5_1, decode_q5_1)];
            for (bytes, quantize, decode) in coders {
                let (mut first, mut second) = (vec![0; bytes], vec![0; bytes]);
                let (mut once, mut twice) = ([0.0; 32], [0.0; 32]);
                quantize(&x, None, &mut first);
                decode(&first, &mut once);
                quantize(&once, Some(&importance), &mut second);
                decode(&second, &mut twice);
                let least = once.iter().copied().fold(f32::MAX, f32::min);
                let most = once.iter().copied().fold(f32::MIN, f32::max);
                let tolerance = (most - least) * 1e-3;
                assert!(
                    once.iter().zip(twice).all(|(a, b)| (a - b).abs() <= tolerance),
                    "{once:?}\n{twice:?}"
                );
            }
        }
    }
}
