//! Products with many rows on the matrix units that four warps share: activations in half precision as these units read them,
//! and the launch.

use puna_backend::BackendError;
use puna_backend::arena::SlotId;
use puna_graph::Symbol;

use super::products::{MOST_PARTIAL, Part, Source};
use super::{Arg, Lowering, NULL, args};
use crate::{Argument, Extent};

/// Rows of a matrix that a unit, four warps, takes at once.
const UNIT: u32 = 64;
/// Threads of a unit, and of those that copy.
const UNIT_THREADS: u32 = 128;
/// Units of a block that multiply: with few rows of activations, and with many, when each takes twice as many rows of the matrix.
const FEW_UNITS: u32 = 4;
const MANY_UNITS: u32 = 2;
/// Rows of activations in a tile, when there are many, and else at most.
const MANY_TOKENS: u32 = 128;
const FEW_TOKENS: u32 = 64;
/// Shared memory of these kernels, which is all that a processor has, with room to begin where the units' layouts may.
const SHARED: u32 = (225 << 10) + 1024;
/// Columns that rows of activations are filled up to.
const COLUMNS: u32 = 256;
/// Columns of a step of the kernel, and bytes of these in a row of activations.
const STEP: u32 = 64;
const STEP_BYTES: u32 = 128;
/// Columns that a part of the width has at least.
const LEAST_PART: u32 = 512;

/// Activations that were made for products.
#[derive(Clone, Copy)]
pub struct Activations {
    halves: SlotId,
    scales: SlotId,
    /// Rows that there is room for.
    apart: u32,
}

impl Lowering<'_, '_> {
    /// Activations in half precision with the scales of their rows.
    pub(super) fn prepare_tiles(
        &mut self,
        source: Source,
        (symbol, times): (Symbol, u32),
        columns: u32,
    ) -> Result<Activations, BackendError> {
        let apart = (self.rows(symbol) * times).max(FEW_TOKENS);
        if let Some((halves, scales)) = self.prepared.get(&source).copied() {
            return Ok(Activations { halves, scales, apart });
        }
        let whole = columns.next_multiple_of(COLUMNS);
        let halves = self.scratch((apart * STEP_BYTES) as usize * (whole / STEP) as usize);
        let scales = self.scratch(apart as usize * 4);
        let ([x, up, norm], function, epsilon) = self.source_arguments(source)?;
        let arguments = args![x, up, norm, halves, scales, columns, whole, apart, function, epsilon];
        let threads = super::rowwise::block_threads(columns);
        let kept = match whole.div_ceil(4 * threads) {
            0..=2 => 2,
            3..=8 => 8,
            _ => 0,
        };
        self.launch(format!("prepare_tiles_{kept}"), self.groups(symbol, times), threads, 0, arguments);
        self.prepared.insert(source, (halves, scales));
        Ok(Activations { halves, scales, apart })
    }

    /// Products with up to three matrices.
    pub(super) fn wide_launch(
        &mut self,
        parts: &[&Part],
        (kernel, split): (String, u32),
        activations: Activations,
        (symbol, times): (Symbol, u32),
        residual: Arg,
        gated: i32,
    ) {
        let first = &parts[0].matrix;
        let all_tokens = self.rows(symbol) * times;
        let tiles_of = |tile: u32| -> u32 {
            match gated {
                0 => parts.iter().map(|part| part.matrix.rows.div_ceil(tile)).sum(),
                _ => first.rows.div_ceil(tile / 2),
            }
        };
        // Large tiles need enough of them for all processors.
        let large = tiles_of(4 * UNIT) * all_tokens.div_ceil(MANY_TOKENS) >= self.device.processors();
        let tokens = match all_tokens {
            ..=32 => 32,
            65.. if large => MANY_TOKENS,
            _ => FEW_TOKENS,
        };
        let (units, taken) = match tokens {
            MANY_TOKENS => (MANY_UNITS, 2 * UNIT),
            _ => (FEW_UNITS, UNIT),
        };
        let tile = units * taken;
        let tiles = tiles_of(tile);
        let blocks = tiles * all_tokens.div_ceil(tokens);
        let bytes = blocks as u64 * (tile * tokens) as u64 * 4;
        let wanted = self.device.processors() / blocks.max(1);
        let splits = wanted.min(first.columns / LEAST_PART).min((MOST_PARTIAL / bytes.max(1)) as u32).max(1);
        // Where every processor has several tiles it takes its share of all, so that none waits for the last ones.
        let processors = self.device.processors();
        let shares = tokens != MANY_TOKENS
            && all_tokens <= tokens
            && gated == 0
            && matches!(residual, Arg::Known(Argument::Null))
            && split as usize == parts.len()
            && tiles > processors;
        let partial: Arg = match (splits, shares) {
            (_, true) => self.scratch((processors * tile * tokens) as usize * 4).into(),
            (1, false) => NULL,
            _ => self.scratch((splits as u64 * bytes) as usize).into(),
        };
        let (mut arguments, places) = self.part_arguments(parts, split, first.columns / 32);
        let Activations { halves, scales, apart } = activations;
        arguments.extend(args![halves, apart, scales, Arg::Known(Argument::Rows(symbol, times))]);
        arguments.extend(places);
        arguments.extend(args![residual, gated, partial, self.around.counters]);
        arguments.extend(self.format_arguments(&first.layout));
        let grid = [
            Extent::Rows { symbol, per: tokens, times, most: i32::MAX as u32 },
            Extent::Fixed(if shares { processors } else { tiles }),
            Extent::Fixed(splits),
        ];
        let threads = (units + 1) * UNIT_THREADS;
        self.launch(format!("wide_{kernel}_{tokens}"), grid, threads, SHARED, arguments);
    }
}
