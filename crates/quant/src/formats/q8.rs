//! 8-bit formats: q8_0 for weights and caches, q8_1 and q8_K for activations.

use super::{decode_blocks, encode_blocks, half_at, inverse, peak, put_half, signed_peak};

/// `d f16 | i8[32]`; x = q d.
pub(crate) fn decode_q8_0(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 34], x: &mut [f32; 32]| {
        let d = half_at(block, 0);
        for j in 0..32 {
            x[j] = f32::from(block[2 + j] as i8) * d;
        }
    });
}

/// `d f16 | s f16 | i8[32]`; x = q d. The field s, d times the sum of q, only serves dot products.
pub(crate) fn decode_q8_1(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 36], x: &mut [f32; 32]| {
        let d = half_at(block, 0);
        for j in 0..32 {
            x[j] = f32::from(block[4 + j] as i8) * d;
        }
    });
}

/// `d f32 | i8[256] | i16[16]`; x = q d. The last field, the sums of 16 q each, only serves dot products.
pub(crate) fn decode_q8_k(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 292], x: &mut [f32; 256]| {
        let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        for j in 0..256 {
            x[j] = f32::from(block[4 + j] as i8) * d;
        }
    });
}

/// d = largest magnitude / 127; halves round away from zero.
pub(crate) fn encode_q8_0(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 32], block: &mut [u8; 34]| {
        let d = peak(x) / 127.0;
        let scale = inverse(d);
        put_half(block, 0, d);
        for j in 0..32 {
            block[2 + j] = round_away(x[j] * scale) as u8;
        }
    });
}

/// As q8_0; s uses d before it is rounded to half precision.
pub(crate) fn encode_q8_1(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 32], block: &mut [u8; 36]| {
        let d = peak(x) / 127.0;
        let scale = inverse(d);
        let mut sum = 0;
        for j in 0..32 {
            let q = round_away(x[j] * scale);
            sum += i32::from(q);
            block[4 + j] = q as u8;
        }
        put_half(block, 0, d);
        put_half(block, 2, sum as f32 * d);
    });
}

/// The element of largest magnitude becomes -127; halves round to even.
pub(crate) fn encode_q8_k(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 256], block: &mut [u8; 292]| {
        let end = signed_peak(x);
        let scale = if end == 0.0 { 0.0 } else { -127.0 / end };
        block[..4].copy_from_slice(&inverse(scale).to_le_bytes());
        for (group, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let mut sum = 0;
            for (j, x) in x.iter().enumerate() {
                let q = round_even(x * scale);
                sum += i16::from(q);
                block[4 + 16 * group + j] = q as u8;
            }
            block[260 + 2 * group..262 + 2 * group].copy_from_slice(&sum.to_le_bytes());
        }
    });
}

/// Nearest integer, halves away from zero, as `f32::round`. Without its library call this vectorises. The number
/// added is the last below one half, so that the last number below one half stays below one.
#[inline(always)]
fn round_away(x: f32) -> i8 {
    (x + 0.5f32.next_down().copysign(x)) as i8
}

/// Nearest integer, halves to even, as `f32::round_ties_even`; also without a library call. The result is in
/// -127..=127.
#[inline(always)]
fn round_even(x: f32) -> i8 {
    /// 1.5 times 2^23: around it f32 has no fraction bits, so that the addition rounds.
    const NO_FRACTION: f32 = 12_582_912.0;
    (x.clamp(-127.0, 127.0) + NO_FRACTION - NO_FRACTION) as i8
}

#[cfg(test)]
mod tests {
    use super::{round_away, round_even};

    #[test]
    fn rounding_equals_that_of_the_standard_library() {
        for half_steps in -256i16..=256 {
            let x = f32::from(half_steps) / 2.0;
            for x in [x.next_down(), x, x.next_up(), x + 0.25] {
                assert_eq!(round_away(x), x.round() as i8, "{x:e}");
                assert_eq!(round_even(x), x.round_ties_even().clamp(-127.0, 127.0) as i8, "{x:e}");
            }
        }
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            assert_eq!(round_away(x), x as i8);
            assert_eq!(round_even(x), x.clamp(-127.0, 127.0) as i8);
        }
    }
}
