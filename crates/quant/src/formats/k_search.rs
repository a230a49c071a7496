//! Super-blocks of 256 elements: integers of two levels, found together.
//!
//! Each sub-block gets the scale (and minimum) that fits it best; these become integers times a scale of the whole
//! super-block, which is then fitted to all its elements at once, and the integers of the sub-blocks once more.

use super::fit::{Best, round, round_within};
use super::lanes::{Blocks, LANES, Lanes, Sums, inverses};
use super::{HALF_MAX, inverse};
use half::f16;
use std::array::from_fn;

/// Rounds of fitting the super-block's scales to the integers and the integers to them.
const ROUNDS: usize = 2;

/// Sub-blocks of `N` elements, `GROUPS` times as many as there are lanes; a super-block has 256 elements.
pub(super) type SuperBlock<const GROUPS: usize, const N: usize> = [Blocks<N>; GROUPS];

/// A super-block with `x = d scale q - dmin min`. Sub-block `s` is `[s / LANES][s % LANES]`.
pub(super) struct Affine<const GROUPS: usize, const N: usize> {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: [[u8; LANES]; GROUPS],
    pub(super) mins: [[u8; LANES]; GROUPS],
    pub(super) q: [[[u8; N]; LANES]; GROUPS],
}

/// A super-block with `x = d scale q`.
pub(super) struct Symmetric<const GROUPS: usize, const N: usize> {
    pub(super) d: f32,
    pub(super) scales: [[i8; LANES]; GROUPS],
    pub(super) q: [[[i8; N]; LANES]; GROUPS],
}

/// The number as half precision keeps it; the largest finite one at most.
pub(super) fn half(value: f32) -> f32 {
    f16::from_f32(value.clamp(-HALF_MAX, HALF_MAX)).to_f32()
}

/// The sub-blocks of a super-block and of its weights.
pub(super) fn split<const GROUPS: usize, const N: usize>(
    x: &[f32; 256],
    w: &[f32; 256],
) -> SuperBlock<GROUPS, N> {
    const { assert!(GROUPS * LANES * N == 256) };
    from_fn(|group| {
        let of = |all: &[f32; 256]| -> [[f32; N]; LANES] {
            from_fn(|lane| from_fn(|l| all[(group * LANES + lane) * N + l]))
        };
        Blocks::new(&of(x), &of(w))
    })
}

/// Integers of `0..=most` with scales and minima of `0..=levels`. `unit` is what the elements were divided by.
pub(super) fn affine_block<const GROUPS: usize, const N: usize>(
    blocks: &SuperBlock<GROUPS, N>,
    unit: f32,
    most: f32,
    levels: f32,
) -> Affine<GROUPS, N> {
    let fits: [(Lanes, Lanes); GROUPS] = from_fn(|group| blocks[group].affine(most, false));
    let keep = |value: f32| half(value * unit) / unit;
    let top =
        |value: &dyn Fn(&(Lanes, Lanes)) -> Lanes| fits.iter().flat_map(value).fold(0f32, f32::max) / levels;
    let mut d = keep(top(&|fit| fit.0));
    let mut dmin = keep(top(&|fit| fit.1.map(|min| -min)));
    let within = |value: f32| round_within(value, 0.0, levels);
    let mut scales = fits.map(|fit| fit.0.map(|scale| within(scale * inverse(d))));
    let mut mins = fits.map(|fit| fit.1.map(|min| within(-min * inverse(dmin))));
    let totals: [(Lanes, Lanes); GROUPS] = from_fn(|group| blocks[group].totals());
    for _ in 0..ROUNDS {
        let sums = from_fn(|group| {
            let (inverses, offsets) = steps((d, dmin), &scales[group], &mins[group]);
            blocks[group].sums(&inverses, &offsets.map(|offset| -offset), most)
        });
        (d, dmin) = refit(&sums, &totals, (d, dmin), &scales, &mins);
        (d, dmin) = (keep(d), keep(dmin));
        for group in 0..GROUPS {
            (scales[group], mins[group]) =
                neighbours(&blocks[group], most, levels, (d, dmin), (&scales[group], &mins[group]));
        }
    }
    let q = from_fn(|group| {
        let (inverses, offsets) = steps((d, dmin), &scales[group], &mins[group]);
        blocks[group].map(|x, lane| round_within((x + offsets[lane]) * inverses[lane], 0.0, most) as u8)
    });
    Affine {
        d: d * unit,
        dmin: dmin * unit,
        scales: scales.map(|scales| scales.map(|scale| scale as u8)),
        mins: mins.map(|mins| mins.map(|min| min as u8)),
        q,
    }
}

/// What elements of each sub-block are multiplied by, and what is added to them before.
#[inline(always)]
fn steps((d, dmin): (f32, f32), scales: &Lanes, mins: &Lanes) -> (Lanes, Lanes) {
    (inverses(&scales.map(|scale| d * scale)), mins.map(|min| dmin * min))
}

