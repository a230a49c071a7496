//! 4-bit floating point (E2M1) with 8-bit floating-point scales: mxfp4 and nvfp4.

use super::{decode_blocks, high, low};

/// Twice the value of each E2M1 code, so that all are integers. The scales below are halved in return.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `e u8 | qs[16]`; x = 2^(e - 128) value(q).
pub(crate) fn decode_mxfp4(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 17], x: &mut [f32; 32]| {
        let scale = half_e8m0(block[0]);
        let (low_half, high_half) = x.split_at_mut(16);
        put_values(low_half, high_half, scale, &block[1..]);
    });
}

/// `d u8[4] | qs[32]`; four sub-blocks of 16 elements with eight bytes each; x = e4m3(d) / 2 value(q).
pub(crate) fn decode_nvfp4(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 36], x: &mut [f32; 64]| {
        for (sub, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = half_unsigned_e4m3(block[sub]);
            let (low_half, high_half) = x.split_at_mut(8);
            put_values(low_half, high_half, scale, &block[4 + 8 * sub..]);
        }
    });
}

/// Writes the low nibbles of `qs` to one half of a run and the high ones to the other.
#[inline(always)]
fn put_values(low_half: &mut [f32], high_half: &mut [f32], scale: f32, qs: &[u8]) {
    for ((low_x, high_x), &byte) in low_half.iter_mut().zip(high_half).zip(qs) {
        *low_x = f32::from(E2M1_DOUBLED[usize::from(low(byte))]) * scale;
        *high_x = f32::from(E2M1_DOUBLED[usize::from(high(byte))]) * scale;
    }
}

/// 2^(e - 128), half of the E8M0 number e. The code 255, NaN in E8M0, counts as a number here.
#[inline(always)]
pub fn half_e8m0(e: u8) -> f32 {
    // The two lowest powers are subnormal in f32.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Half of the E4M3 number whose sign bit is ignored. The code 0x7f, NaN in E4M3, counts as 0.
#[inline(always)]
pub fn half_unsigned_e4m3(code: u8) -> f32 {
    if code == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = ((code >> 3) & 15, code & 7);
    if exponent == 0 {
        f32::from(mantissa) / 1024.0
    } else {
        // Exponent bias 7 and the halving make 2^(exponent - 8).
        f32::from_bits((u32::from(exponent) + 119) << 23 | u32::from(mantissa) << 20)
    }
}
