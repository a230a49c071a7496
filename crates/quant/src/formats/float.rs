//! Floating-point elements, one to a block: f32, f16, bf16, f64.

use super::{decode_blocks, encode_blocks};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

pub(crate) fn decode_f32(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 4], x: &mut [f32; 1]| x[0] = f32::from_le_bytes(*block));
}

pub(crate) fn encode_f32(input: &[f32], output: &mut [u8]) {
    encode_blocks(input, output, |x: &[f32; 1], block: &mut [u8; 4]| *block = x[0].to_le_bytes());
}

/// Elements that are converted at once: only then the processor's instructions for it are used without asking for them
/// each time.
const HALVES: usize = 64;

pub(crate) fn decode_f16(input: &[u8], output: &mut [f32]) {
    let count = output.len().min(input.len() / 2);
    let (input, output) = (input.as_chunks::<2>().0, &mut output[..count]);
    for (bytes, x) in input.chunks(HALVES).zip(output.chunks_mut(HALVES)) {
        let mut halves = [f16::ZERO; HALVES];
        halves.iter_mut().zip(bytes).for_each(|(half, bytes)| *half = f16::from_le_bytes(*bytes));
        halves[..x.len()].convert_to_f32_slice(x);
    }
}

pub(crate) fn encode_f16(input: &[f32], output: &mut [u8]) {
    let count = input.len().min(output.len() / 2);
    let (input, output) = (&input[..count], output.as_chunks_mut::<2>().0);
    for (x, bytes) in input.chunks(HALVES).zip(output.chunks_mut(HALVES)) {
        let mut halves = [f16::ZERO; HALVES];
        halves[..x.len()].convert_from_f32_slice(x);
        bytes.iter_mut().zip(&halves[..x.len()]).for_each(|(bytes, half)| *bytes = half.to_le_bytes());
    }
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
