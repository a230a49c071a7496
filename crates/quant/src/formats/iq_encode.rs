//! Careful encoders of the lattice formats; the layouts are those of the decoders in `iq1`, `iq2` and `iq3`.

use super::fit::{normalised, weights};
use super::lattice::{Found, Lattice, Layout};
use super::{put_half, quantize_blocks};
use crate::grids;
use std::sync::LazyLock;

static IQ2_XXS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(&grids::IQ2_XXS, &grids::LEVELS_2));
static IQ2_XS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(&grids::IQ2_XS, &grids::LEVELS_2));
static IQ2_S: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(&grids::IQ2_S, &grids::LEVELS_2));
static IQ3_XXS: LazyLock<Lattice<4>> = LazyLock::new(|| Lattice::new(&grids::IQ3_XXS, &grids::LEVELS_3_XXS));
static IQ3_S: LazyLock<Lattice<4>> = LazyLock::new(|| Lattice::new(&grids::IQ3_S, &grids::LEVELS_3_S));
static IQ1: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(&grids::IQ1, &grids::LEVELS_1));

/// Where the largest element of a group may lie, relative to the highest level.
const STARTS: &[f32] = &[0.82, 0.96, 1.1, 1.25];
/// With three levels many elements lie beyond the highest.
const STARTS_1: &[f32] = &[1.1, 1.5, 1.95, 2.5];
const NO_SHIFT: &[f32] = &[0.0];
const EIGHTHS: &[f32] = &[0.125, -0.125];

fn layout<const N: usize>(lattice: &'static Lattice<N>, group: usize, factor: f32) -> Layout<N> {
    Layout { lattice, group, levels: 15.0, shifts: NO_SHIFT, shift_group: group, factor, starts: STARTS }
}

fn shifted(group: usize, shift_group: usize) -> Layout<8> {
    Layout { lattice: &IQ1, group, levels: 7.0, shifts: EIGHTHS, shift_group, factor: 1.0, starts: STARTS_1 }
}

/// Elements without their signs, and the signs of each eight.
///
/// If `even`, a number of negative signs that is odd is made even by turning the sign that matters least; its element
/// then has a negative magnitude.
fn take_signs(x: &mut [f32; 256], w: &[f32; 256], even: bool) -> [u8; 32] {
    let mut signs = [0u8; 32];
    for ((signs, x), w) in signs.iter_mut().zip(x.as_chunks_mut::<8>().0).zip(w.as_chunks::<8>().0) {
        for (j, x) in x.iter_mut().enumerate() {
            if *x < 0.0 {
                *signs |= 1 << j;
                *x = -*x;
            }
        }
        if even && signs.count_ones() % 2 == 1 {
            let cost = |j: &usize| w[*j] * x[*j] * x[*j];
            let cheapest = (0..8).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
            *signs ^= 1 << cheapest;
            x[cheapest] = -x[cheapest];
        }
    }
    signs
}

/// Finds the lattice points of a block and has them written; zeros where it is as good as zero.
fn quantize<const BYTES: usize, const N: usize>(
    (input, importance, output): (&[f32], Option<&[f32]>, &mut [u8]),
    layout: &Layout<N>,
    signs: Signs,
    put: impl Fn(&mut [u8; BYTES], &Found, &[u8; 32]),
) {
    quantize_blocks(input, importance, output, |x: &[f32; 256], importance, block: &mut [u8; BYTES]| {
        block.fill(0);
        let Some((mut x, unit)) = normalised(x) else { return };
        let w = weights(&x, importance);
        let signs = match signs {
            Signs::InPoints => [0; 32],
            Signs::Free => take_signs(&mut x, &w, false),
            Signs::Even => take_signs(&mut x, &w, true),
        };
        put(block, &layout.search(&x, &w, unit), &signs);
    });
}

/// How a format keeps signs.
#[derive(Clone, Copy)]
enum Signs {
    InPoints,
    Free,
    Even,
}

pub(crate) fn quantize_iq2_xxs(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let layout = layout(&IQ2_XXS, 32, 8.0);
    quantize((input, importance, output), &layout, Signs::Even, |block: &mut [u8; 66], found, signs| {
        put_half(block, 0, found.d);
        for group in 0..8 {
            let mut fields = u32::from(found.scales[group]) << 28;
            for l in 0..4 {
                let run = 4 * group + l;
                block[2 + 8 * group + l] = found.indices[run] as u8;
                fields |= u32::from(signs[run] & 127) << (7 * l);
            }
            block[6 + 8 * group..10 + 8 * group].copy_from_slice(&fields.to_le_bytes());
        }
    });
}

