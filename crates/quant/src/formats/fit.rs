//! Searches for scales and minima with a small weighted error; what all careful encoders share.
//!
//! An integer q stands for `scale q` or `scale q + min`. Given the integers, the best scale and minimum solve a
//! linear least-squares problem; given those, the best integers are the nearest. The searches start from several
//! scales near the one that just covers the range, and take turns from the best of them.

use super::{inverse, peak};

/// Turns from the best start: after these errors hardly change.
const TURNS: usize = 2;

/// Weights of the errors of a block.
///
/// With importance (of columns, as large as the block) an element counts as `importance sqrt(2 mean(x²) + x²)`: the
/// elements stand for larger ones that are like them. Without, or where it is all zero, `sqrt(mean(x²)) + |x|`.
pub(super) fn weights<const N: usize>(x: &[f32; N], importance: Option<&[f32; N]>) -> [f32; N] {
    let mean = x.iter().map(|x| x * x).sum::<f32>() / N as f32;
    if let Some(importance) = importance {
        // The comparison takes NaN for 0, too.
        let weights: [f32; N] = std::array::from_fn(|i| {
            let weight = importance[i];
            if weight > 0.0 { weight.min(1e30) * (2.0 * mean + x[i] * x[i]).sqrt() } else { 0.0 }
        });
        let top = peak(&weights);
        if top > 0.0 {
            // Far from the ends of the range, so that no sum of products overflows.
            return weights.map(|weight| weight / top);
        }
    }
    let root = mean.sqrt();
    x.map(|x| root + x.abs())
}

/// The block divided by a power of two that brings its largest magnitude to 1 to 2, and that power. None if the
/// block is as good as zero.
pub(super) fn normalised<const N: usize>(x: &[f32; N]) -> Option<([f32; N], f32)> {
    const LEAST: f32 = 1e-15;
    let peak = peak(x);
    // Infinities and NaN are kept out by the callers; here they must only not be taken for numbers.
    if !(LEAST..f32::INFINITY).contains(&peak) {
        return None;
    }
    const EXPONENT: u32 = 0x7f80_0000;
    let unit = f32::from_bits(peak.to_bits() & EXPONENT);
    let factor = 1.0 / unit;
    Some((x.map(|x| if x.is_nan() { 0.0 } else { x * factor }), unit))
}

/// Nearest integer, halves to even, for magnitudes below 2^22; unlike the library's it vectorises.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    const NO_FRACTION: f32 = 12_582_912.0;
    (x + NO_FRACTION) - NO_FRACTION
}

/// The nearest integer of a range.
#[inline(always)]
pub(super) fn round_within(x: f32, least: f32, most: f32) -> f32 {
    let x = if x < least { least } else { x };
    round(if x > most { most } else { x })
}

/// Lanes of running sums: one sum would wait for itself.
const LANES: usize = 4;

/// `sum of w x q` and `sum of w q²` for the integers of a scale.
#[inline(always)]
pub(super) fn products<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    inverse: f32,
    least: f32,
    most: f32,
) -> (f32, f32) {
    let (mut cross, mut square) = ([0.0; LANES], [0.0; LANES]);
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let q = round_within(x[lane] * inverse, least, most);
            let weighted = w[lane] * q;
            cross[lane] += weighted * x[lane];
            square[lane] += weighted * q;
        }
    }
    (cross.iter().sum(), square.iter().sum())
}

/// The scale (of either sign) for integers of `least..=most`, with `least = -most` or one below. 0 if all is 0.
pub(super) fn symmetric<const N: usize>(x: &[f32; N], w: &[f32; N], least: f32, most: f32) -> f32 {
    let top = super::signed_peak(x);
    if top == 0.0 {
        return 0.0;
    }
    let mut best = Best { gain: 0.0, scale: 0.0 };
    // The peak on or near the far end, or, as few integers differ much, the near one.
    for step in -2..=2 {
        best.consider(products(x, w, (least + 0.4 * step as f32) / top, least, most));
    }
    if most < 8.0 {
        for step in -1..=1 {
            best.consider(products(x, w, (most + 0.4 * step as f32) / top, least, most));
        }
    }
    for _ in 0..TURNS {
        if !best.consider(products(x, w, inverse(best.scale), least, most)) {
            break;
        }
    }
    best.scale
}

