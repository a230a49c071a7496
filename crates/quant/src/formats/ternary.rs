//! Formats with elements -d, 0 and d: tq1_0 and tq2_0.

use super::{decode_blocks, half_at};

/// `qs[48] | qh[4] | d f16`; x = (digit - 1) d.
///
/// A byte holds five base-3 digits as the fraction digits of byte / 256. Digits of equal rank in neighbouring bytes
/// are neighbouring elements: 5 x 32 from the first 32 bytes, 5 x 16 from the next 16, 4 x 4 from `qh`.
pub(crate) fn decode_tq1_0(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 54], x: &mut [f32; 256]| {
        let d = half_at(block, 52);
        put_digits(&mut x[..160], d, &block[..32]);
        put_digits(&mut x[160..240], d, &block[32..48]);
        put_digits(&mut x[240..], d, &block[48..52]);
    });
}

#[inline(always)]
fn put_digits(x: &mut [f32], d: f32, bytes: &[u8]) {
    let mut power = 1u8;
    for x in x.chunks_exact_mut(bytes.len()) {
        for (x, byte) in x.iter_mut().zip(bytes) {
            let fraction = byte.wrapping_mul(power);
            let digit = (u16::from(fraction) * 3) >> 8;
            *x = (i32::from(digit) - 1) as f32 * d;
        }
        power = power.wrapping_mul(3);
    }
}

/// `qs[64] | d f16`; x = (q - 1) d. Each 32 bytes hold four runs of 32 two-bit elements one above the other.
pub(crate) fn decode_tq2_0(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 66], x: &mut [f32; 256]| {
        let d = half_at(block, 64);
        for (run, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for m in 0..32 {
                let q = (block[32 * (run / 4) + m] >> (2 * (run % 4))) & 3;
                x[m] = (i32::from(q) - 1) as f32 * d;
            }
        }
    });
}
