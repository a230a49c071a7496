//! Careful encoders of the formats of 32 elements with plain integers: q4_0, q4_1, q5_0, q5_1.

use super::fit::{normalised, round_within, weights};
use super::k_search::half;
use super::lanes::{Blocks, LANES, Lanes, inverses};
use super::put_half;
use super::round::{put_five_bits, put_nibbles};
use std::array::from_fn;

pub(crate) fn quantize_q4_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize(input, importance, output, |blocks, units, target: &mut [[u8; 18]]| {
        let (d, q) = symmetric_codes(blocks, units, 8.0);
        for ((block, d), q) in target.iter_mut().zip(d).zip(&q) {
            put_half(block, 0, d);
            put_nibbles(&mut block[2..], q);
        }
    });
}

pub(crate) fn quantize_q5_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize(input, importance, output, |blocks, units, target: &mut [[u8; 22]]| {
        let (d, q) = symmetric_codes(blocks, units, 16.0);
        for ((block, d), q) in target.iter_mut().zip(d).zip(&q) {
            put_half(block, 0, d);
            put_five_bits(&mut block[2..], q);
        }
    });
}

pub(crate) fn quantize_q4_1(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize(input, importance, output, |blocks, units, target: &mut [[u8; 20]]| {
        let (d, m, q) = affine_codes(blocks, units, 15.0);
        for (((block, d), m), q) in target.iter_mut().zip(d).zip(m).zip(&q) {
            put_half(block, 0, d);
            put_half(block, 2, m);
            put_nibbles(&mut block[4..], q);
        }
    });
}

pub(crate) fn quantize_q5_1(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize(input, importance, output, |blocks, units, target: &mut [[u8; 24]]| {
        let (d, m, q) = affine_codes(blocks, units, 31.0);
        for (((block, d), m), q) in target.iter_mut().zip(d).zip(m).zip(&q) {
            put_half(block, 0, d);
            put_half(block, 2, m);
            put_five_bits(&mut block[4..], q);
        }
    });
}

/// Calls `encode` with as many blocks at once as there are lanes, and what their elements were divided by; the last
/// ones may be fewer, and the rest of the lanes zeros. Importance is that of the columns of a row.
#[inline(always)]
fn quantize<const BYTES: usize>(
    input: &[f32],
    importance: Option<&[f32]>,
    output: &mut [u8],
    encode: impl Fn(&Blocks<32>, &Lanes, &mut [[u8; BYTES]]),
) {
    let columns = importance.filter(|columns| columns.len().is_multiple_of(32));
    let mut columns = columns.map(|columns| columns.as_chunks::<32>().0).unwrap_or(&[]).iter().cycle();
    let targets = output.as_chunks_mut::<BYTES>().0.chunks_mut(LANES);
    for (elements, target) in input.as_chunks::<32>().0.chunks(LANES).zip(targets) {
        let (mut x, mut w, mut units) = ([[0.0; 32]; LANES], [[0.0; 32]; LANES], [1.0; LANES]);
        for (lane, elements) in elements.iter().enumerate() {
            let importance = columns.next();
            if let Some((normal, unit)) = normalised(elements) {
                (x[lane], w[lane], units[lane]) = (normal, weights(&normal, importance), unit);
            }
        }
        encode(&Blocks::new(&x, &w), &units, target);
    }
}

/// The numbers as half precision keeps them, in units.
fn keep(values: &Lanes, units: &Lanes) -> Lanes {
    from_fn(|lane| half(values[lane] * units[lane]) / units[lane])
}

/// Scales and integers plus `most` for `x = d (q - most)`.
fn symmetric_codes(blocks: &Blocks<32>, units: &Lanes, most: f32) -> (Lanes, [[u8; 32]; LANES]) {
    let d = keep(&blocks.symmetric(-most, most - 1.0), units);
    let inverse = inverses(&d);
    let q = blocks.map(|x, lane| (round_within(x * inverse[lane], -most, most - 1.0) + most) as u8);
    (from_fn(|lane| d[lane] * units[lane]), q)
}

/// Scales, minima and integers for `x = d q + m`.
fn affine_codes(blocks: &Blocks<32>, units: &Lanes, most: f32) -> (Lanes, Lanes, [[u8; 32]; LANES]) {
    let (mut d, mut m) = blocks.affine(most, true);
    (d, m) = (keep(&d, units), keep(&m, units));
    let error = |d: &Lanes, m: &Lanes| blocks.error(d, &m.map(|m| -m), 0.0, most);
    let mut least = error(&d, &m);
    // The range as it is: exact for what was in this format before, or in one of a bit less, whose integers are even here.
    let (low, range) = blocks.extent();
    for steps in [most, most - 1.0] {
        let (plain, low) = (keep(&range.map(|range| range / steps), units), keep(&low, units));
        let found = error(&plain, &low);
        for lane in 0..LANES {
            if found[lane] < least[lane] {
                (least[lane], d[lane], m[lane]) = (found[lane], plain[lane], low[lane]);
            }
        }
    }
    let inverse = inverses(&d);
    let q = blocks.map(|x, lane| round_within((x - m[lane]) * inverse[lane], 0.0, most) as u8);
    (from_fn(|lane| d[lane] * units[lane]), from_fn(|lane| m[lane] * units[lane]), q)
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
