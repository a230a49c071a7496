//! Queries, keys and values as the products of a tile take them.

use std::arch::x86_64::*;

use super::{PAIR, QUERY_UNIT, Space, TILE_FLOATS, brain, store_lines, transpose, words};
use crate::kernels::attention::plan::Work;
use crate::kernels::attention::{Heads, Inputs, TILE};
use crate::kernels::cache::CacheRows;
use crate::kernels::vector::avx512::Avx512;

impl<const WORDS: bool> Space<'_, WORDS> {
    /// Rounds the queries and puts pairs of their numbers side by side. Returns whether all are finite, as far as integers need to know.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) fn fill_queries(&mut self, inputs: &Inputs<'_>, work: &Work<'_>, heads: Heads) -> bool {
        let group = heads.group();
        let rows = work.block.tokens * group;
        let source = |row: usize| {
            let (token, head) = (work.block.first_token + row / group, work.kv_head * group + row % group);
            // SAFETY: the head's part of the row lies in it.
            unsafe { inputs.queries.row(token).add(head * heads.key_dim) }
        };
        let mut query = [0.0_f32; PAIR];
        for first in (0..rows).step_by(16) {
            let mut factors = [0.0; 16];
            for (row, factor) in (first..rows).zip(&mut factors).filter(|_| WORDS) {
                // SAFETY: the head's part of the row has `key_dim` numbers.
                let squares = unsafe { words::squares(source(row), heads.key_dim) };
                let Some(units) = words::units(squares) else { return false };
                (*factor, self.lanes[QUERY_UNIT][row]) = units;
            }
            for d in (0..heads.key_dim).step_by(PAIR) {
                let mut lines = [_mm512_setzero_si512(); 16];
                let count = PAIR.min(heads.key_dim - d);
                for ((row, line), factor) in (first..rows).zip(&mut lines).zip(factors) {
                    // SAFETY: the head's part of the row has `key_dim` numbers.
                    unsafe {
                        std::ptr::copy_nonoverlapping(source(row).add(d), query.as_mut_ptr(), count);
                        *line = Self::round(query.as_ptr(), factor);
                    }
                }
                let tile = (first / 16 * (self.key_dim / PAIR) + d / PAIR) * TILE_FLOATS;
                store_lines(transpose(lines), &mut self.queries[tile..][..TILE_FLOATS]);
            }
        }
        true
    }

    /// 32 numbers, each multiplied by `factor` if they become integers.
    ///
    /// # Safety
    /// There are as many; without `WORDS` the processor has AVX-512 BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    #[inline]
    unsafe fn round(numbers: *const f32, factor: f32) -> __m512i {
        // SAFETY: forwarded from the caller.
        unsafe { if WORDS { words::round(numbers, factor) } else { brain::round(numbers) } }
    }

    /// Decodes the keys of these cells and rounds them to BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) fn fill_keys(&mut self, inputs: &Inputs<'_>, work: &Work<'_>, cells: &[u32]) {
        let format = inputs.keys.format();
        let steps = self.key_dim / PAIR;
        self.decoded[format.dim()..self.key_dim].fill(0.0);
        for (i, cell) in cells.iter().enumerate() {
            let row = inputs.keys.row(work.kv_head, *cell as usize);
            // SAFETY: a row of the cache, and room for its numbers; lines lie within the tiles.
            unsafe {
                format.decode_with::<Avx512>(row, self.decoded.as_mut_ptr());
                for step in 0..steps {
                    let line = brain::round(self.decoded.as_ptr().add(step * PAIR));
                    _mm512_storeu_si512(self.keys.as_mut_ptr().add(key_line(i, step, steps)).cast(), line);
                }
            }
        }
    }

    /// Decodes the keys of these cells and makes them integers. Returns whether all are finite.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) fn fill_keys_as_words(&mut self, inputs: &Inputs<'_>, work: &Work<'_>, cells: &[u32]) -> bool {
        let (width, steps) = (self.key_dim, self.key_dim / PAIR);
        self.decode(&inputs.keys, work, cells, width);
        // No key is longer than the row of the largest numbers of all.
        let mut squares = _mm512_setzero_ps();
        for d in (0..width).step_by(16) {
            let largest = words::largest(&self.decoded[d..], width, cells.len());
            squares = _mm512_fmadd_ps(largest, largest, squares);
        }
        let Some((factor, unit)) = words::units(_mm512_reduce_add_ps(squares)) else { return false };
        self.key_units.fill(unit);
        for i in 0..cells.len() {
            for step in 0..steps {
                // SAFETY: there are as many numbers; lines lie within the tiles.
                unsafe {
                    let line = words::round(self.decoded.as_ptr().add(i * width + step * PAIR), factor);
                    _mm512_storeu_si512(self.keys.as_mut_ptr().add(key_line(i, step, steps)).cast(), line);
                }
            }
        }
        true
    }

    /// Decodes the rows of these cells, one after the other, `width` numbers apart.
    #[inline(always)]
    fn decode(&mut self, rows: &CacheRows<'_>, work: &Work<'_>, cells: &[u32], width: usize) {
        let format = rows.format();
        for (cell, place) in cells.iter().zip(self.decoded.chunks_exact_mut(width)) {
            let row = rows.row(work.kv_head, *cell as usize);
            place[format.dim()..].fill(0.0);
            // SAFETY: a row of the cache, and room for its numbers.
            unsafe { format.decode_with::<Avx512>(row, place.as_mut_ptr()) };
        }
    }

    /// Decodes the values of these cells and rounds them to BF16; those of the tile's rest are zeros. Returns whether all stay
    /// finite.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) fn fill_values(&mut self, inputs: &Inputs<'_>, work: &Work<'_>, cells: &[u32]) -> bool {
        let format = inputs.values.format();
        let width = self.value_dim;
        self.decoded[..2 * width].fill(0.0);
        let mut zeros = _mm512_setzero_ps();
        for pair in 0..TILE / 2 {
            // SAFETY: rows of the cache, and room for their numbers; lines lie within the tiles.
            unsafe {
                for side in 0..2 {
                    let place = self.decoded.as_mut_ptr().add(side * width);
                    match cells.get(2 * pair + side) {
                        Some(cell) => {
                            let row = inputs.values.row(work.kv_head, *cell as usize);
                            format.decode_with::<Avx512>(row, place);
                        }
                        None => std::slice::from_raw_parts_mut(place, width).fill(0.0),
                    }
                }
                for d in (0..width).step_by(16) {
                    let even = _mm512_loadu_ps(self.decoded.as_ptr().add(d));
                    let odd = _mm512_loadu_ps(self.decoded.as_ptr().add(width + d));
                    // Zero, but where a number is not finite or could become infinite by rounding.
                    let above = _mm512_set1_ps(1.01);
                    zeros = _mm512_fmadd_ps(_mm512_mul_ps(even, above), _mm512_setzero_ps(), zeros);
                    zeros = _mm512_fmadd_ps(_mm512_mul_ps(odd, above), _mm512_setzero_ps(), zeros);
                    let place = (d / 16 * (TILE / PAIR) + pair / 16) * TILE_FLOATS + pair % 16 * 16;
                    let both = brain::side_by_side(even, odd);
                    _mm512_storeu_si512(self.values.as_mut_ptr().add(place).cast(), both);
                }
            }
        }
        _mm512_reduce_add_ps(zeros) == 0.0
    }

    /// Decodes the values of these cells and makes them integers; those of the tile's rest are zeros. Returns whether all are finite.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) fn fill_values_as_words(
        &mut self,
        inputs: &Inputs<'_>,
        work: &Work<'_>,
        cells: &[u32],
    ) -> bool {
        let width = self.value_dim;
        self.decode(&inputs.values, work, cells, width);
        self.decoded[cells.len() * width..TILE * width].fill(0.0);
        let mut squares = _mm512_setzero_ps();
        for d in (0..width).step_by(16) {
            let largest = words::largest(&self.decoded[d..], width, cells.len());
            squares = _mm512_fmadd_ps(largest, largest, squares);
            let (factor, unit) = words::value_units(largest);
            // SAFETY: there are so many numbers of each cell; lines lie within the tiles.
            unsafe {
                _mm512_storeu_ps(self.value_units.as_mut_ptr().add(d), unit);
                for pair in 0..TILE / 2 {
                    let [even, odd] = [0, 1].map(|side| {
                        let number = self.decoded.as_ptr().add((2 * pair + side) * width + d);
                        _mm512_mul_ps(_mm512_loadu_ps(number), factor)
                    });
                    let place = (d / 16 * (TILE / PAIR) + pair / 16) * TILE_FLOATS + pair % 16 * 16;
                    let both = words::side_by_side(even, odd);
                    _mm512_storeu_si512(self.values.as_mut_ptr().add(place).cast(), both);
                }
            }
        }
        _mm512_reduce_add_ps(squares).is_finite()
    }
}

/// Where 32 numbers of a key lie, for tiles of so many steps.
fn key_line(key: usize, step: usize, steps: usize) -> usize {
    (key / 16 * steps + step) * TILE_FLOATS + key % 16 * 16
}
