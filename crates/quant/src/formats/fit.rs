//! What all careful encoders share: the weights of errors, rounding, the choice of a scale.

use super::peak;

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
