//! Super-blocks of 256 elements: integers of two levels, found together.
//!
//! Each sub-block gets the scale (and minimum) that fits it best; these become integers times a scale of the whole
//! super-block, which is then fitted to all its elements at once, and the integers of the sub-blocks once more.

use super::fit::{Best, Sums, affine, products, round, round_within, sums, symmetric, totals};
use super::{HALF_MAX, inverse};
use half::f16;

/// Rounds of fitting the super-block's scales to the integers and the integers to them.
const ROUNDS: usize = 2;

/// A super-block of `SUBS` sub-blocks of `N` elements with `x = d scale q - dmin min`.
pub(super) struct Affine<const SUBS: usize, const N: usize> {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: [u8; SUBS],
    pub(super) mins: [u8; SUBS],
    pub(super) q: [[u8; N]; SUBS],
}

/// A super-block of `SUBS` sub-blocks of `N` elements with `x = d scale q`.
pub(super) struct Symmetric<const SUBS: usize, const N: usize> {
    pub(super) d: f32,
    pub(super) scales: [i8; SUBS],
    pub(super) q: [[i8; N]; SUBS],
}

/// The number as half precision keeps it; the largest finite one at most.
pub(super) fn half(value: f32) -> f32 {
    f16::from_f32(value.clamp(-HALF_MAX, HALF_MAX)).to_f32()
}

/// Integers of `0..=most` with scales and minima of `0..=levels`. `unit` is what the elements were divided by.
pub(super) fn affine_block<const SUBS: usize, const N: usize>(
    x: &[[f32; N]; SUBS],
    w: &[[f32; N]; SUBS],
    unit: f32,
    most: f32,
    levels: f32,
) -> Affine<SUBS, N> {
    let fits: [(f32, f32); SUBS] = std::array::from_fn(|sub| affine(&x[sub], &w[sub], most, false));
    let top = |value: fn(&(f32, f32)) -> f32| fits.iter().map(value).fold(0.0, f32::max);
    let keep = |value: f32| half(value * unit) / unit;
    let mut d = keep(top(|fit| fit.0) / levels);
    let mut dmin = keep(top(|fit| -fit.1) / levels);
    let mut scales = fits.map(|fit| round_within(fit.0 * inverse(d), 0.0, levels));
    let mut mins = fits.map(|fit| round_within(-fit.1 * inverse(dmin), 0.0, levels));
    for _ in 0..ROUNDS {
        (d, dmin) = refit(x, w, most, (d, dmin), &scales, &mins);
        (d, dmin) = (keep(d), keep(dmin));
        for sub in 0..SUBS {
            (scales[sub], mins[sub]) =
                neighbour(&x[sub], &w[sub], most, levels, (d, dmin), (scales[sub], mins[sub]));
        }
    }
    let q = std::array::from_fn(|sub| {
        let (inverse, min) = (inverse(d * scales[sub]), dmin * mins[sub]);
        x[sub].map(|x| round_within((x + min) * inverse, 0.0, most) as u8)
    });
    Affine { d: d * unit, dmin: dmin * unit, scales: scales.map(|s| s as u8), mins: mins.map(|m| m as u8), q }
}

/// The pair of d and dmin with the smallest error for given integers.
fn refit<const SUBS: usize, const N: usize>(
    x: &[[f32; N]; SUBS],
    w: &[[f32; N]; SUBS],
    most: f32,
    (d, dmin): (f32, f32),
    scales: &[f32; SUBS],
    mins: &[f32; SUBS],
) -> (f32, f32) {
    // Sums of products of a = scale q, b = min and x.
    let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0f64, 0f64, 0f64, 0f64, 0f64);
    for sub in 0..SUBS {
        let (inverse, min) = (inverse(d * scales[sub]), dmin * mins[sub]);
        let (weight, weighted) = totals(&x[sub], &w[sub]);
        let Sums { q: sum, square, cross } = sums(&x[sub], &w[sub], inverse, -min, most);
        let (a, b) = (f64::from(scales[sub]), f64::from(mins[sub]));
        aa += a * a * f64::from(square);
        ab += a * b * f64::from(sum);
        bb += b * b * f64::from(weight);
        xa += a * f64::from(cross);
        xb += b * f64::from(weighted);
    }
    let determinant = aa * bb - ab * ab;
    if determinant > 1e-9 * aa * bb {
        let next = ((xa * bb - xb * ab) / determinant, (xa * ab - xb * aa) / determinant);
        if next.0 > 0.0 && next.1 >= 0.0 {
            return (next.0 as f32, next.1 as f32);
        }
    }
    if bb == 0.0 && aa > 0.0 && xa > 0.0 { ((xa / aa) as f32, dmin) } else { (d, dmin) }
}

