//! Careful encoders of the formats with one to four levels and of the 4-bit floating-point ones: q1_0, q2_0, tq1_0,
//! tq2_0, mxfp4, nvfp4.

use super::fit::{Best, normalised, round_within, weights};
use super::float4::{half_e8m0, half_unsigned_e4m3};
use super::k_search::half;
use super::{inverse, peak, put_half, quantize_blocks, signed_peak};

/// d is the weighted mean magnitude, which is the best there is.
pub(crate) fn quantize_q1_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 128], importance, block: &mut [u8; 18]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let w = plain_weights(importance);
        let (sum, weight) =
            x.iter().zip(&w).fold((0.0, 0.0), |(sum, weight), (x, w)| (sum + w * x.abs(), weight + w));
        put_half(block, 0, sum / weight * unit);
        for (j, x) in x.iter().enumerate() {
            block[2 + j / 8] |= u8::from(*x >= 0.0) << (j % 8);
        }
    });
}

pub(crate) fn quantize_q2_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 64], importance, block: &mut [u8; 18]| {
        block.fill(0);
        let Some((x, unit)) = normalised(x) else { return };
        let d = half(level_scale(&x, &plain_weights(importance), 2.0) * unit) / unit;
        let inverse = inverse(d);
        put_half(block, 0, d * unit);
        for (j, x) in x.iter().enumerate() {
            let q = (round_within(x * inverse, -1.0, 2.0) + 1.0) as u8;
            block[2 + j / 4] |= q << (2 * (j % 4));
        }
    });
}

pub(crate) fn quantize_tq1_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 54]| {
        let (d, digits) = ternary(x, importance);
        put_digits(&mut block[..32], &digits[..160]);
        put_digits(&mut block[32..48], &digits[160..240]);
        put_digits(&mut block[48..52], &digits[240..]);
        put_half(block, 52, d);
    });
}

pub(crate) fn quantize_tq2_0(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; 66]| {
        let (d, digits) = ternary(x, importance);
        block.fill(0);
        put_half(block, 64, d);
        for (run, digits) in digits.as_chunks::<32>().0.iter().enumerate() {
            for (m, digit) in digits.iter().enumerate() {
                block[32 * (run / 4) + m] |= digit << (2 * (run % 4));
            }
        }
    });
}

/// Packs up to five base-3 digits a byte, digits of equal rank beside each other, as the fraction byte / 256 rounded
/// up.
fn put_digits(bytes: &mut [u8], digits: &[u8]) {
    let count = bytes.len();
    for (m, byte) in bytes.iter_mut().enumerate() {
        let value = (0..5).fold(0u16, |value, rank| {
            value * 3 + u16::from(digits.get(rank * count + m).copied().unwrap_or(0))
        });
        *byte = (value * 256).div_ceil(243) as u8;
    }
}

/// d and the digits 0 to 2 for `x = (digit - 1) d`.
fn ternary(x: &[f32; 256], importance: Option<&[f32; 256]>) -> (f32, [u8; 256]) {
    let Some((x, unit)) = normalised(x) else { return (0.0, [1; 256]) };
    let d = half(level_scale(&x, &plain_weights(importance), 1.0).abs() * unit) / unit;
    let inverse = inverse(d);
    (d * unit, x.map(|x| (round_within(x * inverse, -1.0, 1.0) + 1.0) as u8))
}

/// Scale of the levels -1, 0, 1 and perhaps 2. The peak itself is a start, for weights that have only these levels.
fn level_scale<const N: usize>(x: &[f32; N], w: &[f32; N], most: f32) -> f32 {
    let top = signed_peak(x);
    let products = |inverse: f32| {
        x.iter().zip(w).fold((0.0, 0.0), |(cross, square), (x, w)| {
            let q = round_within(x * inverse, -1.0, most);
            (cross + w * q * x, square + w * q * q)
        })
    };
    let mut best = Best { gain: 0.0, scale: 0.0 };
    for step in 2..=24 {
        for end in [most, -1.0] {
            best.consider(products(end * 0.5 * step as f32 / top));
        }
    }
    for _ in 0..4 {
        if !best.consider(products(inverse(best.scale))) {
            break;
        }
    }
    best.scale
}

