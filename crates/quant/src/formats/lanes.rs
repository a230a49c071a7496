//! Searches for scales and minima with a small weighted error, in several blocks at once.
//!
//! An integer q stands for `scale q` or `scale q + min`. Given the integers, the best scale and minimum solve a
//! linear least-squares problem; given those, the best integers are the nearest. The searches start from several
//! scales near the one that just covers the range, and take turns from the best of them.
//!
//! Sums over a block's few elements would leave vector units idle, so blocks lie beside each other, one to a lane,
//! and all of them go through the same search.

use super::fit::round_within;
use std::array::from_fn;

/// Blocks beside each other.
pub(super) const LANES: usize = 8;

/// One number of each block.
pub(super) type Lanes = [f32; LANES];

/// Turns from the best start: after these errors hardly change.
const TURNS: usize = 2;

/// Blocks of `N` elements and the weights of their errors.
pub(super) struct Blocks<const N: usize> {
    pub(super) x: [Lanes; N],
    pub(super) w: [Lanes; N],
}

/// Sums over each block for the integers of a scale and a minimum.
pub(super) struct Sums {
    /// `sum of w q`.
    pub(super) q: Lanes,
    /// `sum of w q²`.
    pub(super) square: Lanes,
    /// `sum of w x q`.
    pub(super) cross: Lanes,
}

/// `1 / scale`, or 0 where the scale is 0.
#[inline(always)]
pub(super) fn inverses(scales: &Lanes) -> Lanes {
    from_fn(|lane| super::inverse(scales[lane]))
}

/// The best scale of each block so far.
struct Best {
    /// By how much it lowers the squared error.
    gain: Lanes,
    scale: Lanes,
}

impl Best {
    /// Takes the scales that fit `sum of w x q` and `sum of w q²` where they are better.
    #[inline(always)]
    fn consider(&mut self, (cross, square): (Lanes, Lanes)) {
        for lane in 0..LANES {
            // The scale cross / square lowers the error by cross² / square.
            let scale = cross[lane] / square[lane];
            let gain = cross[lane] * scale;
            let better = (square[lane] > 0.0) & (gain > self.gain[lane]);
            self.scale[lane] = if better { scale } else { self.scale[lane] };
            self.gain[lane] = if better { gain } else { self.gain[lane] };
        }
    }
}

impl<const N: usize> Blocks<N> {
    /// `LANES` blocks that lie one after the other.
    pub(super) fn new(x: &[[f32; N]; LANES], w: &[[f32; N]; LANES]) -> Self {
        Self { x: from_fn(|l| from_fn(|lane| x[lane][l])), w: from_fn(|l| from_fn(|lane| w[lane][l])) }
    }

    /// A number made of each element by its lane, one block after the other.
    #[inline(always)]
    pub(super) fn map<T: Copy + Default>(&self, make: impl Fn(f32, usize) -> T) -> [[T; N]; LANES] {
        let mut made = [[T::default(); N]; LANES];
        for l in 0..N {
            let row: [T; LANES] = from_fn(|lane| make(self.x[l][lane], lane));
            for lane in 0..LANES {
                made[lane][l] = row[lane];
            }
        }
        made
    }

    /// `sum of w x q` and `sum of w q²` for the integers of a scale.
    #[inline(always)]
    pub(super) fn products(&self, inverse: &Lanes, least: f32, most: f32) -> (Lanes, Lanes) {
        let (mut cross, mut square) = ([0.0; LANES], [0.0; LANES]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for lane in 0..LANES {
                let q = round_within(x[lane] * inverse[lane], least, most);
                let weighted = w[lane] * q;
                cross[lane] += weighted * x[lane];
                square[lane] += weighted * q;
            }
        }
        (cross, square)
    }

    /// `sum of w` and `sum of w x`.
    #[inline(always)]
    pub(super) fn totals(&self) -> (Lanes, Lanes) {
        let (mut weight, mut weighted) = ([0.0; LANES], [0.0; LANES]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for lane in 0..LANES {
                weight[lane] += w[lane];
                weighted[lane] += w[lane] * x[lane];
            }
        }
        (weight, weighted)
    }

