//! The key and value cache of a layer: number formats of its rows, writing, copying and shifting cells.

mod format;
mod rows;

pub use format::{CACHE_FORMATS, RowFormat};
pub use rows::{CacheRows, CacheRowsMut};

use std::ops::Range;

use super::rope::Rope;
use super::rows::{Rows, RowsMut};
use crate::isa::Features;

/// Writes the rows `range` of `rows` (`[tokens, heads * dim]`) to the cache; row `t` goes to `cells[t]` of every
/// head. Panics if the widths or cell numbers do not fit.
pub fn write(
    features: Features,
    cache: &mut CacheRowsMut<'_>,
    rows: Rows<'_>,
    cells: &[u32],
    range: Range<usize>,
) {
    let format = cache.format();
    assert_eq!(rows.width(), cache.heads() * format.dim(), "rows of another width");
    for row in range {
        let source = rows.row(row);
        for head in 0..cache.heads() {
            let target = cache.row(head, cells[row] as usize);
            // SAFETY: `source` is a row of `heads * dim` numbers, `target` a row of this format.
            unsafe { format.encode(features, source.add(head * format.dim()), target) };
        }
    }
}

/// Copies the cells `from` of the heads in `heads` to the cells from `to` on; the ranges may overlap.
pub fn copy_cells(cache: &mut CacheRowsMut<'_>, from: Range<u32>, to: u32, heads: Range<usize>) {
    let count = from.len();
    if count == 0 {
        return;
    }
    for head in heads {
        let forward = to <= from.start;
        for step in 0..count {
            let offset = if forward { step } else { count - 1 - step };
            let source = cache.row(head, from.start as usize + offset).cast_const();
            let target = cache.row(head, to as usize + offset);
            // SAFETY: both are rows of this format; the order of copies never overwrites a row still to be read.
            unsafe { std::ptr::copy(source, target, cache.format().bytes()) };
        }
    }
}

/// Rotates the keys of the cells `cells` of the heads in `heads` by the table, whose row `i` holds the change of
/// position of cell `cells.start + i`: the keys are decoded, rotated and encoded again. `scratch` has at least
/// `dim` numbers. Panics if a length does not fit.
pub fn shift_keys(
    features: Features,
    cache: &mut CacheRowsMut<'_>,
    rope: Rope,
    table: Rows<'_>,
    cells: Range<u32>,
    heads: Range<usize>,
    scratch: &mut [f32],
) {
    let format = cache.format();
    assert_eq!(format.dim(), rope.head_dim, "keys of another size");
    let scratch = &mut scratch[..format.dim()];
    for head in heads {
        for (row, cell) in cells.clone().enumerate() {
            let key = cache.row(head, cell as usize);
            let data = scratch.as_mut_ptr();
            // SAFETY: `key` is a row of this format and `scratch` one of `dim` numbers, which both views of this
            // kernel may describe.
            unsafe {
                format.decode(features, key, data);
                let width = format.dim();
                let angles = Rows::from_raw(table.row(row), 1, table.width(), table.width());
                let (x, mut y) =
                    (Rows::from_raw(data, 1, width, width), RowsMut::from_raw(data, 1, width, width));
                rope.run(features, angles, x, &mut y, 0..1);
                format.encode(features, data, key);
            }
        }
    }
}
