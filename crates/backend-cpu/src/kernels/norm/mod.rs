//! Normalisation of rows, or of equal groups (heads) within rows.

use std::ops::Range;

use super::rows::{Rows, RowsMut};
use super::vector::{Kernel, Vector, dispatch, load_upto, store_upto};
use crate::isa::Features;

/// What a group is divided by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + epsilon)`.
    Rms,
    /// `(x - mean) / sqrt(mean((x - mean)^2) + epsilon)`.
    Layer,
}

/// A normalisation with its weights.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// What a group is divided by.
    pub kind: NormKind,
    /// See [`NormKind`].
    pub epsilon: f32,
    /// Number of groups that a row consists of; each is normalised for itself. Divides the width.
    pub groups: usize,
    /// Factors, as many as a group or a row has numbers.
    pub weight: Option<&'a [f32]>,
    /// Summands, as many as a group or a row has numbers.
    pub bias: Option<&'a [f32]>,
}

impl Norm<'_> {
    /// `y = norm(x)` for the rows in `range`; `y` may be `x`. Panics if the widths do not fit.
    pub fn run(&self, features: Features, x: Rows<'_>, y: &mut RowsMut<'_>, range: Range<usize>) {
        self.check(x, y);
        for row in range {
            dispatch(features, NormRow { norm: self, width: x.width(), x: x.row(row), y: y.row(row) });
        }
    }

    fn check(&self, x: Rows<'_>, y: &RowsMut<'_>) {
        let width = x.width();
        assert!(self.groups > 0 && width.is_multiple_of(self.groups), "{} groups in {width}", self.groups);
        assert_eq!(width, y.width(), "output of another width");
        for data in [self.weight, self.bias].into_iter().flatten() {
            assert!(data.len() == width || data.len() == width / self.groups, "{} weights", data.len());
        }
    }
}

struct NormRow<'a> {
    norm: &'a Norm<'a>,
    width: usize,
    x: *const f32,
    y: *mut f32,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let norm = self.norm;
        let width = self.width / norm.groups;
        for group in 0..norm.groups {
            let start = group * width;
            // Weights per group repeat, weights per row advance.
            let part = |data: &[f32]| {
                let offset = if data.len() == width { 0 } else { start };
                data[offset..offset + width].as_ptr()
            };
            let (weight, bias) = (norm.weight.map(part), norm.bias.map(part));
            // SAFETY: the group lies within the row; weights and biases have `width` numbers from here on.
            unsafe {
                let (x, y) = (self.x.add(start), self.y.add(start));
                let mean = match norm.kind {
                    NormKind::Layer => sum::<V>(x, width) / width as f32,
                    NormKind::Rms => 0.0,
                };
                let squares = sum_of_squares::<V>(x, width, mean);
                let factor = 1.0 / (squares / width as f32 + norm.epsilon).sqrt();
                let (mean, factor) = (V::splat(mean), V::splat(factor));
                for i in (0..width).step_by(V::LANES) {
                    let count = width - i;
                    let mut value = load_upto::<V>(x.add(i), count).sub(mean).mul(factor);
                    if let Some(weight) = weight {
                        value = value.mul(load_upto::<V>(weight.add(i), count));
                    }
                    if let Some(bias) = bias {
                        value = value.add(load_upto::<V>(bias.add(i), count));
                    }
                    store_upto(value, y.add(i), count);
                }
            }
        }
    }
}

/// # Safety
/// `x` points to `width` numbers.
#[inline(always)]
unsafe fn sum<V: Vector>(x: *const f32, width: usize) -> f32 {
    let mut total = V::splat(0.0);
    for i in (0..width).step_by(V::LANES) {
        // SAFETY: at most `width` numbers are read.
        total = total.add(unsafe { load_upto::<V>(x.add(i), width - i) });
    }
    total.sum()
}

/// Sum of `(x - mean)^2`.
///
/// # Safety
/// `x` points to `width` numbers.
#[inline(always)]
unsafe fn sum_of_squares<V: Vector>(x: *const f32, width: usize, mean: f32) -> f32 {
    let whole = width / V::LANES * V::LANES;
    let shift = V::splat(mean);
    // Four sums run side by side: one would wait for each addition.
    let mut totals = [V::splat(0.0); 4];
    let mut i = 0;
    // SAFETY: at most `width` numbers are read.
    unsafe {
        while i + 4 * V::LANES <= whole {
            for (lane, total) in totals.iter_mut().enumerate() {
                let value = V::load(x.add(i + lane * V::LANES)).sub(shift);
                *total = value.fma(value, *total);
            }
            i += 4 * V::LANES;
        }
        while i < whole {
            let value = V::load(x.add(i)).sub(shift);
            totals[0] = value.fma(value, totals[0]);
            i += V::LANES;
        }
    }
    let mut total = totals[0].add(totals[1]).add(totals[2].add(totals[3])).sum();
    for i in whole..width {
        // SAFETY: `i` is below `width`.
        let value = unsafe { *x.add(i) } - mean;
        total += value * value;
    }
    total
}
