//! The recurrence of RWKV 7.

use super::{Cells, Run};
use crate::isa::Features;
use crate::kernels::rows::{Rows, RowsMut};
use crate::kernels::vector::{Kernel, Vector, dispatch, load_upto, store_upto};

/// Extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rwkv7 {
    /// Heads.
    pub heads: usize,
    /// Numbers in each of a head's vectors.
    pub dim: usize,
}

/// Rows of a step, all `[heads, dim]`.
#[derive(Clone, Copy)]
pub struct Rwkv7Inputs<'a> {
    /// What the result reads the state with.
    pub receptances: Rows<'a>,
    /// Decays, between 0 and 1.
    pub decays: Rows<'a>,
    /// Keys.
    pub keys: Rows<'a>,
    /// Values.
    pub values: Rows<'a>,
    /// Keys of what is removed.
    pub removals: Rows<'a>,
    /// How much of it is removed.
    pub rates: Rows<'a>,
}

impl Rwkv7 {
    /// Rows of a state that one chunk computes.
    pub const ROWS: usize = 32;

    /// Chunks: heads times groups of a state's rows.
    pub fn chunks(&self) -> usize {
        self.heads * self.dim.div_ceil(Self::ROWS)
    }

    /// Numbers of scratch memory of a chunk.
    pub fn scratch_floats(&self) -> usize {
        self.dim
    }

    /// One chunk, for all rows of the runs. Panics if a width does not fit.
    ///
    /// # Safety
    /// No other call has this chunk's number; the state and `y` are used by calls of this function alone.
    pub unsafe fn run(
        &self,
        features: Features,
        runs: &[Run],
        cells: Cells,
        inputs: Rwkv7Inputs<'_>,
        y: &RowsMut<'_>,
        chunk: usize,
        scratch: &mut [f32],
    ) {
        let Self { heads, dim } = *self;
        let Rwkv7Inputs { receptances, decays, keys, values, removals, rates } = inputs;
        for rows in [receptances, decays, keys, values, removals, rates] {
            assert_eq!(rows.width(), heads * dim, "rows of another width");
        }
        assert!(y.width() == heads * dim && cells.elements() == heads * dim * dim, "sizes of the state");
        let groups = dim.div_ceil(Self::ROWS);
        let (head, first) = (chunk / groups, chunk % groups * Self::ROWS);
        let count = Self::ROWS.min(dim - first);
        for run in runs {
            let at = (head * dim + first) * dim;
            // SAFETY: the chunk's rows of the head's state are ours; all rows have the widths checked above.
            unsafe {
                let state = cells.begin(run, at, count * dim, 0, 1).add(at);
                for row in run.rows.clone() {
                    let of_head = |rows: Rows<'_>| rows.row(row).add(head * dim);
                    let step = Step {
                        dim,
                        count,
                        state,
                        receptance: of_head(receptances),
                        decay: of_head(decays),
                        key: of_head(keys),
                        value: of_head(values).add(first),
                        removal: of_head(removals),
                        rate: of_head(rates),
                        removed: scratch[..dim].as_mut_ptr(),
                        out: y.row(row).add(head * dim + first),
                    };
                    dispatch(features, step);
                }
            }
        }
    }
}

/// One token of some rows of a head's state.
struct Step {
    dim: usize,
    count: usize,
    state: *mut f32,
    receptance: *const f32,
    decay: *const f32,
    key: *const f32,
    value: *const f32,
    removal: *const f32,
    rate: *const f32,
    removed: *mut f32,
    out: *mut f32,
}

impl Kernel for Step {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let dim = self.dim;
        // SAFETY: the caller gives rows of these extents.
        unsafe {
            let mut element = 0;
            while element < dim {
                let count = dim - element;
                let removal = load_upto::<V>(self.removal.add(element), count);
                let rate = load_upto::<V>(self.rate.add(element), count);
                store_upto(removal.mul(rate), self.removed.add(element), count);
                element += V::LANES;
            }
            for row in 0..self.count {
                let state = self.state.add(row * dim);
                let mut known = V::splat(0.0);
                let mut element = 0;
                while element < dim {
                    let count = dim - element;
                    let kept = load_upto::<V>(state.add(element), count);
                    known = kept.fma(load_upto::<V>(self.removal.add(element), count), known);
                    element += V::LANES;
                }
                let (known, value) = (V::splat(-known.sum()), V::splat(*self.value.add(row)));
                let mut sum = V::splat(0.0);
                let mut element = 0;
                while element < dim {
                    let count = dim - element;
                    let kept = load_upto::<V>(state.add(element), count);
                    let added = value.mul(load_upto::<V>(self.key.add(element), count));
                    let removed = load_upto::<V>(self.removed.add(element), count);
                    let decay = load_upto::<V>(self.decay.add(element), count);
                    let next = kept.fma(decay, known.fma(removed, added));
                    store_upto(next, state.add(element), count);
                    sum = next.fma(load_upto::<V>(self.receptance.add(element), count), sum);
                    element += V::LANES;
                }
                *self.out.add(row) = sum.sum();
            }
        }
    }
}
