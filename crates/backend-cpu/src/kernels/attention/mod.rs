//! Attention over the cells of a cache, with an online softmax in f32.
//!
//! The visible cells of a sequence, in the order of its span, are cut into splits of [`SPLIT`] and tiles of
//! [`TILE`]. Every query row is reduced in this fixed order: within a tile, then tile by tile within a split, then
//! split by split. So its result depends neither on the other rows of the step, nor on the number of threads, nor
//! on whether its splits were computed by one chunk (many tokens) or by several (few tokens, [`merge`]).
//!
//! A step is planned once ([`Plan::build`]) for all layers with the same heads; then each layer runs
//! `plan.chunks()` times [`run`] and `plan.merge_chunks()` times [`merge`].
//!
//! [`run`]: Attention::run
//! [`merge`]: Attention::merge

mod order;
mod plan;
mod products;
#[cfg(target_arch = "x86_64")]
mod rounded;
mod tile;

pub use order::in_order;
pub use plan::{Plan, PlanError, Span};

use puna_graph::ops::MaskRule;

use super::cache::CacheRows;
use super::rows::{Rows, RowsMut};
use super::vector::dispatch;
use crate::isa::Features;

/// Cells that share one running maximum.
pub const TILE: usize = 64;
/// Cells after which partial results are merged; the unit of work when there are few tokens.
pub const SPLIT: usize = 512;

/// The heads of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Heads {
    /// Query heads, a multiple of `kv_heads`; head `h` reads key and value head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a query and a key.
    pub key_dim: usize,
    /// Numbers in a value and a result.
    pub value_dim: usize,
}

/// Attributes of a layer's attention.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// Its heads.
    pub heads: Heads,
    /// Factor of the products of query and key.
    pub scale: f32,
    /// `c`: scores become `c * tanh(score / c)`.
    pub softcap: Option<f32>,
    /// Which cells a token sees.
    pub mask: MaskRule,
    /// A further logit of each head that takes part in the softmax but has no value.
    pub sinks: Option<&'a [f32]>,
    /// ALiBi slope of each head: scores lose `slope * |query position - cell position|`.
    pub alibi: Option<&'a [f32]>,
    /// Bias on scores by the offset of the cell from the token: a row of `2 · reach + 1` numbers for each head, from
    /// the offset `-reach` on; farther cells count as if they were as far as that. Not together with ALiBi.
    pub relative: Option<&'a [f32]>,
    /// Whether many rows of a sequence may be computed in rounded numbers of 16 bits, where the processor multiplies these. A row's
    /// result then depends on how many rows share its step.
    pub rounds: bool,
}

/// What a layer's attention reads.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// `[tokens, heads * key_dim]`.
    pub queries: Rows<'a>,
    /// `[kv_heads, cells, key_dim]`, the step's own rows already written.
    pub keys: CacheRows<'a>,
    /// `[kv_heads, cells, value_dim]`; may describe a part of the keys' rows.
    pub values: CacheRows<'a>,
    /// Position of every token.
    pub token_positions: &'a [i32],
    /// Position of every cell.
    pub cell_positions: &'a [i32],
}

/// Memory for partial results of a layer, [`Plan::partial_floats`] numbers, written by [`Attention::run`] and read
/// by [`Attention::merge`].
#[derive(Clone, Copy)]
pub struct Partials {
    pointer: *mut f32,
    length: usize,
}

impl Partials {
    /// Partial results in `data`.
    ///
    /// # Safety
    /// `data` stays valid and is used by nothing but chunks of one layer's attention at a time; its merge runs after
    /// all of its chunks.
    pub unsafe fn new(data: *mut f32, length: usize) -> Self {
        Self { pointer: data, length }
    }

    fn at(&self, offset: usize, length: usize) -> *mut f32 {
        assert!(offset + length <= self.length, "partials {offset} + {length} of {}", self.length);
        // SAFETY: within the memory promised at construction.
        unsafe { self.pointer.add(offset) }
    }
}

// SAFETY: chunks write disjoint parts, which is promised at construction.
unsafe impl Send for Partials {}
// SAFETY: as above.
unsafe impl Sync for Partials {}

impl Heads {
    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl Attention<'_> {
    fn check(&self, plan: &Plan, inputs: &Inputs<'_>, output: &RowsMut<'_>) {
        let Heads { heads, kv_heads, key_dim, value_dim } = self.heads;
        assert_eq!(plan.heads(), self.heads, "plan for other heads");
        assert_eq!(inputs.queries.width(), heads * key_dim, "queries of another width");
        assert_eq!(output.width(), heads * value_dim, "output of another width");
        assert!(
            inputs.keys.heads() == kv_heads && inputs.keys.format().dim() == key_dim,
            "keys of other heads"
        );
        assert!(
            inputs.values.heads() == kv_heads && inputs.values.format().dim() == value_dim,
            "values of other heads"
        );
        assert!(inputs.token_positions.len() >= plan.tokens(), "positions of {} tokens", plan.tokens());
        let cells = inputs.cell_positions.len().min(inputs.keys.cells()).min(inputs.values.cells());
        assert!(cells >= plan.cells(), "plan for {} cells, there are {cells}", plan.cells());
        for data in [self.sinks, self.alibi].into_iter().flatten() {
            assert_eq!(data.len(), heads, "one number per head");
        }
        if let Some(table) = self.relative {
            assert!(table.len().is_multiple_of(heads) && self.alibi.is_none(), "one row per head");
        }
    }

    /// Does chunk `chunk` of `plan.chunks()`: final rows of `output` (`[tokens, heads * value_dim]`), or partial
    /// results for [`Attention::merge`]. `scratch` has at least [`Plan::scratch_floats`] numbers. Rows of tokens
    /// in no span are left alone. Panics if a length does not fit.
    pub fn run(
        &self,
        features: Features,
        plan: &Plan,
        inputs: &Inputs<'_>,
        output: &RowsMut<'_>,
        partials: Partials,
        chunk: usize,
        scratch: &mut [f32],
    ) {
        self.check(plan, inputs, output);
        let run = tile::Run { attention: self, plan, inputs, output, partials, chunk, scratch };
        #[cfg(target_arch = "x86_64")]
        let mut run = run;
        #[cfg(target_arch = "x86_64")]
        if features.avx512_vnni && rounded::takes(self, &plan.work(chunk)) {
            // SAFETY: `features` proves that the processor has the instructions and the system's permission.
            let done = unsafe {
                if features.amx { rounded::run::<false>(&mut run) } else { rounded::run::<true>(&mut run) }
            };
            if done {
                return;
            }
        }
        dispatch(features, run);
    }

    /// Does chunk `chunk` of `plan.merge_chunks()`, after all chunks of [`Attention::run`]: rows of `output` from
    /// their partial results. `scratch` as there.
    pub fn merge(
        &self,
        features: Features,
        plan: &Plan,
        output: &RowsMut<'_>,
        partials: Partials,
        chunk: usize,
        scratch: &mut [f32],
    ) {
        assert_eq!(plan.heads(), self.heads, "plan for other heads");
        dispatch(features, tile::Merge { attention: self, plan, output, partials, chunk, scratch });
    }
}
