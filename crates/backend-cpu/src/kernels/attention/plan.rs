//! How a step's attention is cut into chunks.

use std::ops::Range;

use super::{Heads, SPLIT, TILE};

pub use puna_graph::Span;

/// Why a step cannot be planned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// A span names token rows that the step does not have.
    #[error("span of tokens {span:?}, the step has {tokens}")]
    Tokens {
        /// Rows of the span.
        span: Range<u32>,
        /// Rows of the step.
        tokens: usize,
    },
    /// A span names cells that the cache does not have.
    #[error("span of cells {span:?}, the cache has {cells}")]
    Cells {
        /// Cells of the span.
        span: Range<u32>,
        /// Cells of the cache.
        cells: usize,
    },
    /// The heads make no sense.
    #[error("{heads} query heads cannot share {kv_heads} key heads")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key heads.
        kv_heads: usize,
    },
}

/// Rows that are computed together share each tile of keys and values; more rows use it better, fewer keep the
/// state in the nearest cache.
const ROWS: usize = 64;
/// Spans with at most this many tokens are cut into splits, so that all threads are busy.
const FEW_TOKENS: usize = 16;
const WHOLE: u32 = u32::MAX;

/// Tokens of one span that are computed together.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) first_token: usize,
    pub(super) tokens: usize,
    /// Where the span's ranges start in `ranges`, and how many there are.
    ranges: Range<usize>,
    /// The number after that of the span's last cell.
    pub(super) cells: usize,
    /// Where partial results start, if there are any.
    partial: usize,
}

/// A range of a span's cells and the number of its first one.
///
/// Cells of a span are numbered from the first one's position in its split on. So a position has its place in a tile and a split
/// whatever the span begins with, and sums go in the same order where a window gave earlier cells back.
#[derive(Clone, Debug)]
struct CellRange {
    number: usize,
    first: u32,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    block: u32,
    kv_head: u32,
    split: u32,
}

/// A step's attention in chunks; reusable from step to step.
#[derive(Clone, Debug)]
pub struct Plan {
    heads: Heads,
    tokens: usize,
    cells: usize,
    blocks: Vec<Block>,
    ranges: Vec<CellRange>,
    items: Vec<Item>,
    merges: Vec<Item>,
    partial_floats: usize,
    scratch_rows: usize,
}

/// A chunk: rows of one key head against all splits or one of them.
pub(super) struct Work<'a> {
    pub(super) block: &'a Block,
    pub(super) kv_head: usize,
    pub(super) split: Option<usize>,
}

impl Plan {
    /// An empty plan for layers with these heads.
    pub fn new(heads: Heads) -> Self {
        Self {
            heads,
            tokens: 0,
            cells: 0,
            blocks: Vec::new(),
            ranges: Vec::new(),
            items: Vec::new(),
            merges: Vec::new(),
            partial_floats: 0,
            scratch_rows: 0,
        }
    }

