//! The gated delta rule: gated delta nets and Kimi delta attention.

use super::{Cells, Run};
use crate::isa::Features;
use crate::kernels::rows::{Rows, RowsMut};
use crate::kernels::vector::math::exp;
use crate::kernels::vector::{Kernel, Vector, dispatch, load_upto, store_upto};

/// Extents and the factor of queries.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeltaRule {
    /// Value heads.
    pub heads: usize,
    /// Key and query heads, a divisor of `heads`.
    pub key_heads: usize,
    /// Whether neighbouring value heads share a key head; else head `h` reads key head `h mod key_heads`.
    pub grouped: bool,
    /// Numbers in a key.
    pub key_dim: usize,
    /// Numbers in a value.
    pub value_dim: usize,
    /// Decays of a head: one, or one per number of a key.
    pub decay_dim: usize,
    /// Factor on queries.
    pub scale: f32,
}

/// Rows of a step, heads side by side.
#[derive(Clone, Copy)]
pub struct DeltaInputs<'a> {
    /// `[key_heads, key_dim]`
    pub queries: Rows<'a>,
    /// `[key_heads, key_dim]`
    pub keys: Rows<'a>,
    /// `[heads, value_dim]`
    pub values: Rows<'a>,
    /// Logarithms, `[heads, decay_dim]`.
    pub decays: Rows<'a>,
    /// `[heads]`
    pub rates: Rows<'a>,
}

impl DeltaRule {
    /// Columns of a state that one chunk computes.
    pub const COLUMNS: usize = 64;

    /// Chunks: heads times groups of columns.
    pub fn chunks(&self) -> usize {
        self.heads * self.value_dim.div_ceil(Self::COLUMNS)
    }

    /// Numbers of scratch memory of a chunk.
    pub fn scratch_floats(&self) -> usize {
        self.key_dim
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
        inputs: DeltaInputs<'_>,
        y: &RowsMut<'_>,
        chunk: usize,
        scratch: &mut [f32],
    ) {
        let Self { heads, key_heads, key_dim, value_dim, decay_dim, .. } = *self;
        assert!(inputs.queries.width() == key_heads * key_dim && inputs.keys.width() == key_heads * key_dim);
        assert!(inputs.values.width() == heads * value_dim && y.width() == heads * value_dim);
        assert!(inputs.decays.width() == heads * decay_dim && inputs.rates.width() == heads);
        assert!(decay_dim == 1 || decay_dim == key_dim);
        assert_eq!(cells.elements(), heads * key_dim * value_dim, "state of another size");
        let groups = value_dim.div_ceil(Self::COLUMNS);
        let (head, first) = (chunk / groups, chunk % groups * Self::COLUMNS);
        let columns = Self::COLUMNS.min(value_dim - first);
        let key_head = if self.grouped { head / (heads / key_heads) } else { head % key_heads };
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
                        query: inputs.queries.row(row).add(key_head * key_dim),
                        key: inputs.keys.row(row).add(key_head * key_dim),
                        value: inputs.values.row(row).add(head * value_dim + first),
                        decay: inputs.decays.row(row).add(head * decay_dim),
                        decay_dim,
                        rate: *inputs.rates.row(row).add(head),
                        scale: self.scale,
                        factors: scratch[..key_dim].as_mut_ptr(),
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
    decay: *const f32,
    decay_dim: usize,
    rate: f32,
    scale: f32,
    factors: *mut f32,
    out: *mut f32,
}

impl Kernel for Step {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        // SAFETY: the caller gives rows of these extents.
        unsafe {
            let mut product = V::splat(0.0);
            let mut element = 0;
            while element < self.key_dim {
                let count = self.key_dim - element;
                let decay = match self.decay_dim {
                    1 => V::splat(*self.decay),
                    _ => load_upto::<V>(self.decay.add(element), count),
                };
                store_upto(exp(decay), self.factors.add(element), count);
                let query = load_upto::<V>(self.query.add(element), count);
                product = query.fma(load_upto::<V>(self.key.add(element), count), product);
                element += V::LANES;
            }
            let product = product.sum();
            let mut column = 0;
            // Four vectors at a time keep the sums' latency hidden; the state's rows are read once and written once.
            while column + 4 * V::LANES <= self.columns {
                self.columns_of::<V, 4>(column, V::LANES, product);
                column += 4 * V::LANES;
            }
            while column < self.columns {
                self.columns_of::<V, 1>(column, self.columns - column, product);
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
    unsafe fn columns_of<V: Vector, const N: usize>(&self, column: usize, count: usize, product: f32) {
        // SAFETY: as promised.
        unsafe {
            let (mut known, mut read) = ([V::splat(0.0); N], [V::splat(0.0); N]);
            for element in 0..self.key_dim {
                let factor = *self.factors.add(element);
                let key = V::splat(factor * *self.key.add(element));
                let query = V::splat(factor * *self.query.add(element));
                let row = self.state.add(element * self.stride + column);
                for part in 0..N {
                    let kept = load_upto::<V>(row.add(part * V::LANES), count);
                    known[part] = kept.fma(key, known[part]);
                    read[part] = kept.fma(query, read[part]);
                }
            }
            let mut change = [V::splat(0.0); N];
            for part in 0..N {
                let at = column + part * V::LANES;
                let value = load_upto::<V>(self.value.add(at), count);
                change[part] = value.sub(known[part]).mul(V::splat(self.rate));
                // The state's own change, seen by the query: change · (query · key).
                let out = change[part].fma(V::splat(product), read[part]).mul(V::splat(self.scale));
                store_upto(out, self.out.add(at), count);
            }
            for element in 0..self.key_dim {
                let factor = V::splat(*self.factors.add(element));
                let key = V::splat(*self.key.add(element));
                let row = self.state.add(element * self.stride + column);
                for (part, change) in change.iter().enumerate() {
                    let place = row.add(part * V::LANES);
                    let kept = load_upto::<V>(place, count).mul(factor);
                    store_upto(key.fma(*change, kept), place, count);
                }
            }
        }
    }
}
