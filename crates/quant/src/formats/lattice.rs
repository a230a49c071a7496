//! Search on the lattices of the IQ formats: scales of groups, and for each run of elements the point to take.

use super::fit::{Best, round_within};
use super::inverse;
use super::k_search::half;

/// Points looked at for each run: those nearest to the run with every element rounded to a level.
const NEAR: usize = 16;
/// As many while scales are still being looked for.
const FEW: usize = 5;
/// Rounds of fitting d to the points and the points to it.
const ROUNDS: usize = 1;
/// Most runs and groups of a block.
const RUNS: usize = 64;
const GROUPS: usize = 16;

/// The points of a grid and, for each combination of levels, those nearest to it.
pub(super) struct Lattice<const N: usize> {
    points: Vec<[f32; N]>,
    /// Half-way numbers between neighbouring levels.
    midpoints: Vec<f32>,
    /// How many combinations one level more of each element is.
    strides: [f32; N],
    /// The nearest first.
    near: Vec<[u16; NEAR]>,
    top: f32,
}

impl<const N: usize> Lattice<N> {
    /// The lattice of these points, whose elements are `levels`, which ascend.
    pub(super) fn new(grid: &[[i8; N]], levels: &[i8]) -> Self {
        let points: Vec<[f32; N]> = grid.iter().map(|point| point.map(f32::from)).collect();
        let midpoints =
            levels.windows(2).map(|pair| f32::midpoint(f32::from(pair[0]), f32::from(pair[1]))).collect();
        let combinations = levels.len().pow(N as u32);
        let near = (0..combinations)
            .map(|code| {
                let mut rest = code;
                let corner: [i32; N] = std::array::from_fn(|_| {
                    let level = levels[rest % levels.len()];
                    rest /= levels.len();
                    i32::from(level)
                });
                let distance = |point: &[i8; N]| -> u32 {
                    point.iter().zip(&corner).map(|(a, b)| (i32::from(*a) - b).pow(2).unsigned_abs()).sum()
                };
                // Distance above, index below: one comparison orders both.
                let mut all: Vec<u32> = grid
                    .iter()
                    .enumerate()
                    .map(|(index, point)| distance(point) << 11 | index as u32)
                    .collect();
                all.select_nth_unstable(NEAR);
                all[..NEAR].sort_unstable();
                std::array::from_fn(|place| (all[place] & 2047) as u16)
            })
            .collect();
        // Whole numbers of a few thousand at most, which floats hold exactly.
        let strides = std::array::from_fn(|l| levels.len().pow(l as u32) as f32);
        Self { points, midpoints, strides, near, top: levels.last().copied().map_or(1.0, f32::from) }
    }

    /// The combination of levels that a run is rounded to.
    #[inline(always)]
    fn combination(&self, x: &[f32; N]) -> usize {
        let mut levels = [0.0; N];
        for midpoint in &self.midpoints {
            for l in 0..N {
                levels[l] += if x[l] > *midpoint { self.strides[l] } else { 0.0 };
            }
        }
        levels.iter().sum::<f32>() as usize
    }

    /// The point nearest to a run by weighted distance, as far as `near` neighbours of its rounded form reach, and that
    /// distance.
    #[inline(always)]
    fn closest(&self, x: &[f32; N], w: &[f32; N], near: usize) -> (f32, u16) {
        // Distances are not negative, so they are ordered as their bits are. The place among the neighbours takes the
        // lowest bits: one minimum finds both, without a branch that could go either way.
        const PLACES: u32 = NEAR as u32 - 1;
        let neighbours = &self.near[self.combination(x)];
        let mut best = u32::MAX;
        for (place, index) in (0..).zip(&neighbours[..near]) {
            let point = &self.points[usize::from(*index)];
            let mut lanes = [0.0; 4];
            for l in 0..N {
                let error = x[l] - point[l];
                lanes[l % 4] += w[l] * error * error;
            }
            let distance: f32 = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
            best = best.min(distance.to_bits() & !PLACES | place);
        }
        (f32::from_bits(best & !PLACES), neighbours[(best & PLACES) as usize])
    }
}

/// How a format uses a lattice: `x = d (2 s + 1) (point + shift)`.
pub(super) struct Layout<const N: usize> {
    pub(super) lattice: &'static Lattice<N>,
    /// Elements that share an s.
    pub(super) group: usize,
    /// Largest s.
    pub(super) levels: f32,
    /// What all points may be shifted by.
    pub(super) shifts: &'static [f32],
    /// Elements that share a shift.
    pub(super) shift_group: usize,
    /// What the stored half-precision number is, in units of d.
    pub(super) factor: f32,
    /// Starts of the search: where the largest element of a group comes to lie, in units of the highest level.
    pub(super) starts: &'static [f32],
}

/// A block in lattice points.
pub(super) struct Found {
    /// The number to be stored.
    pub(super) d: f32,
    /// s of each group.
    pub(super) scales: [u8; GROUPS],
    /// Point of each run.
    pub(super) indices: [u16; RUNS],
    /// Which of the shifts each run has.
    pub(super) shifts: [u8; RUNS],
}

/// How far a look reaches.
#[derive(Clone, Copy)]
struct Reach {
    /// Steps of s to both sides.
    scale: f32,
    /// Points of each run.
    near: usize,
}

/// The choice for one run.
#[derive(Clone, Copy, Default)]
struct Choice {
    index: u16,
    shift: u8,
}

