//! Super-blocks of 256 elements whose sub-blocks have quantised scales (and minima): q2_K to q6_K.

use super::{decode_blocks, half_at, high, low};

/// `scales[16] | qs[64] | d f16 | dmin f16`; 16 groups of 16; x = d scale q - dmin min.
pub(crate) fn decode_q2_k(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 84], x: &mut [f32; 256]| {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for (group, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(low(block[group]));
            let min = dmin * f32::from(high(block[group]));
            let (start, shift) = two_bit_group(group);
            for l in 0..16 {
                let q = (block[16 + start + l] >> shift) & 3;
                x[l] = scale * f32::from(q) - min;
            }
        }
    });
}

/// `hmask[32] | qs[64] | scales[12] | d f16`; 16 groups of 16; x = d (scale - 32) (q - 4).
pub(crate) fn decode_q3_k(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 110], x: &mut [f32; 256]| {
        let d = half_at(block, 108);
        for (group, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let nibbles = block[96 + group % 8];
            let low_bits = if group < 8 { low(nibbles) } else { high(nibbles) };
            let high_bits = (block[104 + group % 4] >> (2 * (group / 4))) & 3;
            let scale = d * (i32::from(low_bits | high_bits << 4) - 32) as f32;
            let (start, shift) = two_bit_group(group);
            for l in 0..16 {
                let low_bits = (block[32 + start + l] >> shift) & 3;
                let high_bit = (block[16 * (group % 2) + l] >> (group / 2)) & 1;
                x[l] = scale * (i32::from(low_bits | high_bit << 2) - 4) as f32;
            }
        }
    });
}

/// First byte in `qs` and bit shift of the two-bit fields of a group of 16: each half of the super-block has 32
/// bytes, which hold four runs of 32 elements one above the other.
#[inline(always)]
pub(super) fn two_bit_group(group: usize) -> (usize, usize) {
    (32 * (group / 8) + 16 * (group % 2), 2 * (group % 8 / 2))
}

/// `d f16 | dmin f16 | scales[12] | qs[128]`; 8 sub-blocks of 32; x = d scale q - dmin min.
pub(crate) fn decode_q4_k(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 144], x: &mut [f32; 256]| {
        let scales = scales_and_mins(block);
        for (sub, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = scales[sub];
            let shift = 4 * (sub % 2);
            for l in 0..32 {
                let q = (block[16 + 32 * (sub / 2) + l] >> shift) & 15;
                x[l] = scale * f32::from(q) - min;
            }
        }
    });
}

/// `d f16 | dmin f16 | scales[12] | qh[32] | qs[128]`; as q4_K, with bit 4 of sub-block s in bit s of `qh`.
pub(crate) fn decode_q5_k(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 176], x: &mut [f32; 256]| {
        let scales = scales_and_mins(block);
        for (sub, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = scales[sub];
            let shift = 4 * (sub % 2);
            for l in 0..32 {
                let low_bits = (block[48 + 32 * (sub / 2) + l] >> shift) & 15;
                let high_bit = (block[16 + l] >> sub) & 1;
                x[l] = scale * f32::from(low_bits | high_bit << 4) - min;
            }
        }
    });
}

/// Scale and minimum of the eight sub-blocks of q4_K and q5_K, multiplied by d and dmin. The integers have six
/// bits: those of the first four sub-blocks lie in the low bits of bytes 0 to 3 and 4 to 7, those of the last four
/// have their low nibbles in bytes 8 to 11 and their upper bits on top of bytes 0 to 7.
#[inline(always)]
fn scales_and_mins(block: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    std::array::from_fn(|sub| {
        let (scale, min) = if sub < 4 {
            (packed[sub] & 63, packed[sub + 4] & 63)
        } else {
            let nibbles = packed[sub + 4];
            (low(nibbles) | packed[sub - 4] >> 6 << 4, high(nibbles) | packed[sub] >> 6 << 4)
        };
        (d * f32::from(scale), dmin * f32::from(min))
    })
}

/// `ql[128] | qh[64] | scales i8[16] | d f16`; 16 groups of 16; x = d scale (q - 32).
///
/// A half of 128 elements is four runs of 32. `ql` keeps runs 0 and 1 in its low nibbles, 2 and 3 in its high ones;
/// byte l of `qh` keeps the upper two bits of element l of the four runs.
pub(crate) fn decode_q6_k(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 210], x: &mut [f32; 256]| {
        let d = half_at(block, 208);
        for (group, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(block[192 + group] as i8);
            let (half, run, start) = (group / 8, group % 8 / 2, 16 * (group % 2));
            let ql = 64 * half + 32 * (run % 2) + start;
            let qh = 128 + 32 * half + start;
            for l in 0..16 {
                let low_bits = (block[ql + l] >> (4 * (run / 2))) & 15;
                let high_bits = (block[qh + l] >> (2 * run)) & 3;
                x[l] = scale * (i32::from(low_bits | high_bits << 4) - 32) as f32;
            }
        }
    });
}
