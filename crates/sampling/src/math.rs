//! Functions whose results must not depend on the platform's mathematics library.

const LOG2_E: f64 = std::f64::consts::LOG2_E;
// ln 2 in two parts: products of the first with integers below 2^20 are exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// `e^x` for `x <= 0`, by additions and multiplications only. Relative error below 1e-12; 0 below -708.
pub(crate) fn exp(x: f64) -> f64 {
    debug_assert!(x <= 0.0);
    if x < -708.0 {
        return 0.0;
    }
    // x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its series.
    let n = (x * LOG2_E - 0.5) as i64;
    let r = (x - n as f64 * LN_2_HIGH) - n as f64 * LN_2_LOW;
    let mut sum = 1.0;
    for divisor in (1..=11u32).rev() {
        sum = 1.0 + sum * r / f64::from(divisor);
    }
    sum * f64::from_bits(((n + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn agrees_with_the_library() {
        for step in 0..70_000 {
            let x = -f64::from(step) * 0.01;
            let (found, expected) = (exp(x), x.exp());
            assert!((found - expected).abs() <= 1e-12 * expected, "{x}: {found} {expected}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e300), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
    }
}