/// The pair of d and dmin with the smallest error for given integers.
fn refit<const GROUPS: usize>(
    sums: &[Sums; GROUPS],
    totals: &[(Lanes, Lanes); GROUPS],
    (d, dmin): (f32, f32),
    scales: &[Lanes; GROUPS],
    mins: &[Lanes; GROUPS],
) -> (f32, f32) {
    // Sums of products of a = scale q, b = min and x.
    let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0f64, 0f64, 0f64, 0f64, 0f64);
    for group in 0..GROUPS {
        let (sums, (weight, weighted)) = (&sums[group], &totals[group]);
        for lane in 0..LANES {
            let (a, b) = (f64::from(scales[group][lane]), f64::from(mins[group][lane]));
            aa += a * a * f64::from(sums.square[lane]);
            ab += a * b * f64::from(sums.q[lane]);
            bb += b * b * f64::from(weight[lane]);
            xa += a * f64::from(sums.cross[lane]);
            xb += b * f64::from(weighted[lane]);
        }
    }
    let determinant = aa * bb - ab * ab;
    if determinant > 1e-9 * aa * bb {
        let next = ((xa * bb - xb * ab) / determinant, (xa * ab - xb * aa) / determinant);
        if next.0 > 0.0 && next.1 >= 0.0 {
            return (next.0 as f32, next.1 as f32);
        }
    }
    if bb == 0.0 && aa > 0.0 && xa > 0.0 { ((xa / aa) as f32, dmin) } else { (d, dmin) }
}

/// The best of the scale and minimum of each sub-block and those one beside them.
fn neighbours<const N: usize>(
    blocks: &Blocks<N>,
    most: f32,
    levels: f32,
    (d, dmin): (f32, f32),
    (scales, mins): (&Lanes, &Lanes),
) -> (Lanes, Lanes) {
    let mut least = [f32::INFINITY; LANES];
    let (mut best_scales, mut best_mins) = (*scales, *mins);
    for beside in [0.0, -1.0, 1.0] {
        let scales = scales.map(|scale| (scale + beside).clamp(0.0, levels));
        for beside in [0.0, -1.0, 1.0] {
            let mins = mins.map(|min| (min + beside).clamp(0.0, levels));
            let (step, offset) = (scales.map(|scale| d * scale), mins.map(|min| dmin * min));
            let error = blocks.error(&step, &offset, 0.0, most);
            for lane in 0..LANES {
                let better = error[lane] < least[lane];
                least[lane] = if better { error[lane] } else { least[lane] };
                best_scales[lane] = if better { scales[lane] } else { best_scales[lane] };
                best_mins[lane] = if better { mins[lane] } else { best_mins[lane] };
            }
        }
    }
    (best_scales, best_mins)
}

/// Integers of `least..=most` with scales of `-levels..levels`. `unit` is what the elements were divided by.
pub(super) fn symmetric_block<const GROUPS: usize, const N: usize>(
    blocks: &SuperBlock<GROUPS, N>,
    unit: f32,
    (least, most): (f32, f32),
    levels: f32,
) -> Symmetric<GROUPS, N> {
    let fits: [Lanes; GROUPS] = from_fn(|group| blocks[group].symmetric(least, most));
    let keep = |value: f32| half(value * unit) / unit;
    let mut d = keep(super::signed_peak(fits.as_flattened()) / -levels);
    let within = |scale: f32| round_within(scale, -levels, levels - 1.0);
    let mut scales = fits.map(|fits| fits.map(|fit| within(fit * inverse(d))));
    for _ in 0..ROUNDS {
        let mut best = Best { gain: 0.0, scale: d };
        let mut sums = (0.0, 0.0);
        for group in 0..GROUPS {
            let inverses = inverses(&scales[group].map(|scale| d * scale));
            let (cross, square) = blocks[group].products(&inverses, least, most);
            for lane in 0..LANES {
                let scale = scales[group][lane];
                sums = (sums.0 + scale * cross[lane], sums.1 + scale * scale * square[lane]);
            }
        }
        best.consider(sums);
        d = keep(best.scale);
        for group in 0..GROUPS {
            let start = scales[group];
            let mut errors = [f32::INFINITY; LANES];
            for beside in [0.0, -1.0, 1.0] {
                let tried = start.map(|scale| within(scale + beside));
                let found = blocks[group].error(&tried.map(|scale| d * scale), &[0.0; LANES], least, most);
                for lane in 0..LANES {
                    let better = found[lane] < errors[lane];
                    errors[lane] = if better { found[lane] } else { errors[lane] };
                    scales[group][lane] = if better { tried[lane] } else { scales[group][lane] };
                }
            }
        }
    }
    let q = from_fn(|group| {
        let inverses = inverses(&scales[group].map(|scale| d * scale));
        blocks[group].map(|x, lane| round_within(x * inverses[lane], least, most) as i8)
    });
    Symmetric { d: d * unit, scales: scales.map(|scales| scales.map(|scale| round(scale) as i8)), q }
}