impl<const N: usize> Layout<N> {
    /// The block of these elements (signs taken off where they are stored apart), which were divided by `unit`.
    pub(super) fn search(&self, x: &[f32; 256], w: &[f32; 256], unit: f32) -> Found {
        let runs = self.group / N;
        let groups = 256 / self.group;
        let (x, w) = (x.as_chunks::<N>().0, w.as_chunks::<N>().0);
        let group = |g: usize| (&x[g * runs..(g + 1) * runs], &w[g * runs..(g + 1) * runs]);
        let mut chosen = [Choice::default(); RUNS];
        let mut fits = [0.0; GROUPS];
        for (g, fit) in fits.iter_mut().enumerate().take(groups) {
            *fit = self.scale(group(g), &mut chosen[..runs]);
        }
        let keep = |d: f32| half(d * self.factor * unit) / (self.factor * unit);
        let top = fits.iter().copied().fold(0.0, f32::max);
        let mut d = keep(top / (2.0 * self.levels + 1.0));
        let mut scales = fits.map(|fit| round_within((fit * inverse(d) - 1.0) * 0.5, 0.0, self.levels));
        for round in 0..=ROUNDS {
            let mut sums = (0.0, 0.0);
            for g in 0..groups {
                let chosen = &mut chosen[g * runs..(g + 1) * runs];
                // The last round only finds the points for the final d.
                let reach = if round < ROUNDS {
                    Reach { scale: 1.0, near: FEW }
                } else {
                    Reach { scale: 0.0, near: NEAR }
                };
                let (cross, square) = self.best_step(group(g), d, &mut scales[g], reach, chosen);
                let step = 2.0 * scales[g] + 1.0;
                sums = (sums.0 + step * cross, sums.1 + step * step * square);
            }
            if round < ROUNDS {
                let mut best = Best { gain: 0.0, scale: d };
                if sums.0 > 0.0 {
                    best.consider(sums);
                }
                d = keep(best.scale);
            }
        }
        Found {
            d: d * self.factor * unit,
            scales: scales.map(|scale| scale as u8),
            indices: chosen.map(|choice| choice.index),
            shifts: chosen.map(|choice| choice.shift),
        }
    }

    /// The scale that fits a group best.
    fn scale(&self, (x, w): (&[[f32; N]], &[[f32; N]]), chosen: &mut [Choice]) -> f32 {
        let top = x.as_flattened().iter().fold(0f32, |top, x| top.max(x.abs()));
        if top == 0.0 {
            return 0.0;
        }
        let mut best = Best { gain: 0.0, scale: 0.0 };
        for start in self.starts {
            let sums = self.assign((x, w), self.lattice.top * start / top, FEW, chosen).1;
            if sums.0 > 0.0 {
                best.consider(sums);
            }
        }
        if best.scale > 0.0 {
            best.consider(self.assign((x, w), 1.0 / best.scale, FEW, chosen).1);
        }
        best.scale
    }

    /// Takes the best of the group's s and those beside it, with the points for it.
    fn best_step(
        &self,
        (x, w): (&[[f32; N]], &[[f32; N]]),
        d: f32,
        scale: &mut f32,
        reach: Reach,
        chosen: &mut [Choice],
    ) -> (f32, f32) {
        let middle = *scale;
        let mut least = f32::INFINITY;
        let mut sums = (0.0, 0.0);
        let mut tried = [Choice::default(); RUNS];
        let tried = &mut tried[..chosen.len()];
        for offset in [0.0, -reach.scale, reach.scale] {
            let candidate = middle + offset;
            let again = offset == 0.0 && least.is_finite();
            if again || !(0.0..=self.levels).contains(&candidate) {
                continue;
            }
            let step = d * (2.0 * candidate + 1.0);
            let (distance, found) = self.assign((x, w), inverse(step), reach.near, tried);
            let error = distance * step * step;
            if error < least {
                (least, *scale, sums) = (error, candidate, found);
                chosen.copy_from_slice(tried);
            }
        }
        sums
    }

    /// Chooses points for the runs of a group times `inverse`. Returns the weighted squared distance and the sums of
    /// w x v and w v² for the values v that were chosen.
    fn assign(
        &self,
        (x, w): (&[[f32; N]], &[[f32; N]]),
        inverse: f32,
        near: usize,
        chosen: &mut [Choice],
    ) -> (f32, (f32, f32)) {
        let together = self.shift_group / N;
        let (mut total, mut cross, mut square) = (0.0, [0.0; N], [0.0; N]);
        for ((x, w), chosen) in x.chunks(together).zip(w.chunks(together)).zip(chosen.chunks_mut(together)) {
            let mut best = (f32::INFINITY, 0);
            let mut points = [[0; 8]; 2];
            for (number, shift) in self.shifts.iter().enumerate() {
                let mut distance = 0.0;
                for ((x, w), point) in x.iter().zip(w).zip(&mut points[number]) {
                    let (error, index) = self.lattice.closest(&x.map(|x| x * inverse - shift), w, near);
                    distance += error;
                    *point = index;
                }
                if distance < best.0 {
                    best = (distance, number);
                }
            }
            total += best.0;
            let shift = self.shifts[best.1];
            for (((x, w), choice), index) in x.iter().zip(w).zip(chosen).zip(points[best.1]) {
                *choice = Choice { index, shift: best.1 as u8 };
                let point = &self.lattice.points[usize::from(index)];
                for l in 0..N {
                    let value = point[l] + shift;
                    cross[l] += w[l] * x[l] * value;
                    square[l] += w[l] * value * value;
                }
            }
        }
        (total, (cross.iter().sum(), square.iter().sum()))
    }
}
