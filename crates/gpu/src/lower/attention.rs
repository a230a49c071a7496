//! Attention: storing keys and values, then one of the kernels.

use puna_backend::BackendError;
use puna_graph::ops::{Attention, RopeKind};
use puna_graph::{Node, Op, Operand, Symbol, ValueId};
use puna_quant::DType;

use super::{Arg, Lowering, NULL, ONE, RECORDED_ROWS, THREADS, args, extent};
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
/// Query heads that the two kinds of `flash_rows` take, threads of its blocks, and floats between the queries of neighbouring heads.
const ROW_HEADS: [u32; 2] = [8, 16];
const ROW_THREADS: u32 = 256;
const QUERY_GAP: u32 = 8;
/// Bytes between rows of halves in its stages besides their own, and bytes of shared memory that its blocks have in any case.
const ROW_GAP: u32 = 16;
const ROW_FIXED: u32 = 3200;
/// Rows that a block of `flash_prompt` takes.
const PROMPT_ROWS: u32 = 64;

/// Cells of a tile of the kernels on the matrix units.
const FLASH_TILE: u32 = 64;
/// Bytes that heads are copied in: in shared memory each has whole pieces.
const PIECE: u32 = 16;

/// The kernels on the matrix units for one format of caches.
#[derive(Clone, Copy)]
pub struct Flash {
    /// Part of their names.
    name: &'static str,
    /// Bytes of a head of so many elements, and whether a prompt's kernel makes halves of them first.
    head_bytes: u32,
    made: bool,
}

impl Flash {
    /// Shared memory for so many stages of keys, values and positions.
    fn bytes(&self, stages: u32) -> u32 {
        stages * FLASH_TILE * (2 * self.head_bytes.next_multiple_of(PIECE) + 4)
    }

    /// Stages of the kernels for single tokens.
    fn stages(width: u32) -> u32 {
        if width > 128 { 2 } else { 3 }
    }

    /// Shared memory of `flash_rows` for blocks with so many heads.
    fn row_bytes(&self, width: u32, heads: u32) -> u32 {
        let row = if self.made { self.head_bytes.next_multiple_of(PIECE) } else { self.head_bytes + ROW_GAP };
        let stage = 2 * FLASH_TILE * row;
        // The results of four warps, where a stage has no room for them.
        let results = 16 * heads * width;
        let queries = heads * (width + QUERY_GAP) * 4;
        let apart = if results > stage { results } else { 0 };
        Self::stages(width) * (stage + 4 * FLASH_TILE + queries) + 32 * heads + apart
    }
}

