//! The plain 4- and 5-bit formats of 32 elements: q4_0, q4_1, q5_0, q5_1.
//!
//! Byte `j` of `qs` holds the low four bits of element `j` in its low nibble and of element `j + 16` in its high
//! one; the 5-bit formats keep bit 4 of element `i` in bit `i` of the 32-bit field `qh`.

use super::{decode_blocks, encode_blocks, half_at, high, inverse, low, put_half, signed_peak};

/// `d f16 | qs[16]`; x = (q - 8) d.
pub(crate) fn decode_q4_0(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 18], x: &mut [f32; 32]| {
        let d = half_at(block, 0);
        for j in 0..16 {
            let byte = block[2 + j];
            x[j] = (i32::from(low(byte)) - 8) as f32 * d;
            x[j + 16] = (i32::from(high(byte)) - 8) as f32 * d;
        }
    });
}

/// `d f16 | m f16 | qs[16]`; x = q d + m.
pub(crate) fn decode_q4_1(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 20], x: &mut [f32; 32]| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for j in 0..16 {
            let byte = block[4 + j];
            x[j] = f32::from(low(byte)) * d + m;
            x[j + 16] = f32::from(high(byte)) * d + m;
        }
    });
}

/// `d f16 | qh u32 | qs[16]`; x = (q - 16) d.
pub(crate) fn decode_q5_0(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 22], x: &mut [f32; 32]| {
        let d = half_at(block, 0);
        let q = five_bits(block, 2);
        for i in 0..32 {
            x[i] = (i32::from(q[i]) - 16) as f32 * d;
        }
    });
}

/// `d f16 | m f16 | qh u32 | qs[16]`; x = q d + m.
pub(crate) fn decode_q5_1(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 24], x: &mut [f32; 32]| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        let q = five_bits(block, 4);
        for i in 0..32 {
            x[i] = f32::from(q[i]) * d + m;
        }
    });
}

/// The 32 five-bit integers whose fields `qh` and `qs` start at byte `offset`.
#[inline(always)]
fn five_bits(block: &[u8], offset: usize) -> [u8; 32] {
    let qh = u32::from_le_bytes([block[offset], block[offset + 1], block[offset + 2], block[offset + 3]]);
    let mut q = [0; 32];
    for j in 0..16 {
        let byte = block[offset + 4 + j];
        q[j] = low(byte) | (((qh >> j) & 1) << 4) as u8;
        q[j + 16] = high(byte) | (((qh >> (j + 16)) & 1) << 4) as u8;
    }
    q
}

/// The element of largest magnitude becomes exactly -8 d.
pub(crate) fn encode_q4_0(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 32], block: &mut [u8; 18]| {
        let d = signed_peak(x) / -8.0;
        let scale = inverse(d);
        put_half(block, 0, d);
        put_nibbles(&mut block[2..], &x.map(|x| ((x * scale + 8.5) as u8).min(15)));
    });
}

/// The smallest element becomes m, the largest m + 15 d.
pub(crate) fn encode_q4_1(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 32], block: &mut [u8; 20]| {
        let (min, max) = extremes(x);
        let d = (max - min) / 15.0;
        let scale = inverse(d);
        put_half(block, 0, d);
        put_half(block, 2, min);
        put_nibbles(&mut block[4..], &x.map(|x| (((x - min) * scale + 0.5) as u8).min(15)));
    });
}

/// The element of largest magnitude becomes exactly -16 d.
pub(crate) fn encode_q5_0(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 32], block: &mut [u8; 22]| {
        let d = signed_peak(x) / -16.0;
        let scale = inverse(d);
        put_half(block, 0, d);
        put_five_bits(&mut block[2..], &x.map(|x| ((x * scale + 16.5) as u8).min(31)));
    });
}

/// The smallest element becomes m, the largest m + 31 d.
pub(crate) fn encode_q5_1(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 32], block: &mut [u8; 24]| {
        let (min, max) = extremes(x);
        let d = (max - min) / 31.0;
        let scale = inverse(d);
        put_half(block, 0, d);
        put_half(block, 2, min);
        put_five_bits(&mut block[4..], &x.map(|x| (((x - min) * scale + 0.5) as u8).min(31)));
    });
}

/// Smallest and largest element.
fn extremes(x: &[f32; 32]) -> (f32, f32) {
    x.iter().fold((f32::MAX, f32::MIN), |(min, max), &x| (min.min(x), max.max(x)))
}

/// Packs the low four bits of each integer into the 16 bytes `qs`.
pub(super) fn put_nibbles(qs: &mut [u8], q: &[u8; 32]) {
    for (j, byte) in qs.iter_mut().take(16).enumerate() {
        *byte = low(q[j]) | low(q[j + 16]) << 4;
    }
}

/// Packs 32 five-bit integers into the fields `qh` and `qs`.
pub(super) fn put_five_bits(fields: &mut [u8], q: &[u8; 32]) {
    let qh = (0..32).fold(0, |bits, i| bits | u32::from(q[i] >> 4) << i);
    let (high_bits, qs) = fields.split_at_mut(4);
    high_bits.copy_from_slice(&qh.to_le_bytes());
    put_nibbles(qs, q);
}
