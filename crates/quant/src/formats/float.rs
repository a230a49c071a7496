//! Floating-point elements, one to a block: f32, f16, bf16, f64.

use super::{decode_blocks, encode_blocks};
use half::{bf16, f16};

pub(crate) fn decode_f32(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 4], x: &mut [f32; 1]| x[0] = f32::from_le_bytes(*block));
}

pub(crate) fn encode_f32(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 1], block: &mut [u8; 4]| *block = x[0].to_le_bytes());
}

pub(crate) fn decode_f16(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 2], x: &mut [f32; 1]| {
        x[0] = f16::from_le_bytes(*block).to_f32();
    });
}

pub(crate) fn encode_f16(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 1], block: &mut [u8; 2]| {
        *block = f16::from_f32(x[0]).to_le_bytes();
    });
}

pub(crate) fn decode_bf16(input: &[u8], output: &mut [f32]) {
    // A plain shift, unlike `bf16::to_f32`, keeps the payload of signalling NaNs and vectorises.
    decode_blocks(input, output, |block: &[u8; 2], x: &mut [f32; 1]| {
        x[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
    });
}

pub(crate) fn encode_bf16(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 1], block: &mut [u8; 2]| {
        *block = bf16::from_f32(x[0]).to_le_bytes();
    });
}

pub(crate) fn decode_f64(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 8], x: &mut [f32; 1]| {
        x[0] = f64::from_le_bytes(*block) as f32;
    });
}