/// The kernels on the matrix units that fit an attention, if any do.
pub fn flash(attention: &Attention, parts: &[Rows], units: MatrixUnits) -> Option<Flash> {
    let [keys, values] = parts else { return None };
    let fits = keys.dtype == values.dtype
        && keys.width == values.width
        && matches!(keys.width, 64 | 128 | 256)
        && attention.alibi_max_bias.is_none()
        && units >= MatrixUnits::Warp;
    let (name, made) = match keys.dtype {
        DType::F16 => ("", false),
        DType::Q8_0 => ("bytes_", true),
        _ => return None,
    };
    fits.then_some(Flash { name, head_bytes: keys.head_bytes, made })
}

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
        let flash = flash(attention, &[keys, values], self.device.matrix_units());
        let turning = match self.analysis.turned.get(&index).copied() {
            Some((queries, turned_keys)) => Some(self.turning(queries, turned_keys, node, group)?),
            None => None,
        };
        // A single row is turned and stored by its attention.
        let single = flash.is_some() && self.rows(Symbol::Tokens) == 1;
        let queries = match &turning {
            Some(turning) if single => turning.queries,
            Some(turning) => self.turn_and_store(turning, [keys, values], heads),
            None => {
                self.store(node.inputs[1], keys, group)?;
                self.store(node.inputs[2], values, group)?;
                self.operand(node.inputs[0])?
            }
        };
        let turning = turning.filter(|_| single);
        let sinks = self.optional(node.inputs.get(3))?;
        let Some(mask) = codes::mask(attention.mask) else {
            return Err(self.refuse("a mask that kernels lack"));
        };
        let context = Context { mask, attention, keys, values, group, heads, queries, sinks, turning, value };
        match flash {
            Some(flash) if self.rows(Symbol::Tokens) <= RECORDED_ROWS => {
                // Shares of all rows pay where there are enough of them.
                let items = self.rows(Symbol::Tokens) * keys.heads;
                let shared = self.device.matrix_units() == MatrixUnits::Group
                    && !single
                    && 4 * items >= self.device.processors();
                if shared { self.rows_at_once(&context, flash) } else { self.decode(&context, flash) }
            }
            Some(flash) => self.prompt(&context, flash),
            None => self.any(&context),
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

    /// What turning queries and keys and storing keys and values needs.
    fn turning(
        &mut self,
        queries: usize,
        turned_keys: usize,
        node: &Node,
        group: usize,
    ) -> Result<Turning, BackendError> {
        let turning = &self.graph.nodes[queries];
        let Op::Rope(rope) = &turning.op else { return Err(self.refuse("queries are not turned")) };
        let factors = match turning.inputs.get(2) {
            Some(Operand::Weight(weight)) => self.around.weights.numbers(*weight),
            _ => None,
        };
        let frequencies = self.constant(frequency_bytes(&rope.frequencies(factors)))?;
        Ok(Turning {
            value: ValueId(queries as u32),
            queries: self.operand(turning.inputs[0])?,
            keys: self.operand(self.graph.nodes[turned_keys].inputs[0])?,
            values: self.operand(node.inputs[2])?,
            positions: self.rope_positions(rope.place, turning.inputs[1])?,
            cells: self.around.places.write_cells(group).into(),
            numbers: [
                frequencies.into(),
                rope.dimensions.into(),
                (rope.kind == RopeKind::Split).into(),
                rope.magnitude.into(),
            ],
        })
    }

    /// Turns queries and keys and stores keys and values in one go; returns the turned queries.
    fn turn_and_store(&mut self, turning: &Turning, [keys, values]: [Rows; 2], heads: u32) -> Arg {
        let turned = self.value_slot(turning.value);
        let pairs = (heads + keys.heads) * keys.width / 2 + values.heads * values.width / 2;
        let [frequencies, dimensions, split, magnitude] = turning.numbers;
        let arguments = args![
            turning.queries,
            turning.keys,
            turning.values,
            turned,
            keys.address,
            values.address,
            turning.positions,
            turning.cells,
            frequencies,
            self.row_count(Symbol::Tokens),
            heads,
            keys.heads,
            keys.width,
            values.width,
            dimensions,
            split,
            magnitude,
        ];
        self.launch("rope_store", self.elements(Symbol::Tokens, pairs), THREADS, 0, arguments);
        turned.into()
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

    fn decode(&mut self, context: &Context<'_>, flash: Flash) {
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
        match &context.turning {
            Some(turning) => {
                arguments.extend([turning.keys, turning.values, turning.cells, turning.positions]);
                arguments.extend(turning.numbers);
            }
            None => arguments.extend(args![NULL, NULL, NULL, NULL, NULL, 0, 0, 1.0_f32]),
        }
        let shared = flash.bytes(Flash::stages(width));
        let rows = Extent::Rows { symbol: Symbol::Tokens, per: 1, times: 1, most: i32::MAX as u32 };
        let grid = [rows, Extent::Fixed(blocks), Extent::Fixed(splits)];
        self.launch(format!("flash_decode_{}{width}", flash.name), grid, 128, shared, arguments);
    }

    /// Several rows, whose cells are shared out evenly.
    fn rows_at_once(&mut self, context: &Context<'_>, flash: Flash) {
        let Context { attention, keys, values, group, heads, queries, sinks, value, .. } = *context;
        let width = keys.width;
        let shared_by = heads / keys.heads;
        let kind = if shared_by <= ROW_HEADS[0] { ROW_HEADS[0] } else { ROW_HEADS[1] };
        let taken = shared_by.min(kind);
        let shared = flash.row_bytes(width, taken);
        // The kernels are compiled for so many blocks of a processor.
        let most = if kind == ROW_HEADS[0] && width <= 128 { 2 } else { 1 };
        let room = (self.device.shared_bytes() + 1024) / (shared + ROW_FIXED);
        let blocks = self.device.processors() * room.clamp(1, most);
        let partial = self.scratch((2 * blocks * taken * (width + 2)) as usize * 4);
        let out = self.value_slot(value);
        let (rule, number) = context.mask;
        let mut arguments =
            args![queries, keys.address, values.address, partial, out, sinks, self.around.counters];
        arguments.extend(self.cell_arguments(group));
        arguments.extend(args![
            self.row_count(Symbol::Tokens),
            heads,
            keys.heads,
            rule,
            number,
            attention.scale,
            attention.soft_cap.unwrap_or(0.0),
        ]);
        let kernel = format!("flash_rows_{kind}_{}{width}", flash.name);
        self.launch(kernel, [Extent::Fixed(blocks), ONE, ONE], ROW_THREADS, shared, arguments);
    }

    fn prompt(&mut self, context: &Context<'_>, flash: Flash) {
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
        let halves = if flash.made { 2 * FLASH_TILE * width * 2 } else { 0 };
        let shared = flash.bytes(2) + halves;
        let tiles = Extent::SpanTiles { per: (PROMPT_ROWS / taken).max(1) };
        let grid = [tiles, Extent::Fixed(keys.heads * shared_by.div_ceil(taken)), ONE];
        self.launch(format!("flash_prompt_{}{width}", flash.name), grid, 128, shared, arguments);
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
    /// If queries are not turned yet, nor keys and values stored.
    turning: Option<Turning>,
    value: ValueId,
}

/// Queries, keys and values before they are turned, and by what.
struct Turning {
    /// The turned queries.
    value: ValueId,
    queries: Arg,
    keys: Arg,
    values: Arg,
    positions: Arg,
    cells: Arg,
    /// Frequencies, dimensions, whether pairs are half a head apart, and the magnitude.
    numbers: [Arg; 4],
}