/// The best scale so far.
pub(super) struct Best {
    /// By how much it lowers the squared error.
    pub(super) gain: f32,
    /// The scale.
    pub(super) scale: f32,
}

impl Best {
    /// Takes the scale that fits `sum of w x q` and `sum of w q²`, if it is better, and says so.
    pub(super) fn consider(&mut self, (cross, square): (f32, f32)) -> bool {
        // The scale cross / square lowers the error by cross² / square.
        let better = square > 0.0 && cross * cross > self.gain * square;
        if better {
            self.scale = cross / square;
            self.gain = cross * self.scale;
        }
        better
    }
}

/// `sum of w` and `sum of w x`.
#[inline(always)]
pub(super) fn totals<const N: usize>(x: &[f32; N], w: &[f32; N]) -> (f32, f32) {
    let (mut weight, mut weighted) = ([0.0; LANES], [0.0; LANES]);
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            weight[lane] += w[lane];
            weighted[lane] += w[lane] * x[lane];
        }
    }
    (weight.iter().sum(), weighted.iter().sum())
}

/// Sums over a block for the integers of a scale and a minimum.
pub(super) struct Sums {
    /// `sum of w q`.
    pub(super) q: f32,
    /// `sum of w q²`.
    pub(super) square: f32,
    /// `sum of w x q`.
    pub(super) cross: f32,
}

/// These sums for the nearest integers of `0..=most`.
#[inline(always)]
pub(super) fn sums<const N: usize>(x: &[f32; N], w: &[f32; N], inverse: f32, min: f32, most: f32) -> Sums {
    let (mut sum, mut square, mut cross) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(w.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let q = round_within((x[lane] - min) * inverse, 0.0, most);
            let weighted = w[lane] * q;
            sum[lane] += weighted;
            square[lane] += weighted * q;
            cross[lane] += weighted * x[lane];
        }
    }
    Sums { q: sum.iter().sum(), square: square.iter().sum(), cross: cross.iter().sum() }
}

/// Scale (at least 0) and minimum for integers of `0..=most`. A minimum above 0 only if `free`.
pub(super) fn affine<const N: usize>(x: &[f32; N], w: &[f32; N], most: f32, free: bool) -> (f32, f32) {
    let (mut low, high) = x.iter().fold((x[0], x[0]), |(low, high), &x| (low.min(x), high.max(x)));
    if !free && low > 0.0 {
        low = 0.0;
    }
    if high <= low {
        return (0.0, low);
    }
    // Counted from the lowest element, so that nothing cancels where all lie close together far from zero.
    let x = x.map(|x| x - low);
    let range = high - low;
    let (weight, weighted) = totals(&x, w);
    let (mut least_error, mut scale, mut min) = (f32::INFINITY, range / most, 0.0);
    let mut consider = |Sums { q, square, cross }: Sums, scale: &mut f32, min: &mut f32| {
        let determinant = weight * square - q * q;
        if determinant <= 0.0 {
            return false;
        }
        let mut next = (weight * cross - weighted * q) / determinant;
        let mut next_min = (square * weighted - q * cross) / determinant;
        if !free && next_min > -low {
            next_min = -low;
            next = (cross - next_min * q) / square;
        }
        // The squared error less that of all zeros.
        let error = next * (next * square - 2.0 * cross)
            + next_min * (next_min * weight + 2.0 * (next * q - weighted));
        let better = error < least_error && next > 0.0;
        if better {
            (least_error, *scale, *min) = (error, next, next_min);
        }
        better
    };
    const STEPS: i32 = 4;
    for step in -STEPS..=STEPS {
        let inverse = (most + 0.25 * step as f32) / range;
        consider(sums(&x, w, inverse, 0.0, most), &mut scale, &mut min);
    }
    for _ in 0..TURNS {
        if !consider(sums(&x, w, 1.0 / scale, min, most), &mut scale, &mut min) {
            break;
        }
    }
    (scale, low + min)
}