pub(crate) fn quantize_iq2_xs(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let layout = layout(&IQ2_XS, 16, 8.0);
    quantize((input, importance, output), &layout, Signs::Even, |block: &mut [u8; 74], found, signs| {
        put_half(block, 0, found.d);
        for run in 0..32 {
            let field = found.indices[run] | u16::from(signs[run] & 127) << 9;
            block[2 + 2 * run..4 + 2 * run].copy_from_slice(&field.to_le_bytes());
        }
        put_scale_nibbles(&mut block[66..], &found.scales);
    });
}

pub(crate) fn quantize_iq2_s(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let layout = layout(&IQ2_S, 16, 8.0);
    quantize((input, importance, output), &layout, Signs::Free, |block: &mut [u8; 82], found, signs| {
        put_half(block, 0, found.d);
        for run in 0..32 {
            block[2 + run] = found.indices[run] as u8;
            block[34 + run] = signs[run];
            block[66 + run / 4] |= ((found.indices[run] >> 8) as u8) << (2 * (run % 4));
        }
        put_scale_nibbles(&mut block[74..], &found.scales);
    });
}

pub(crate) fn quantize_iq3_xxs(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let layout = layout(&IQ3_XXS, 32, 4.0);
    quantize((input, importance, output), &layout, Signs::Even, |block: &mut [u8; 98], found, signs| {
        put_half(block, 0, found.d);
        for run in 0..64 {
            block[2 + run] = found.indices[run] as u8;
        }
        for group in 0..8 {
            let fields = (0..4).fold(u32::from(found.scales[group]) << 28, |fields, l| {
                fields | u32::from(signs[4 * group + l] & 127) << (7 * l)
            });
            block[66 + 4 * group..70 + 4 * group].copy_from_slice(&fields.to_le_bytes());
        }
    });
}

pub(crate) fn quantize_iq3_s(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let layout = layout(&IQ3_S, 32, 1.0);
    quantize((input, importance, output), &layout, Signs::Free, |block: &mut [u8; 110], found, signs| {
        put_half(block, 0, found.d);
        for run in 0..64 {
            block[2 + run] = found.indices[run] as u8;
            block[66 + run / 8] |= ((found.indices[run] >> 8) as u8) << (run % 8);
        }
        block[74..106].copy_from_slice(signs);
        put_scale_nibbles(&mut block[106..], &found.scales);
    });
}

pub(crate) fn quantize_iq1_s(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let layout = shifted(32, 32);
    quantize((input, importance, output), &layout, Signs::InPoints, |block: &mut [u8; 50], found, _| {
        put_half(block, 0, found.d);
        for group in 0..8 {
            let mut field = u16::from(found.scales[group]) << 12 | u16::from(found.shifts[4 * group]) << 15;
            for l in 0..4 {
                let index = found.indices[4 * group + l];
                block[2 + 4 * group + l] = index as u8;
                field |= (index >> 8) << (3 * l);
            }
            block[34 + 2 * group..36 + 2 * group].copy_from_slice(&field.to_le_bytes());
        }
    });
}

pub(crate) fn quantize_iq1_m(input: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let layout = shifted(16, 8);
    quantize((input, importance, output), &layout, Signs::InPoints, |block: &mut [u8; 56], found, _| {
        for run in 0..32 {
            let nibble = (found.indices[run] >> 8) as u8 | found.shifts[run] << 3;
            block[run] = found.indices[run] as u8;
            block[32 + run / 2] |= nibble << (4 * (run % 2));
        }
        let mut d = [0; 2];
        put_half(&mut d, 0, found.d);
        let d = u16::from_le_bytes(d);
        for quarter in 0..4 {
            let scales = (0..4).fold(((d >> (4 * quarter)) & 15) << 12, |scales, place| {
                scales | u16::from(found.scales[4 * quarter + place]) << (3 * place)
            });
            block[48 + 2 * quarter..50 + 2 * quarter].copy_from_slice(&scales.to_le_bytes());
        }
    });
}

/// Four-bit scales, the first of each pair in the low nibble.
fn put_scale_nibbles(bytes: &mut [u8], scales: &[u8; 16]) {
    for (byte, pair) in bytes.iter_mut().zip(scales.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
}
