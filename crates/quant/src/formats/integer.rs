//! Two's complement integers, one to a block. The wide ones round to the nearest f32.

use super::decode_blocks;

pub(crate) fn decode_i8(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 1], x: &mut [f32; 1]| {
        x[0] = f32::from(i8::from_le_bytes(*block));
    });
}

pub(crate) fn decode_i16(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 2], x: &mut [f32; 1]| {
        x[0] = f32::from(i16::from_le_bytes(*block));
    });
}

pub(crate) fn decode_i32(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 4], x: &mut [f32; 1]| {
        x[0] = i32::from_le_bytes(*block) as f32;
    });
}

pub(crate) fn decode_i64(input: &[u8], output: &mut [f32]) {
    decode_blocks(input, output, |block: &[u8; 8], x: &mut [f32; 1]| {
        x[0] = i64::from_le_bytes(*block) as f32;
    });
}
