//! Functions whose results must not depend on the platform's mathematics library: additions, multiplications,
//! divisions and bits only, which IEEE 754 defines exactly. Rust never contracts them to other operations.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

// ln 2 in two parts: products of the first with integers below 2^20 are exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// Adding it rounds a number of moderate size to a whole one, which then stands in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `e^x`, relative error below 1e-12; 0 below -708, and above 709 as at 709. Without branches, so that loops
/// over it become vector code. NaN gives some number.
#[inline]
pub(crate) fn exp(x: f64) -> f64 {
    let within = x.clamp(-708.0, 709.0);
    // x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its series.
    let shifted = within * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (within - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut sum = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        sum = sum * r + coefficient;
    }
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x < -708.0 { 0.0 } else { sum * power }
}

/// 1/11!, 1/10!, … 1/0!.
const COEFFICIENTS: [f64; 12] = [
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// Natural logarithm of `x >= 0`, relative error below 1e-12 (absolute near 1); minus infinity at 0.
pub(crate) fn ln(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if !(x > 0.0 && x < f64::INFINITY) {
        return if x > 0.0 { x } else { f64::NAN };
    }
    // Subnormal numbers become normal ones first.
    let (x, less) = if x < f64::MIN_POSITIVE { (x * (1u64 << 54) as f64, 54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023 - less;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh s with |s| <= 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for divisor in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / divisor;
    }
    exponent as f64 * LN_2 + 2.0 * s * sum
}

/// `base^exponent` for `base >= 0`.
pub(crate) fn pow(base: f64, exponent: f64) -> f64 {
    if exponent == 0.0 {
        1.0
    } else if base == 0.0 {
        if exponent > 0.0 { 0.0 } else { f64::INFINITY }
    } else {
        exp(exponent * ln(base))
    }
}

/// Entropy in nats of probabilities; impossible events count nothing.
pub(crate) fn entropy(probabilities: impl Iterator<Item = f32>) -> f64 {
    let possible = probabilities.map(f64::from).filter(|p| *p > 0.0);
    possible.map(|p| -p * ln(p)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_library() {
        for step in -7_000..70_000 {
            let x = -f64::from(step) * 0.01;
            let (found, expected) = (exp(x), x.exp());
            assert!((found - expected).abs() <= 1e-12 * expected, "{x}: {found} {expected}");
            let power = pow(1.75, f64::from(step) * 0.01);
            let expected = 1.75f64.powf(f64::from(step) * 0.01);
            assert!((power - expected).abs() <= 1e-10 * expected, "{step}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e300), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert!(exp(1e300).is_finite());
        let mut x = 1e-320;
        while x < 1e300 {
            let (found, expected) = (ln(x), x.ln());
            assert!((found - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{x}: {found} {expected}");
            x *= 1.013;
        }
        assert_eq!((ln(0.0), ln(1.0)), (f64::NEG_INFINITY, 0.0));
        assert_eq!(ln(f64::INFINITY), f64::INFINITY);
        assert!(ln(-1.0).is_nan() && ln(f64::NAN).is_nan());
        assert_eq!((pow(0.0, 0.0), pow(0.0, 2.0), pow(3.0, 0.0)), (1.0, 0.0, 1.0));
    }
}
