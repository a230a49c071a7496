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
    let (d, m) = affine(&x, &weights(&x, importance), most, true);
    let (d, m) = (half(d * unit) / unit, half(m * unit) / unit);
    let inverse = inverse(d);
    (d * unit, m * unit, x.map(|x| round_within((x - m) * inverse, 0.0, most) as u8))
}
