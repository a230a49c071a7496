//! Attention: storing keys and values, then one of the kernels.

use puna_backend::BackendError;
use puna_graph::ops::{Attention, RopeKind};
use puna_graph::{Node, Op, Operand, Symbol, ValueId};
use puna_quant::DType;

use super::{Arg, Lowering, ONE, RECORDED_ROWS, THREADS, args, extent};
use crate::states::{Rows, frequency_bytes};
use crate::{Extent, MatrixUnits, codes};

/// Query heads that a block of `attention_any` takes.
const ANY_HEADS: u32 = 8;
/// Cells of its tiles.
const ANY_TILE: u32 = 64;
/// Query heads that a block of `flash_decode` takes.
const DECODE_HEADS: u32 = 16;
/// Parts that cells are cut into at most.
const MOST_SPLITS: u32 = 64;
/// Rows that a block of `flash_prompt` takes.
const PROMPT_ROWS: u32 = 64;

impl Lowering<'_, '_> {
    pub(super) fn attention(
        &mut self,
        index: usize,
        node: &Node,
        attention: &Attention,
        value: ValueId,
    ) -> Result<(), BackendError> {
        let [keys, values] = match self.around.caches.parts(attention.state) {
            [keys, values] => [*keys, *values],
            _ => return Err(self.refuse("an attention's cache was not made")),
        };
        let group = self.around.caches.group(attention.state);
        let heads = extent(&self.graph.operand_type(node.inputs[0]), 1);
        let queries = match self.analysis.turned.get(&index).copied() {
            Some((queries, turned_keys)) => {
                self.turn_and_store(queries, turned_keys, node, [keys, values], group, heads)?
            }
            None => {
                self.store(node.inputs[1], keys, group)?;
                self.store(node.inputs[2], values, group)?;
                self.operand(node.inputs[0])?
            }
        };
        let sinks = self.optional(node.inputs.get(3))?;
        let flash = keys.dtype == DType::F16
            && values.dtype == DType::F16
            && keys.width == values.width
            && matches!(keys.width, 64 | 128 | 256)
            && attention.alibi_max_bias.is_none()
            && self.device.matrix_units() >= MatrixUnits::Warp;
        let Some(mask) = codes::mask(attention.mask) else {
            return Err(self.refuse("a mask that kernels lack"));
        };
        let context = Context { mask, attention, keys, values, group, heads, queries, sinks, value };
        match flash {
            true if self.rows(Symbol::Tokens) <= RECORDED_ROWS => self.decode(&context),
            true => self.prompt(&context),
            false => self.any(&context),
        }
        Ok(())
    }

    fn store(&mut self, operand: Operand, rows: Rows, group: usize) -> Result<(), BackendError> {
        let x = self.operand(operand)?;
        let grid = [
            Extent::Rows { symbol: Symbol::Tokens, per: 4, times: rows.heads, most: i32::MAX as u32 },
            ONE,
            ONE,
        ];
        let arguments = args![
            x,
            rows.address,
            self.around.places.write_cells(group),
            self.row_count(Symbol::Tokens),
            rows.heads,
            rows.width,
            rows.dtype.id(),
            rows.head_bytes,
        ];
        self.launch("store_cells", grid, 128, 0, arguments);
        Ok(())
    }

    /// Turns queries and keys and stores keys and values in one go; returns the turned queries.
    fn turn_and_store(
        &mut self,
        queries: usize,
        turned_keys: usize,
        node: &Node,
        [keys, values]: [Rows; 2],
        group: usize,
        heads: u32,
    ) -> Result<Arg, BackendError> {
        let turning = &self.graph.nodes[queries];
        let Op::Rope(rope) = &turning.op else { return Err(self.refuse("queries are not turned")) };
        let factors = match turning.inputs.get(2) {
            Some(Operand::Weight(weight)) => self.around.weights.numbers(*weight),
            _ => None,
        };
        let frequencies = self.constant(frequency_bytes(&rope.frequencies(factors)))?;
        let q = self.operand(turning.inputs[0])?;
        let k = self.operand(self.graph.nodes[turned_keys].inputs[0])?;
        let v = self.operand(node.inputs[2])?;
        let positions = self.rope_positions(rope.place, turning.inputs[1])?;
        let turned = self.value_slot(ValueId(queries as u32));
        let pairs = (heads + keys.heads) * keys.width / 2 + values.heads * values.width / 2;
        let arguments = args![
            q,
            k,
            v,
            turned,
            keys.address,
            values.address,
            positions,
            self.around.places.write_cells(group),
            frequencies,
            self.row_count(Symbol::Tokens),
            heads,
            keys.heads,
            keys.width,
            values.width,
            rope.dimensions,
            rope.kind == RopeKind::Split,
            rope.magnitude,
        ];
        self.launch("rope_store", self.elements(Symbol::Tokens, pairs), THREADS, 0, arguments);
        Ok(turned.into())
    }

