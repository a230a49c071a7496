//! The highest logits of each row, for steps that are content with them: launches that follow those of the segment.

use puna_backend::arena::SlotId;
use puna_backend::partition::final_logits;
use puna_graph::{Symbol, ValueId};

use super::{Lowering, ONE, args, symbol_of};
use crate::highest::Highest;
use crate::{Extent, Launch};

/// How many of the highest there are launches for: the best alone, a usual chain of samplers, the most that kernels take.
const COUNTS: [u32; 3] = [1, 64, 256];
/// Threads of each block.
const THREADS: u32 = 512;
/// Columns of a slice, which a block looks at.
const SLICE: u32 = 16 * THREADS;
/// The most slices that a block joins.
const MOST_SLICES: u32 = 64;

/// Launches that follow those of a program so that of some logits only the highest need leave.
#[derive(Debug)]
pub struct Selection {
    /// What they give.
    pub highest: Highest,
    /// In order.
    pub launches: Vec<Launch>,
}

/// What they give, before places are known.
pub(super) struct Planned {
    pub(super) value: ValueId,
    pub(super) symbol: Symbol,
    pub(super) count: u32,
    pub(super) result: SlotId,
}

impl Lowering<'_, '_> {
    /// Two launches for each count, if the segment makes the logits.
    pub(super) fn select_best(&mut self) -> Vec<Planned> {
        let Some(value) = final_logits(self.around.segment) else { return Vec::new() };
        let ty = self.graph.value_type(value).clone();
        let (symbol, width) = (symbol_of(&ty), ty.row_elements() as u32);
        let slices = width.div_ceil(SLICE);
        if slices > MOST_SLICES {
            return Vec::new();
        }
        let logits = self.value_slot(value);
        let rows = Extent::Rows { symbol, per: 1, times: 1, most: i32::MAX as u32 };
        let most_rows = self.rows(symbol) as usize;
        let plan = |count: u32| {
            // Pairs of each slice, and its first number that is not finite.
            let pairs = self.scratch(most_rows * (slices * count) as usize * 8);
            let bad = self.scratch(most_rows * slices as usize * 4);
            let result = self.scratch(most_rows * Highest::words(count) * 4);
            let grid = [Extent::Fixed(slices), rows, ONE];
            self.launch("best_of_slices", grid, THREADS, 0, args![logits, pairs, bad, width, count]);
            let arguments = args![logits, pairs, bad, result, width, count, slices];
            self.launch("best_of_rows", [rows, ONE, ONE], THREADS, 0, arguments);
            Planned { value, symbol, count, result }
        };
        COUNTS.map(plan).into()
    }
}