/// The best of the scale and minimum of a sub-block and those one beside them.
fn neighbour<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    most: f32,
    levels: f32,
    (d, dmin): (f32, f32),
    (scale, min): (f32, f32),
) -> (f32, f32) {
    let mut best = (f32::INFINITY, scale, min);
    for scale in [scale, scale - 1.0, scale + 1.0] {
        for min in [min, min - 1.0, min + 1.0] {
            if scale < 0.0 || min < 0.0 || scale > levels || min > levels {
                continue;
            }
            let (step, offset) = (d * scale, dmin * min);
            let error = affine_error(x, w, most, step, offset);
            if error < best.0 {
                best = (error, scale, min);
            }
        }
    }
    (best.1, best.2)
}

/// Weighted squared error with the nearest integers.
#[inline(always)]
fn affine_error<const N: usize>(x: &[f32; N], w: &[f32; N], most: f32, step: f32, offset: f32) -> f32 {
    let inverse = inverse(step);
    let mut lanes = [0.0; 4];
    for (x, w) in x.as_chunks::<4>().0.iter().zip(w.as_chunks::<4>().0) {
        for lane in 0..4 {
            let shifted = x[lane] + offset;
            let error = shifted - step * round_within(shifted * inverse, 0.0, most);
            lanes[lane] += w[lane] * error * error;
        }
    }
    lanes.iter().sum()
}

/// Integers of `least..=most` with scales of `-levels..levels`. `unit` is what the elements were divided by.
pub(super) fn symmetric_block<const SUBS: usize, const N: usize>(
    x: &[[f32; N]; SUBS],
    w: &[[f32; N]; SUBS],
    unit: f32,
    (least, most): (f32, f32),
    levels: f32,
) -> Symmetric<SUBS, N> {
    let fits: [f32; SUBS] = std::array::from_fn(|sub| symmetric(&x[sub], &w[sub], least, most));
    let keep = |value: f32| half(value * unit) / unit;
    let mut d = keep(super::signed_peak(&fits) / -levels);
    let mut scales = fits.map(|fit| round_within(fit * inverse(d), -levels, levels - 1.0));
    for _ in 0..ROUNDS {
        let mut best = Best { gain: 0.0, scale: d };
        let mut sums = (0.0, 0.0);
        for sub in 0..SUBS {
            let scale = scales[sub];
            let (cross, square) = products(&x[sub], &w[sub], inverse(d * scale), least, most);
            sums = (sums.0 + scale * cross, sums.1 + scale * scale * square);
        }
        best.consider(sums);
        d = keep(best.scale);
        for sub in 0..SUBS {
            let error = |scale: f32| symmetric_error(&x[sub], &w[sub], d * scale, least, most);
            let mut best = (error(scales[sub]), scales[sub]);
            for scale in [scales[sub] - 1.0, scales[sub] + 1.0] {
                let error = error(scale);
                if error < best.0 && (-levels..levels).contains(&scale) {
                    best = (error, scale);
                }
            }
            scales[sub] = best.1;
        }
    }
    let q = std::array::from_fn(|sub| {
        let inverse = inverse(d * scales[sub]);
        x[sub].map(|x| round_within(x * inverse, least, most) as i8)
    });
    Symmetric { d: d * unit, scales: scales.map(|scale| round(scale) as i8), q }
}

/// Weighted squared error with the nearest integers.
#[inline(always)]
fn symmetric_error<const N: usize>(x: &[f32; N], w: &[f32; N], step: f32, least: f32, most: f32) -> f32 {
    let inverse = inverse(step);
    let mut lanes = [0.0; 4];
    for (x, w) in x.as_chunks::<4>().0.iter().zip(w.as_chunks::<4>().0) {
        for lane in 0..4 {
            let error = x[lane] - step * round_within(x[lane] * inverse, least, most);
            lanes[lane] += w[lane] * error * error;
        }
    }
    lanes.iter().sum()
}