    /// Parts to cut the cells into, so that all processors have something to do.
    fn splits(&self, blocks: u32) -> u32 {
        let rows = self.rows(Symbol::Tokens);
        if rows > RECORDED_ROWS {
            return 1;
        }
        (2 * self.device.processors()).div_ceil(rows * blocks).clamp(1, MOST_SPLITS)
    }

    fn cell_arguments(&self, group: usize) -> Vec<Arg> {
        let places = &self.around.places;
        args![
            places.positions(),
            places.row_spans(group),
            places.spans(group),
            places.ranges(),
            places.cell_positions(group),
        ]
    }

    fn decode(&mut self, context: &Context<'_>) {
        let Context { attention, keys, values, group, heads, queries, sinks, value, .. } = *context;
        let width = keys.width;
        let blocks = keys.heads * (heads / keys.heads).div_ceil(DECODE_HEADS);
        let splits = self.splits(blocks);
        let rows = self.rows(Symbol::Tokens);
        let partial = self.scratch((rows * heads * splits * (width + 2)) as usize * 4);
        let out = self.value_slot(value);
        let (rule, number) = context.mask;
        let mut arguments =
            args![queries, keys.address, values.address, partial, out, sinks, self.around.counters,];
        arguments.extend(self.cell_arguments(group));
        arguments.extend(args![
            heads,
            keys.heads,
            rule,
            number,
            attention.scale,
            attention.soft_cap.unwrap_or(0.0),
            splits,
        ]);
        let stages = if width > 128 { 2 } else { 3 };
        let shared = 2 * stages * 64 * width * 2 + stages * 64 * 4;
        let rows = Extent::Rows { symbol: Symbol::Tokens, per: 1, times: 1, most: i32::MAX as u32 };
        let grid = [rows, Extent::Fixed(blocks), Extent::Fixed(splits)];
        self.launch(format!("flash_decode_{width}"), grid, 128, shared, arguments);
    }

    fn prompt(&mut self, context: &Context<'_>) {
        let Context { attention, keys, values, group, heads, queries, sinks, value, .. } = *context;
        let width = keys.width;
        let shared_by = heads / keys.heads;
        let taken = shared_by.min(PROMPT_ROWS);
        let out = self.value_slot(value);
        let (rule, number) = context.mask;
        let places = &self.around.places;
        let arguments = args![
            queries,
            keys.address,
            values.address,
            out,
            sinks,
            places.positions(),
            places.spans(group),
            places.span_count(group),
            places.ranges(),
            places.cell_positions(group),
            heads,
            keys.heads,
            taken,
            rule,
            number,
            attention.scale,
            attention.soft_cap.unwrap_or(0.0),
        ];
        let shared = 4 * 64 * width * 2 + 2 * 64 * 4;
        let tiles = Extent::SpanTiles { per: (PROMPT_ROWS / taken).max(1) };
        let grid = [tiles, Extent::Fixed(keys.heads * shared_by.div_ceil(taken)), ONE];
        self.launch(format!("flash_prompt_{width}"), grid, 128, shared, arguments);
    }

    fn any(&mut self, context: &Context<'_>) {
        let Context { attention, keys, values, group, heads, queries, sinks, value, .. } = *context;
        let shared_by = heads / keys.heads;
        let blocks = keys.heads * shared_by.div_ceil(ANY_HEADS);
        let splits = self.splits(blocks);
        let rows = self.rows(Symbol::Tokens);
        let partial = self.scratch(rows as usize * (heads * splits * (values.width + 2)) as usize * 4);
        let (rule, number) = context.mask;
        let mut arguments = args![queries, keys.address, values.address, partial];
        arguments.extend(self.cell_arguments(group));
        arguments.extend(args![
            heads,
            keys.heads,
            keys.width,
            values.width,
            keys.dtype.id(),
            values.dtype.id(),
            keys.head_bytes,
            values.head_bytes,
            rule,
            number,
            attention.scale,
            attention.soft_cap.unwrap_or(0.0),
            attention.alibi_max_bias.unwrap_or(0.0),
            splits,
        ]);
        let used = shared_by.min(ANY_HEADS);
        let shared = (used * (keys.width + values.width + ANY_TILE + 3) + ANY_TILE) * 4;
        let row_blocks = Extent::Rows { symbol: Symbol::Tokens, per: 1, times: 1, most: i32::MAX as u32 };
        let grid = [row_blocks, Extent::Fixed(blocks), Extent::Fixed(splits)];
        self.launch("attention_any", grid, 128, shared, arguments);
        let out = self.value_slot(value);
        let threads = super::rowwise::block_threads(values.width);
        let arguments = args![partial, sinks, out, heads, values.width, splits];
        self.launch("attention_join", self.groups(Symbol::Tokens, heads), threads, 0, arguments);
    }
}

/// One attention with its operands.
struct Context<'a> {
    mask: (i32, i32),
    attention: &'a Attention,
    keys: Rows,
    values: Rows,
    group: usize,
    heads: u32,
    queries: Arg,
    sinks: Arg,
    value: ValueId,
}
