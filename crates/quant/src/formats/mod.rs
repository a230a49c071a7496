//! Decoders and encoders, one file for each family of formats.
//!
//! Every function walks whole blocks and leaves a trailing partial block alone, so that no byte content and no
//! length can make it panic. In each file `x` is the decoded element, `q` its stored integer.

pub(crate) mod binary;
mod fit;
pub(crate) mod float;
pub(crate) mod float4;
pub(crate) mod integer;
pub(crate) mod iq1;
pub(crate) mod iq2;
pub(crate) mod iq3;
pub(crate) mod iq4;
pub(crate) mod iq4_search;
pub(crate) mod iq_encode;
pub(crate) mod k_encode;
pub(crate) mod k_quants;
mod k_search;
mod lanes;
mod lattice;
pub(crate) mod q8;
pub(crate) mod round;
pub(crate) mod round_search;
pub(crate) mod small_search;
pub(crate) mod ternary;

use half::f16;

/// Calls `decode` on each block of `BYTES` bytes and the `BLOCK` elements it stands for.
#[inline(always)]
fn decode_blocks<const BYTES: usize, const BLOCK: usize>(
    input: &[u8],
    output: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; BLOCK]),
) {
    for (block, elements) in input.as_chunks().0.iter().zip(output.as_chunks_mut().0) {
        decode(block, elements);
    }
}

/// Calls `encode` on each run of `BLOCK` elements and the block of `BYTES` bytes that shall stand for it.
#[inline(always)]
fn encode_blocks<const BYTES: usize, const BLOCK: usize>(
    input: &[f32],
    output: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]),
) {
    for (elements, block) in input.as_chunks().0.iter().zip(output.as_chunks_mut().0) {
        encode(elements, block);
    }
}

/// As `encode_blocks`, with the importance of each element. `importance` is that of the columns of a row, of which
/// `input` holds any number; without a whole number of blocks it counts as absent.
#[inline(always)]
fn quantize_blocks<const BYTES: usize, const BLOCK: usize>(
    input: &[f32],
    importance: Option<&[f32]>,
    output: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], Option<&[f32; BLOCK]>, &mut [u8; BYTES]),
) {
    let columns = importance.filter(|columns| columns.len().is_multiple_of(BLOCK));
    let mut columns = columns.map(|columns| columns.as_chunks::<BLOCK>().0).unwrap_or(&[]).iter().cycle();
    for (elements, block) in input.as_chunks().0.iter().zip(output.as_chunks_mut().0) {
        encode(elements, columns.next(), block);
    }
}

/// The half-precision number at byte `offset` of a block.
#[inline(always)]
fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// The largest number of half precision.
const HALF_MAX: f32 = 65504.0;

/// Stores `value`, rounded to half precision, at byte `offset` of a block. Beyond the range it is the end of it: a
/// scale must be finite.
#[inline(always)]
fn put_half(block: &mut [u8], offset: usize, value: f32) {
    block[offset..offset + 2].copy_from_slice(&f16::from_f32(value.clamp(-HALF_MAX, HALF_MAX)).to_le_bytes());
}

/// The low four bits of a byte.
#[inline(always)]
fn low(byte: u8) -> u8 {
    byte & 15
}

/// The high four bits of a byte.
#[inline(always)]
fn high(byte: u8) -> u8 {
    byte >> 4
}

/// `1 / scale`, or 0 where the scale is 0 and every element of the block is.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Largest magnitude; NaN counts as nothing.
#[inline(always)]
fn peak(elements: &[f32]) -> f32 {
    // Independent lanes, because one running maximum waits for itself.
    let mut lanes = [0.0; 8];
    let (chunks, rest) = elements.as_chunks::<8>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if x.abs() > *lane { x.abs() } else { *lane };
        }
    }
    rest.iter().chain(&lanes).fold(0.0, |peak, x| peak.max(x.abs()))
}

/// The element of largest magnitude with its sign; of equals the first. 0 if all are 0 or NaN.
#[inline(always)]
fn signed_peak(elements: &[f32]) -> f32 {
    let peak = peak(elements);
    if peak == 0.0 {
        return 0.0;
    }
    elements.iter().copied().find(|x| x.abs() == peak).unwrap_or(0.0)
}