    /// Sums for the nearest integers of `0..=most`.
    #[inline(always)]
    pub(super) fn sums(&self, inverse: &Lanes, min: &Lanes, most: f32) -> Sums {
        let (mut q, mut square, mut cross) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for lane in 0..LANES {
                let integer = round_within((x[lane] - min[lane]) * inverse[lane], 0.0, most);
                let weighted = w[lane] * integer;
                q[lane] += weighted;
                square[lane] += weighted * integer;
                cross[lane] += weighted * x[lane];
            }
        }
        Sums { q, square, cross }
    }

    /// Weighted squared error with the nearest integers of `least..=most` for `step q - offset`.
    #[inline(always)]
    pub(super) fn error(&self, step: &Lanes, offset: &Lanes, least: f32, most: f32) -> Lanes {
        let inverse = inverses(step);
        let mut sum = [0.0; LANES];
        for (x, w) in self.x.iter().zip(&self.w) {
            for lane in 0..LANES {
                let shifted = x[lane] + offset[lane];
                let error = shifted - step[lane] * round_within(shifted * inverse[lane], least, most);
                sum[lane] += w[lane] * error * error;
            }
        }
        sum
    }

    /// The lowest element of each block, and how far the highest lies above it.
    pub(super) fn extent(&self) -> (Lanes, Lanes) {
        let (mut low, mut high) = (self.x[0], self.x[0]);
        for x in &self.x {
            for lane in 0..LANES {
                low[lane] = if x[lane] < low[lane] { x[lane] } else { low[lane] };
                high[lane] = if x[lane] > high[lane] { x[lane] } else { high[lane] };
            }
        }
        (low, from_fn(|lane| high[lane] - low[lane]))
    }

    /// The scales (of either sign) for integers of `least..=most`, with `least = -most` or one below. 0 for a block of
    /// zeros.
    pub(super) fn symmetric(&self, least: f32, most: f32) -> Lanes {
        let mut top = [0f32; LANES];
        for x in &self.x {
            for lane in 0..LANES {
                top[lane] = if x[lane].abs() > top[lane].abs() { x[lane] } else { top[lane] };
            }
        }
        let reciprocal = inverses(&top);
        let mut best = Best { gain: [0.0; LANES], scale: [0.0; LANES] };
        // The peak on or near the far end, or, as few integers differ much, the near one.
        let far = (-2..=2).map(|step| least + 0.4 * step as f32);
        let near = (-1..=1).map(|step| most + 0.4 * step as f32).filter(|_| most < 8.0);
        for end in far.chain(near) {
            best.consider(self.products(&reciprocal.map(|reciprocal| end * reciprocal), least, most));
        }
        for _ in 0..TURNS {
            best.consider(self.products(&inverses(&best.scale), least, most));
        }
        best.scale
    }

    /// Scales (at least 0) and minima for integers of `0..=most`. Minima above 0 only if `free`.
    pub(super) fn affine(&self, most: f32, free: bool) -> (Lanes, Lanes) {
        let (mut low, mut range) = self.extent();
        if !free {
            for lane in 0..LANES {
                range[lane] += low[lane].max(0.0);
                low[lane] = low[lane].min(0.0);
            }
        }
        // Counted from the lowest element, so that nothing cancels where all lie close together far from zero.
        let x = from_fn(|l| from_fn(|lane| self.x[l][lane] - low[lane]));
        let mut best = Line {
            blocks: Blocks { x, w: self.w },
            totals: ([0.0; LANES], [0.0; LANES]),
            highest: if free { [f32::INFINITY; LANES] } else { low.map(|low| -low) },
            error: [f32::INFINITY; LANES],
            scale: range.map(|range| range / most),
            min: [0.0; LANES],
        };
        best.totals = best.blocks.totals();
        let reciprocal = inverses(&range);
        const STEPS: i32 = 4;
        for step in -STEPS..=STEPS {
            let levels = most + 0.25 * step as f32;
            best.consider(&reciprocal.map(|reciprocal| levels * reciprocal), &[0.0; LANES], most);
        }
        for _ in 0..TURNS {
            let (inverse, min) = (inverses(&best.scale), best.min);
            best.consider(&inverse, &min, most);
        }
        (best.scale, from_fn(|lane| low[lane] + best.min[lane]))
    }
}

/// The best scale and minimum of each block so far.
struct Line<const N: usize> {
    blocks: Blocks<N>,
    totals: (Lanes, Lanes),
    /// What the minimum may be at most.
    highest: Lanes,
    error: Lanes,
    scale: Lanes,
    min: Lanes,
}

impl<const N: usize> Line<N> {
    /// Takes the scales and minima that fit the nearest integers where they are better.
    #[inline(always)]
    fn consider(&mut self, inverse: &Lanes, min: &Lanes, most: f32) {
        let Sums { q, square, cross } = self.blocks.sums(inverse, min, most);
        let (weight, weighted) = &self.totals;
        for lane in 0..LANES {
            let (q, square, cross) = (q[lane], square[lane], cross[lane]);
            let (weight, weighted) = (weight[lane], weighted[lane]);
            let determinant = weight * square - q * q;
            let free = (weight * cross - weighted * q) / determinant;
            let free_min = (square * weighted - q * cross) / determinant;
            let bound = free_min > self.highest[lane];
            let min = if bound { self.highest[lane] } else { free_min };
            let scale = if bound { (cross - min * q) / square } else { free };
            // The squared error less that of all zeros.
            let error =
                scale * (scale * square - 2.0 * cross) + min * (min * weight + 2.0 * (scale * q - weighted));
            let better = (determinant > 0.0) & (error < self.error[lane]) & (scale > 0.0);
            self.error[lane] = if better { error } else { self.error[lane] };
            self.scale[lane] = if better { scale } else { self.scale[lane] };
            self.min[lane] = if better { min } else { self.min[lane] };
        }
    }
}