    /// Plans a step of `tokens` rows on a cache whose cells have these positions. Cells of a span that a layer's mask hides
    /// cost next to nothing, so layers with different masks share a plan.
    pub fn build(&mut self, spans: &[Span], tokens: usize, positions: &[i32]) -> Result<(), PlanError> {
        let cells = positions.len();
        let Heads { heads, kv_heads, value_dim, .. } = self.heads;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(PlanError::Heads { heads, kv_heads });
        }
        self.blocks.clear();
        self.ranges.clear();
        self.items.clear();
        self.merges.clear();
        (self.tokens, self.cells, self.partial_floats, self.scratch_rows) = (tokens, cells, 0, 0);
        let group = self.heads.group();
        for span in spans {
            if span.tokens.start > span.tokens.end || span.tokens.end as usize > tokens {
                return Err(PlanError::Tokens { span: span.tokens.clone(), tokens });
            }
            let first_range = self.ranges.len();
            let mut number = 0;
            for range in span.cells.iter().filter(|range| !range.is_empty()) {
                if range.end as usize > cells {
                    return Err(PlanError::Cells { span: range.clone(), cells });
                }
                if self.ranges.len() == first_range {
                    number = positions[range.start as usize].rem_euclid(SPLIT as i32) as usize;
                }
                let count = range.end - range.start;
                self.ranges.push(CellRange { number, first: range.start, count });
                number += count as usize;
            }
            let ranges = first_range..self.ranges.len();
            let splits = number.div_ceil(SPLIT);
            let is_split = span.tokens.len() <= FEW_TOKENS && splits > 1;
            let step = (ROWS / group).max(1);
            let mut starts: Vec<usize> =
                (span.tokens.start as usize..span.tokens.end as usize).step_by(step).collect();
            // Later tokens see more: the long chunks first leave the short ones to fill the end.
            starts.reverse();
            for first_token in starts {
                let count = step.min(span.tokens.end as usize - first_token);
                let rows = count * group;
                self.scratch_rows = self.scratch_rows.max(rows);
                let block = self.blocks.len() as u32;
                let partial = self.partial_floats;
                self.blocks.push(Block {
                    first_token,
                    tokens: count,
                    ranges: ranges.clone(),
                    cells: number,
                    partial,
                });
                for kv_head in 0..kv_heads as u32 {
                    if is_split {
                        let item = |split| Item { block, kv_head, split };
                        self.items.extend((0..splits as u32).map(item));
                        self.merges.push(Item { block, kv_head, split: WHOLE });
                    } else {
                        self.items.push(Item { block, kv_head, split: WHOLE });
                    }
                }
                if is_split {
                    self.partial_floats += kv_heads * splits * rows * (value_dim + 2);
                }
            }
        }
        Ok(())
    }

    /// Number of chunks of a layer.
    pub fn chunks(&self) -> usize {
        self.items.len()
    }

    /// Number of chunks of a layer's merge.
    pub fn merge_chunks(&self) -> usize {
        self.merges.len()
    }

    /// Numbers of partial results that a layer writes.
    pub fn partial_floats(&self) -> usize {
        self.partial_floats
    }

    /// Numbers of scratch memory that a chunk needs.
    pub fn scratch_floats(&self) -> usize {
        Self::scratch_for(self.heads, self.scratch_rows)
    }

    /// The most that [`Plan::scratch_floats`] can be for any step.
    pub fn scratch_floats_bound(heads: Heads) -> usize {
        Self::scratch_for(heads, ROWS.max(heads.heads / heads.kv_heads.max(1)))
    }

    fn scratch_for(heads: Heads, rows: usize) -> usize {
        let (key, value) = (padded(heads.key_dim), padded(heads.value_dim));
        let small = 5 * rows.next_multiple_of(16) + (rows * key / 2).next_multiple_of(16);
        let vectors = rows * (key + 2 * value + TILE) + small + TILE * (key + value) + key + value + TILE;
        #[cfg(target_arch = "x86_64")]
        let vectors = vectors.max(super::rounded::scratch_floats(heads, rows));
        vectors
    }

    pub(super) fn heads(&self) -> Heads {
        self.heads
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn cells(&self) -> usize {
        self.cells
    }

    pub(super) fn work(&self, chunk: usize) -> Work<'_> {
        let item = self.items[chunk];
        Work {
            block: &self.blocks[item.block as usize],
            kv_head: item.kv_head as usize,
            split: (item.split != WHOLE).then_some(item.split as usize),
        }
    }

    pub(super) fn merge_work(&self, chunk: usize) -> Work<'_> {
        let item = self.merges[chunk];
        Work { block: &self.blocks[item.block as usize], kv_head: item.kv_head as usize, split: None }
    }

    /// Where the partial results of a split start: `rows * value_dim` sums, `rows` maxima, `rows` denominators.
    pub(super) fn partial_offset(&self, block: &Block, kv_head: usize, split: usize) -> usize {
        let rows = block.tokens * self.heads.group();
        let splits = block.cells.div_ceil(SPLIT);
        block.partial + (kv_head * splits + split) * rows * (self.heads.value_dim + 2)
    }

    /// Puts the cells of the tile that begins with number `first` of a block's span to their places in it; returns which
    /// these are.
    pub(super) fn tile_cells(&self, block: &Block, first: usize, cells: &mut [u32; TILE]) -> Range<usize> {
        let ranges = &self.ranges[block.ranges.clone()];
        let begin = ranges.first().map_or(0, |range| range.number.saturating_sub(first).min(TILE));
        let mut index = ranges.partition_point(|range| range.number <= first + begin).saturating_sub(1);
        let mut end = begin;
        while end < TILE && index < ranges.len() {
            let range = &ranges[index];
            let skip = first + end - range.number;
            let take = (range.count as usize - skip).min(TILE - end);
            for i in 0..take {
                cells[end + i] = range.first + (skip + i) as u32;
            }
            end += take;
            index += 1;
        }
        begin..end
    }
}

/// Rows in scratch memory are whole vectors of the widest kind.
pub(super) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(16)
}
