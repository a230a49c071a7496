//! Linear attention with decay: RWKV 6, gated linear attention, lightning attention.

use super::{Cells, Run};
use crate::isa::Features;
use crate::kernels::rows::{Rows, RowsMut};
use crate::kernels::vector::{Kernel, Vector, dispatch, load_upto, store_upto};

/// Extents, constants and the factor of queries.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinearAttention<'a> {
    /// Heads.
    pub heads: usize,
    /// Numbers in a key.
    pub key_dim: usize,
    /// Numbers in a value.
    pub value_dim: usize,
    /// Factor on queries.
    pub scale: f32,
    /// Decay of each head, if it does not come with the rows.
    pub head_decays: Option<&'a [f32]>,
    /// `[heads, key_dim]`: share of a token's own key in its result; without it the result reads the new state.
    pub bonus: Option<&'a [f32]>,
}

/// Rows of a step, heads side by side.
#[derive(Clone, Copy)]
pub struct LinearInputs<'a> {
    /// `[heads, key_dim]`
    pub queries: Rows<'a>,
    /// `[heads, key_dim]`
    pub keys: Rows<'a>,
    /// `[heads, value_dim]`
    pub values: Rows<'a>,
    /// `[heads, key_dim]`, unless a head has one decay.
    pub decays: Option<Rows<'a>>,
}

impl LinearAttention<'_> {
    /// Columns of a state that one chunk computes.
    pub const COLUMNS: usize = 64;

    /// Chunks: heads times groups of columns.
    pub fn chunks(&self) -> usize {
        self.heads * self.value_dim.div_ceil(Self::COLUMNS)
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
        inputs: LinearInputs<'_>,
        y: &RowsMut<'_>,
        chunk: usize,
    ) {
        let Self { heads, key_dim, value_dim, .. } = *self;
        let keys = heads * key_dim;
        assert!(inputs.queries.width() == keys && inputs.keys.width() == keys, "keys of another size");
        assert!(inputs.values.width() == heads * value_dim && y.width() == heads * value_dim);
        assert!(inputs.decays.is_none_or(|decays| decays.width() == keys), "decays of another size");
        assert!(self.head_decays.is_none_or(|decays| decays.len() == heads), "decays of another size");
        assert!(inputs.decays.is_some() || self.head_decays.is_some(), "there are decays");
        assert!(self.bonus.is_none_or(|bonus| bonus.len() == keys), "bonus of another size");
        assert_eq!(cells.elements(), keys * value_dim, "state of another size");
        let groups = value_dim.div_ceil(Self::COLUMNS);
        let (head, first) = (chunk / groups, chunk % groups * Self::COLUMNS);
        let columns = Self::COLUMNS.min(value_dim - first);
        for run in runs {
            let at = head * key_dim * value_dim + first;
            // SAFETY: the chunk's columns of the head's state are ours; all rows have the widths checked above.
            unsafe {
                let state = cells.begin(run, at, columns, value_dim, key_dim).add(at);
                for row in run.rows.clone() {
                    let step = Step {
                        key_dim,
                        stride: value_dim,
                        columns,
                        state,
                        query: inputs.queries.row(row).add(head * key_dim),
                        key: inputs.keys.row(row).add(head * key_dim),
                        value: inputs.values.row(row).add(head * value_dim + first),
                        decay: inputs.decays.map(|decays| decays.row(row).add(head * key_dim)),
                        head_decay: self.head_decays.map_or(1.0, |decays| decays[head]),
                        bonus: self.bonus.map(|bonus| bonus[head * key_dim..].as_ptr()),
                        scale: self.scale,
                        out: y.row(row).add(head * value_dim + first),
                    };
                    dispatch(features, step);
                }
            }
        }
    }
}

/// One token of some columns of a head.
struct Step {
    key_dim: usize,
    stride: usize,
    columns: usize,
    state: *mut f32,
    query: *const f32,
    key: *const f32,
    value: *const f32,
    decay: Option<*const f32>,
    head_decay: f32,
    bonus: Option<*const f32>,
    scale: f32,
    out: *mut f32,
}

impl Kernel for Step {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut column = 0;
        // SAFETY: the caller gives rows of these extents.
        unsafe {
            while column + 4 * V::LANES <= self.columns {
                self.columns_of::<V, 4>(column, V::LANES);
                column += 4 * V::LANES;
            }
            while column < self.columns {
                self.columns_of::<V, 1>(column, self.columns - column);
                column += V::LANES;
            }
        }
    }
}

impl Step {
    /// `N` vectors of columns, the last of which has `count` columns.
    ///
    /// # Safety
    /// The columns are there.
    #[inline(always)]
    unsafe fn columns_of<V: Vector, const N: usize>(&self, column: usize, count: usize) {
        // SAFETY: as promised.
        unsafe {
            let (mut sums, mut values) = ([V::splat(0.0); N], [V::splat(0.0); N]);
            for (part, value) in values.iter_mut().enumerate() {
                *value = load_upto::<V>(self.value.add(column + part * V::LANES), count);
            }
            for element in 0..self.key_dim {
                let query = *self.query.add(element);
                let key = V::splat(*self.key.add(element));
                let decay = self.decay.map_or(self.head_decay, |decay| *decay.add(element));
                // The result reads `before · a + key · value · b`.
                let (before, own) = match self.bonus {
                    Some(bonus) => (query, query * *bonus.add(element)),
                    None => (query * decay, query),
                };
                let (decay, before, own) = (V::splat(decay), V::splat(before), V::splat(own));
                let row = self.state.add(element * self.stride + column);
                for part in 0..N {
                    let place = row.add(part * V::LANES);
                    let (kept, added) = (load_upto::<V>(place, count), key.mul(values[part]));
                    sums[part] = added.fma(own, kept.fma(before, sums[part]));
                    store_upto(kept.fma(decay, added), place, count);
                }
            }
            for (part, sum) in sums.iter().enumerate() {
                let out = self.out.add(column + part * V::LANES);
                store_upto(sum.mul(V::splat(self.scale)), out, count);
            }
        }
    }
}
