//! Attention over a window of rows and compressed blocks, one head of keys that are their own values.

use std::ops::Range;

use super::cache::CacheRows;
use super::vector::math::exp;
use super::vector::{Kernel, Vector, dispatch, load_upto, store_upto};
use crate::isa::Features;

/// What the queries of one row see.
pub struct BlockAttention<'a> {
    /// Rows of single positions.
    pub rows: CacheRows<'a>,
    /// Rows of blocks.
    pub blocks: CacheRows<'a>,
    /// Cells whose own rows are seen, and cells whose block rows are.
    pub seen: [&'a [u32]; 2],
    /// Factor on query · key.
    pub scale: f32,
    /// Logit per head without a value.
    pub sinks: Option<&'a [f32]>,
    /// Numbers in a head.
    pub width: usize,
}

impl BlockAttention<'_> {
    /// Numbers of scratch memory for so many heads.
    pub fn scratch_floats(width: usize, heads: usize) -> usize {
        width + heads * (width + 2)
    }

    /// Attention of the heads in `heads` of one row: `queries` and `out` hold only these, `[heads, width]`. Sums run over cells in
    /// the order given, with a running maximum (Milakov and Gimelshein, arXiv 1805.02867).
    pub fn run(
        &self,
        features: Features,
        queries: &[f32],
        out: &mut [f32],
        heads: Range<usize>,
        scratch: &mut [f32],
    ) {
        let width = self.width;
        let (key, rest) = scratch.split_at_mut(width);
        let (sums, rest) = rest.split_at_mut(heads.len() * width);
        let (most, total) = rest.split_at_mut(heads.len());
        let total = &mut total[..heads.len()];
        sums.fill(0.0);
        for (index, head) in heads.clone().enumerate() {
            let sink = self.sinks.map(|sinks| sinks[head]);
            most[index] = sink.unwrap_or(f32::NEG_INFINITY);
            total[index] = if sink.is_some() { 1.0 } else { 0.0 };
        }
        for (cells, rows) in self.seen.iter().zip([self.rows, self.blocks]) {
            assert_eq!(rows.format().dim(), width, "rows of another width");
            for cell in *cells {
                // SAFETY: `key` has room for a row.
                unsafe { rows.format().decode(features, rows.row(0, *cell as usize), key.as_mut_ptr()) };
                for index in 0..heads.len() {
                    let query = &queries[index * width..][..width];
                    let sums = &mut sums[index * width..][..width];
                    let (most, total) = (&mut most[index], &mut total[index]);
                    dispatch(features, Add { query, key, scale: self.scale, sums, most, total });
                }
            }
        }
        for index in 0..heads.len() {
            let factor = if total[index] > 0.0 { 1.0 / total[index] } else { 0.0 };
            let sums = &sums[index * width..][..width];
            out[index * width..][..width].iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * factor);
        }
    }
}

/// Adds one key, which is its own value, to a head's sums.
struct Add<'a> {
    query: &'a [f32],
    key: &'a [f32],
    scale: f32,
    sums: &'a mut [f32],
    most: &'a mut f32,
    total: &'a mut f32,
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let width = self.key.len();
        let (query, key, sums) = (self.query.as_ptr(), self.key.as_ptr(), self.sums.as_mut_ptr());
        // SAFETY: all three have `width` numbers.
        unsafe {
            let mut product = V::splat(0.0);
            let mut at = 0;
            while at < width {
                let query = load_upto::<V>(query.add(at), width - at);
                product = query.fma(load_upto::<V>(key.add(at), width - at), product);
                at += V::LANES;
            }
            let score = product.sum() * self.scale;
            let most = if score > *self.most { score } else { *self.most };
            // The first key meets sums of nothing, whatever they are scaled by.
            let kept = if *self.total == 0.0 { 0.0 } else { first_lane(exp(V::splat(*self.most - most))) };
            let weight = first_lane(exp(V::splat(score - most)));
            *self.most = most;
            *self.total = *self.total * kept + weight;
            let (kept, weight) = (V::splat(kept), V::splat(weight));
            let mut at = 0;
            while at < width {
                let sum = load_upto::<V>(sums.add(at), width - at).mul(kept);
                let sum = load_upto::<V>(key.add(at), width - at).fma(weight, sum);
                store_upto(sum, sums.add(at), width - at);
                at += V::LANES;
            }
        }
    }
}

#[inline(always)]
fn first_lane<V: Vector>(x: V) -> f32 {
    x.largest()
}
