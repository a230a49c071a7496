//! From packed codes and scales to vectors.

use super::super::integers::{INTEGERS, Scales};
use std::arch::aarch64::*;

/// What the signed codes of [`block_codes`] have to be lessened by: nothing for bytes and for values of tables.
pub(super) const fn offset<const F: usize>() -> i32 {
    let integer = INTEGERS[F];
    if integer.table.is_some() || integer.bits == 8 { 0 } else { integer.offset }
}

/// The largest magnitude of the signed codes of [`block_codes`].
pub(super) const fn magnitude<const F: usize>() -> usize {
    let integer = INTEGERS[F];
    let (largest, offset) = (integer.largest(), integer.offset as usize);
    if integer.table.is_none() && integer.bits != 8 {
        largest
    } else if largest - offset > offset {
        largest - offset
    } else {
        offset
    }
}

/// The values of a table as signed numbers.
const fn signed_table<const F: usize>() -> [i8; 16] {
    let mut signed = [0; 16];
    if let Some(table) = INTEGERS[F].table {
        let mut index = 0;
        while index < 16 {
            signed[index] = (table[index] as i32 - INTEGERS[F].offset) as i8;
            index += 1;
        }
    }
    signed
}

/// For block `part` of a record and the 4 rows from `row` on: the scale and the minimum of all columns; or the scales of
/// both halves ([`Scales::halves`]); or ([`Scales::SuperNibbles`]) scale and negated minimum of the record, and the
/// bytes of the block as 16-bit pairs.
///
/// # Safety
/// `record` points to a scale record of format `F`.
#[target_feature(enable = "neon")]
#[inline]
pub(super) unsafe fn block_scales<const F: usize>(
    record: *const u8,
    part: usize,
    row: usize,
) -> [float32x4_t; 3] {
    let integer = const { INTEGERS[F] };
    let zero = vdupq_n_f32(0.0);
    // SAFETY: records consist of vectors of 16 numbers, as `Scales` says.
    unsafe {
        let half = |vector: usize| from_halves(vld1_u16(record.add(vector * 32 + row * 2).cast()));
        let negative = |vector: usize| vsubq_f32(zero, half(vector));
        match integer.scales {
            Scales::Single(_) => [half(0), zero, zero],
            Scales::Affine => [half(0), half(1), zero],
            Scales::Exponent => {
                let exponent = vmovl_u16(words(record.add(row)));
                let one = vdupq_n_u32(1);
                let normal = vshlq_n_u32::<23>(vsubq_u32(exponent, one));
                // The two lowest powers are subnormal numbers.
                let subnormal = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(exponent));
                let bits = vbslq_u32(vcgtq_u32(exponent, one), normal, subnormal);
                [vreinterpretq_f32_u32(bits), zero, zero]
            }
            Scales::Minifloat => {
                let scale = |side: usize| {
                    let codes = words(record.add((part * 2 + side) * 16 + row));
                    vmulq_n_f32(from_halves(vshl_n_u16::<7>(codes)), integer.factor)
                };
                [scale(0), scale(1), zero]
            }
            Scales::SuperAffine => [
                vmulq_f32(half(0), unsigned(record.add(64 + part * 32 + row))),
                vmulq_f32(negative(1), unsigned(record.add(80 + part * 32 + row))),
                zero,
            ],
            Scales::SuperNibbles => {
                let pairs = vmovl_u8(vld1_u8(record.add(64 + part * 32 + row * 2)));
                [half(0), negative(1), vreinterpretq_f32_u16(pairs)]
            }
            Scales::SuperSingle => {
                let first = vmulq_n_f32(half(0), integer.factor);
                [vmulq_f32(first, signed(record.add(32 + part * 16 + row))), zero, zero]
            }
            Scales::SuperHalf => {
                let first = vmulq_n_f32(half(0), integer.factor);
                [
                    vmulq_f32(first, signed(record.add(32 + part * 32 + row))),
                    vmulq_f32(first, signed(record.add(48 + part * 32 + row))),
                    zero,
                ]
            }
        }
    }
}

/// Four numbers of F16.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn from_halves(bits: uint16x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(bits))
}