/// Importance alone: with so few levels all elements are far from theirs, and none stands for larger ones.
fn plain_weights<const N: usize>(importance: Option<&[f32; N]>) -> [f32; N] {
    let weights = importance.map_or([0.0; N], |importance| {
        importance.map(|weight| if weight > 0.0 { weight.min(1e30) } else { 0.0 })
    });
    let top = peak(&weights);
    if top > 0.0 { weights.map(|weight| weight / top) } else { [1.0; N] }
}

pub(crate) fn quantize_mxfp4(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 32], importance, block: &mut [u8; 17]| {
        block.fill(0);
        let Some((y, _)) = normalised(x) else { return };
        let w = weights(&y, importance);
        // The power that brings the peak to 4 to 8, in a table that ends at 6.
        let exponent = (peak(x).to_bits() >> 23) as i32 - 2;
        let codes =
            (exponent - 1..=exponent + 1).filter_map(|code| u8::try_from(code).ok().filter(|c| *c < 255));
        let code = least(codes, |code| error(x, &w, half_e8m0(code)));
        block[0] = code;
        let inverse = 1.0 / half_e8m0(code);
        let q = x.map(|x| e2m1(x * inverse));
        for j in 0..16 {
            block[1 + j] = q[j] | q[j + 16] << 4;
        }
    });
}

pub(crate) fn quantize_nvfp4(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    quantize_blocks(input, importance, output, |x: &[f32; 64], importance, block: &mut [u8; 36]| {
        block.fill(0);
        for (sub, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let Some((y, _)) = normalised(x) else { continue };
            let importance: Option<[f32; 16]> =
                importance.map(|all| std::array::from_fn(|l| all[16 * sub + l]));
            let w = weights(&y, importance.as_ref());
            // Codes 1 to 126 ascend; the peak belongs on 12, the largest doubled value.
            let step = peak(x) / 12.0;
            let above = (1..127).find(|code| half_unsigned_e4m3(*code) >= step).unwrap_or(126u8);
            let codes = above.saturating_sub(6).max(1)..=(above + 6).min(126);
            let code = least(codes, |code| error(x, &w, half_unsigned_e4m3(code)));
            block[sub] = code;
            let inverse = 1.0 / half_unsigned_e4m3(code);
            let q = x.map(|x| e2m1(x * inverse));
            for j in 0..8 {
                block[4 + 8 * sub + j] = q[j] | q[j + 8] << 4;
            }
        }
    });
}

/// The code with the least error, the first of equals.
fn least(codes: impl Iterator<Item = u8>, error: impl Fn(u8) -> f64) -> u8 {
    let mut best = (f64::INFINITY, 0);
    for code in codes {
        let error = error(code);
        if error < best.0 || best.1 == 0 {
            best = (error, code);
        }
    }
    best.1
}

/// Weighted squared error relative to the peak.
fn error<const N: usize>(x: &[f32; N], w: &[f32; N], scale: f32) -> f64 {
    let inverse = 1.0 / scale;
    let sum = x.iter().zip(w).fold(0.0, |sum, (x, w)| {
        let value = f32::from(super::float4::E2M1_DOUBLED[usize::from(e2m1(x * inverse))]);
        let difference = f64::from(x - scale * value);
        sum + f64::from(*w) * difference * difference
    });
    // Sums of squares of large and tiny numbers stay in the range of f64.
    sum
}

/// Code of the doubled E2M1 value nearest to `x`, of equals the one nearer to zero.
fn e2m1(x: f32) -> u8 {
    const MIDPOINTS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let magnitude = MIDPOINTS.iter().filter(|midpoint| x.abs() > **midpoint).count() as u8;
    if x < 0.0 { magnitude | 8 } else { magnitude }
}
