//! The selective scan of Mamba 1 and 2.

use std::ops::Range;

use super::{Cells, Run};
use crate::isa::Features;
use crate::kernels::rows::{Rows, RowsMut};
use crate::kernels::vector::math::exp;
use crate::kernels::vector::{Kernel, Vector, dispatch, load_upto, store_upto};

/// Extents and constants.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SelectiveScan<'a> {
    /// Heads; with Mamba 1 the channels.
    pub heads: usize,
    /// Numbers of a head, 1 with Mamba 1.
    pub dim: usize,
    /// Numbers of a state per number of a head.
    pub size: usize,
    /// Groups of heads that share what is written and read.
    pub groups: usize,
    /// Rates of decay, negative: `[heads, size]` or `[heads]`.
    pub rates: &'a [f32],
    /// Factor of the input in the result, `[heads]`.
    pub skip: &'a [f32],
}

/// Rows of a step.
#[derive(Clone, Copy)]
pub struct ScanInputs<'a> {
    /// Inputs, `[heads, dim]`.
    pub u: Rows<'a>,
    /// Time steps, `[heads]`.
    pub steps: Rows<'a>,
    /// What is written, `[groups, size]`.
    pub b: Rows<'a>,
    /// What is read, `[groups, size]`.
    pub c: Rows<'a>,
}

impl SelectiveScan<'_> {
    /// Scans the heads in `heads` for all rows of the runs. Panics if a width does not fit.
    ///
    /// # Safety
    /// Nobody else uses these heads of the state and of `y`.
    pub unsafe fn run(
        &self,
        features: Features,
        runs: &[Run],
        cells: Cells,
        inputs: ScanInputs<'_>,
        y: &RowsMut<'_>,
        heads: Range<usize>,
    ) {
        let Self { dim, size, groups, rates, .. } = *self;
        let ScanInputs { u, steps, b, c } = inputs;
        assert!(u.width() == self.heads * dim && y.width() == u.width() && steps.width() == self.heads);
        assert!(b.width() == groups * size && c.width() == groups * size && heads.end <= self.heads);
        assert!(rates.len() == self.heads || rates.len() == self.heads * size, "rates of another size");
        assert!(self.skip.len() == self.heads && cells.elements() == self.heads * dim * size, "sizes");
        let per_head = if rates.len() == self.heads { 1 } else { size };
        for run in runs {
            let (first, length) = (heads.start * dim * size, heads.len() * dim * size);
            // SAFETY: the heads of the state are ours; all rows have the widths checked above.
            unsafe {
                let state = cells.begin(run, first, length, 0, 1);
                for row in run.rows.clone() {
                    for head in heads.clone() {
                        let group = head / (self.heads / groups) * size;
                        let step = Step {
                            dim,
                            size,
                            state: state.add(head * dim * size),
                            u: u.row(row).add(head * dim),
                            step: *steps.row(row).add(head),
                            rates: &rates[head * per_head..][..per_head],
                            b: b.row(row).add(group),
                            c: c.row(row).add(group),
                            skip: self.skip[head],
                            out: y.row(row).add(head * dim),
                        };
                        dispatch(features, step);
                    }
                }
            }
        }
    }
}

/// One token of one head.
struct Step<'a> {
    dim: usize,
    size: usize,
    state: *mut f32,
    u: *const f32,
    step: f32,
    rates: &'a [f32],
    b: *const f32,
    c: *const f32,
    skip: f32,
    out: *mut f32,
}

impl Kernel for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let shared = match self.rates {
            [rate] => Some(exp(V::splat(self.step * rate))),
            _ => None,
        };
        for element in 0..self.dim {
            // SAFETY: the caller gives rows of these extents.
            unsafe {
                let value = *self.u.add(element);
                let state = self.state.add(element * self.size);
                let written = V::splat(self.step * value);
                let mut sum = V::splat(0.0);
                let mut index = 0;
                while index < self.size {
                    let count = self.size - index;
                    let factor = match shared {
                        Some(factor) => factor,
                        None => {
                            let rates = load_upto::<V>(self.rates.as_ptr().add(index), count);
                            exp(rates.mul(V::splat(self.step)))
                        }
                    };
                    let added = written.mul(load_upto::<V>(self.b.add(index), count));
                    let next = load_upto::<V>(state.add(index), count).fma(factor, added);
                    store_upto(next, state.add(index), count);
                    sum = next.fma(load_upto::<V>(self.c.add(index), count), sum);
                    index += V::LANES;
                }
                *self.out.add(element) = sum.sum() + self.skip * value;
            }
        }
    }
}