/// Four bytes, widened.
///
/// # Safety
/// There are four bytes at `place`.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn words(place: *const u8) -> uint16x4_t {
    // SAFETY: forwarded from the caller.
    let bytes = vdup_n_u32(unsafe { place.cast::<u32>().read_unaligned() });
    vget_low_u16(vmovl_u8(vreinterpret_u8_u32(bytes)))
}

/// Four unsigned bytes as numbers.
///
/// # Safety
/// There are four bytes at `place`.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn unsigned(place: *const u8) -> float32x4_t {
    // SAFETY: forwarded from the caller.
    vcvtq_f32_u32(vmovl_u16(unsafe { words(place) }))
}

/// Four signed bytes as numbers.
///
/// # Safety
/// There are four bytes at `place`.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn signed(place: *const u8) -> float32x4_t {
    // SAFETY: forwarded from the caller.
    let bytes = vdup_n_u32(unsafe { place.cast::<u32>().read_unaligned() });
    vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(bytes)))))
}

/// The 32 columns of 4 rows in quads of four, as signed values that are [`offset`] too large.
///
/// # Safety
/// `block` points to one of the four parts of the first unit of a block of codes of format `F`.
#[target_feature(enable = "neon")]
#[inline]
pub(super) unsafe fn block_codes<const F: usize>(block: *const u8) -> [int8x16_t; 8] {
    let mut codes = [vdupq_n_s8(0); 8];
    for quad in 0..8 {
        // SAFETY: forwarded from the caller.
        codes[quad] = unsafe { quad_codes::<F>(block, quad) };
    }
    codes
}

/// Four columns of 4 rows; `quad` is 0 to 7.
///
/// # Safety
/// As for [`block_codes`].
#[target_feature(enable = "neon")]
#[inline]
unsafe fn quad_codes<const F: usize>(block: *const u8, quad: usize) -> int8x16_t {
    let integer = const { INTEGERS[F] };
    // SAFETY: the block has the units of 64 bytes read here.
    let unit = |index: usize| unsafe { vld1q_u8(block.add(index * 64)) };
    let part = |index: usize, from: usize, to: usize, mask: u8| {
        vandq_u8(shift(unit(index), from, to), vdupq_n_u8(mask << to))
    };
    let nibbles = || part(quad % 4, quad / 4 * 4, 0, 15);
    let pairs = || part(quad / 4, quad % 4 * 2, 0, 3);
    let codes = match integer.bits {
        // Doubled, so that both values are a whole number from their middle.
        1 => part(0, quad, 1, 1),
        2 => pairs(),
        3 => vorrq_u8(pairs(), part(2, quad, 2, 1)),
        4 => nibbles(),
        5 => vorrq_u8(nibbles(), part(4, quad, 4, 1)),
        6 => vorrq_u8(nibbles(), part(4 + quad / 4, quad % 4 * 2, 4, 3)),
        // Less 128, which is the offset of all formats of full bytes.
        _ => veorq_u8(unit(quad), vdupq_n_u8(128)),
    };
    if integer.table.is_none() {
        return vreinterpretq_s8_u8(codes);
    }
    let table = const { &signed_table::<F>() };
    // SAFETY: the table has 16 bytes.
    vqtbl1q_s8(unsafe { vld1q_s8(table.as_ptr()) }, codes)
}

/// The bits of one unit that belong to a quad, shifted so that the lowest, which is bit `from` of a byte, becomes bit
/// `to`; other bits are left as they come.
#[target_feature(enable = "neon")]
#[inline]
fn shift(unit: uint8x16_t, from: usize, to: usize) -> uint8x16_t {
    match to as i32 - from as i32 {
        4 => vshlq_n_u8::<4>(unit),
        3 => vshlq_n_u8::<3>(unit),
        2 => vshlq_n_u8::<2>(unit),
        1 => vshlq_n_u8::<1>(unit),
        0 => unit,
        -1 => vshrq_n_u8::<1>(unit),
        -2 => vshrq_n_u8::<2>(unit),
        -3 => vshrq_n_u8::<3>(unit),
        -4 => vshrq_n_u8::<4>(unit),
        -5 => vshrq_n_u8::<5>(unit),
        _ => vshrq_n_u8::<6>(unit),
    }
}
