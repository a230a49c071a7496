//! Rotary position embedding.
//!
//! The cosines and sines of a step are computed once ([`fill_table`]) and shared by all layers with equal
//! parameters; base, scaling, YaRN and factors are already in the frequencies that the table is made from.

use std::ops::Range;

use puna_graph::ops::RopeKind;

use super::rows::{Rows, RowsMut};
use super::vector::{Kernel, Vector, dispatch, load_upto, store_upto};
use crate::isa::Features;

/// Which part of each head is rotated, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rope {
    /// Which numbers form a pair.
    pub kind: RopeKind,
    /// How many numbers of a head are rotated; even.
    pub dims: usize,
    /// Where in the head they start.
    pub offset: usize,
    /// Numbers in a head.
    pub head_dim: usize,
}

/// Angle per position of each of the `dims / 2` pairs: `base^(-2i / dims)`, divided by its factor if there are
/// factors.
pub fn frequencies(base: f64, dims: usize, factors: Option<&[f32]>) -> Vec<f64> {
    (0..dims / 2)
        .map(|i| {
            let factor = factors.and_then(|factors| factors.get(i)).map_or(1.0, |&factor| f64::from(factor));
            base.powf(-2.0 * i as f64 / dims as f64) / factor
        })
        .collect()
}

impl Rope {
    /// Numbers in a row of the table: cosines, then sines. For [`RopeKind::Interleaved`] each stands twice, as the
    /// pair lies in memory, and the first sine of a pair is negated.
    pub fn table_width(&self) -> usize {
        match self.kind {
            RopeKind::Interleaved => 2 * self.dims,
            RopeKind::Split => self.dims,
        }
    }

    /// Writes rows `range` of the table (of [`Rope::table_width`]): cosine and sine of `positions[row] *
    /// frequencies[pair]`, times `magnitude`. Panics if a length does not fit.
    pub fn fill_table(
        &self,
        frequencies: &[f64],
        magnitude: f64,
        positions: &[i32],
        table: &mut RowsMut<'_>,
        range: Range<usize>,
    ) {
        assert_eq!(frequencies.len(), self.dims / 2, "one frequency per pair");
        assert_eq!(table.width(), self.table_width(), "table of another width");
        for row in range {
            let position = f64::from(positions[row]);
            // SAFETY: the row has `table_width` numbers and is ours for this call.
            let out = unsafe { std::slice::from_raw_parts_mut(table.row(row), self.table_width()) };
            let (cosines, sines) = out.split_at_mut(self.table_width() / 2);
            for (pair, &frequency) in frequencies.iter().enumerate() {
                let (sine, cosine) = (position * frequency).sin_cos();
                let (sine, cosine) = ((sine * magnitude) as f32, (cosine * magnitude) as f32);
                match self.kind {
                    RopeKind::Split => (cosines[pair], sines[pair]) = (cosine, sine),
                    RopeKind::Interleaved => {
                        (cosines[2 * pair], cosines[2 * pair + 1]) = (cosine, cosine);
                        (sines[2 * pair], sines[2 * pair + 1]) = (-sine, sine);
                    }
                }
            }
        }
    }

    /// Rotates every head of the rows in `range` by the table's row of the same number, and copies what is not
    /// rotated; `y` may be `x`. A row is a whole number of heads. Panics if a width does not fit.
    pub fn run(
        &self,
        features: Features,
        table: Rows<'_>,
        x: Rows<'_>,
        y: &mut RowsMut<'_>,
        range: Range<usize>,
    ) {
        assert!(self.offset + self.dims <= self.head_dim && self.dims.is_multiple_of(2), "{self:?}");
        assert!(x.width().is_multiple_of(self.head_dim), "{} is no whole number of heads", x.width());
        assert_eq!(x.width(), y.width(), "output of another width");
        assert_eq!(table.width(), self.table_width(), "table of another width");
        for row in range {
            let heads = x.width() / self.head_dim;
            let (table, x, y) = (table.row(row), x.row(row), y.row(row));
            dispatch(features, RotateRow { rope: *self, heads, table, x, y });
        }
    }
}

struct RotateRow {
    rope: Rope,
    heads: usize,
    table: *const f32,
    x: *const f32,
    y: *mut f32,
}

impl Kernel for RotateRow {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Rope { kind, dims, offset, head_dim } = self.rope;
        for head in 0..self.heads {
            // SAFETY: the head lies in the row, the rotated part in the head, and the table has its width.
            unsafe {
                let (x, y) = (self.x.add(head * head_dim), self.y.add(head * head_dim));
                if !std::ptr::eq(x, y) {
                    std::ptr::copy(x, y, offset);
                    let rest = offset + dims;
                    std::ptr::copy(x.add(rest), y.add(rest), head_dim - rest);
                }
                let (x, y) = (x.add(offset), y.add(offset));
                match kind {
                    RopeKind::Split => rotate_halves::<V>(self.table, x, y, dims / 2),
                    RopeKind::Interleaved if V::LANES == 1 => rotate_pairs_one(self.table, x, y, dims),
                    RopeKind::Interleaved => rotate_pairs::<V>(self.table, x, y, dims),
                }
            }
        }
    }
}

/// # Safety
/// `table`, `x` and `y` have `2 * half` numbers.
#[inline(always)]
unsafe fn rotate_halves<V: Vector>(table: *const f32, x: *const f32, y: *mut f32, half: usize) {
    for i in (0..half).step_by(V::LANES) {
        let count = half - i;
        // SAFETY: `i` and `half + i`, with `count` numbers from there, lie within `2 * half`.
        unsafe {
            let cosine = load_upto::<V>(table.add(i), count);
            let sine = load_upto::<V>(table.add(half + i), count);
            let a = load_upto::<V>(x.add(i), count);
            let b = load_upto::<V>(x.add(half + i), count);
            store_upto(a.mul(cosine).sub(b.mul(sine)), y.add(i), count);
            store_upto(a.mul(sine).add(b.mul(cosine)), y.add(half + i), count);
        }
    }
}

/// # Safety
/// `x` and `y` have `dims` numbers, `table` twice as many.
#[inline(always)]
unsafe fn rotate_pairs<V: Vector>(table: *const f32, x: *const f32, y: *mut f32, dims: usize) {
    for i in (0..dims).step_by(V::LANES) {
        let count = dims - i;
        // SAFETY: `count` numbers from `i` on lie within `dims`; both counts are even, so pairs stay whole.
        unsafe {
            let cosine = load_upto::<V>(table.add(i), count);
            let sine = load_upto::<V>(table.add(dims + i), count);
            let value = load_upto::<V>(x.add(i), count);
            store_upto(value.mul(cosine).add(value.swap_pairs().mul(sine)), y.add(i), count);
        }
    }
}

/// # Safety
/// As [`rotate_pairs`].
unsafe fn rotate_pairs_one(table: *const f32, x: *const f32, y: *mut f32, dims: usize) {
    for i in (0..dims).step_by(2) {
        // SAFETY: `i + 1` is below `dims`.
        unsafe {
            let (cosine, sine) = (*table.add(i), *table.add(dims + i + 1));
            let (a, b) = (*x.add(i), *x.add(i + 1));
            *y.add(i) = a * cosine - b * sine;
            *y.add(i + 1) = b * cosine + a * sine;
        }
    }
}
