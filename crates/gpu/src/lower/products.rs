//! Products with matrices: which kernel, and what it does on the way.

use puna_backend::BackendError;
use puna_backend::arena::SlotId;
use puna_graph::{Node, Op, Operand, Symbol, ValueId, WeightId};

use super::shares::Target;
use super::{Arg, Lowering, NULL, ONE, args, extent, fixed_elements, symbol_of};
use crate::layout::Layout;
use crate::weights::Matrix;
use crate::{Argument, Extent, MatrixUnits, codes};

/// Threads of the kernels for few rows.
const VECTOR_THREADS: u32 = 512;
/// Rows of an integer matrix that a warp of them takes at once.
pub(super) const VECTOR_TILE: u32 = 16;
/// Shared memory of these kernels for sums that wait to be joined: for one row of activations, for more.
const VECTOR_SUMS: [u32; 2] = [16 << 10, 32 << 10];
/// Blocks of the kernels for plain numbers that a processor runs at once.
const VECTOR_BLOCKS: u32 = 2;
/// Most rows that these kernels take at once.
const VECTOR_ROWS: u32 = 8;
/// Columns of a group of the integer layouts.
pub(super) const GROUP_COLUMNS: u32 = 256;
/// Shared memory for 32 activations in eight bits.
pub(super) const ACTIVATION_BYTES: u32 = 48;
/// Rows of the matrix in one tile of the kernels for many rows.
const TILE: u32 = 128;
/// Threads of these kernels.
const TILE_THREADS: u32 = 256;
/// Columns of one of their steps.
const STEP: u32 = 64;
/// The last function that the kernels for groups apply themselves.
const WIDE_FUNCTIONS: i32 = 1;
/// Most bytes of sums that wait to be joined.
pub(super) const MOST_PARTIAL: u64 = 256 << 20;

/// How a product is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    /// Reading every weight once, for so many rows (a power of two).
    Vector(u32),
    /// The same, row after row.
    EachRow,
    /// On the matrix units, in tiles of so many rows of activations.
    Tiles(u32),
    /// On the matrix units of groups.
    Wide,
    /// In `f32` throughout.
    Single,
}

/// What activations of a product are made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// A value.
    Plain(ValueId),
    /// A value to be normalised: value, weight, bits of epsilon.
    Normed(ValueId, WeightId, u32),
    /// Two values to be gated: gate, value, function.
    Gated(ValueId, ValueId, i32),
}

/// One matrix of a launch.
pub(super) struct Part {
    pub(super) matrix: Matrix,
    pub(super) bias: Arg,
    pub(super) out: Arg,
}

impl Lowering<'_, '_> {
    /// Table and factor of a layout.
    pub(super) fn format_arguments(&self, layout: &Layout) -> Vec<Arg> {
        let (words, _) = layout.table.as_chunks::<4>();
        let mut arguments: Vec<Arg> =
            words.iter().map(|word| Arg::from(i32::from_le_bytes(word.map(|value| value as u8)))).collect();
        arguments.push(layout.factor.into());
        arguments
    }

    fn matrix(&self, node: &Node) -> Result<Matrix, BackendError> {
        match node.inputs[0] {
            Operand::Weight(weight) => self.around.weights.matrix(weight, self.around.member).cloned(),
            _ => None,
        }
        .ok_or_else(|| self.refuse("a product's matrix was not loaded"))
    }

    /// Rows of activations: those of the step's axis, and how many for each.
    fn product_rows(&self, node: &Node) -> (Symbol, u32) {
        let groups = (1..node.ty.shape.len().saturating_sub(1)).map(|axis| extent(&node.ty, axis)).product();
        (symbol_of(&node.ty), groups)
    }

    fn path(&self, node: &Node) -> Option<Path> {
        if !matches!(node.op, Op::MatMul(_)) {
            return None;
        }
        let matrix = self.matrix(node).ok()?;
        let (symbol, times) = self.product_rows(node);
        let rows = self.rows(symbol) * times;
        let fits = |rows: u32| self.vector_bytes(&matrix, rows) <= self.device.shared_bytes();
        // Units of groups beat the kernels for several rows, which decode scales again for each of them.
        let most = match self.device.matrix_units() {
            MatrixUnits::Group if matrix.layout.is_quantised() => 1,
            _ => VECTOR_ROWS,
        };
        if rows <= most && rows.is_power_of_two() && fits(rows) {
            return Some(Path::Vector(rows));
        }
        if matrix.layout.is_single() {
            return Some(Path::Single);
        }
        let tile = rows.next_power_of_two();
        Some(match self.device.matrix_units() {
            MatrixUnits::None if fits(1) => Path::EachRow,
            MatrixUnits::None => Path::Single,
            MatrixUnits::Warp => Path::Tiles(tile.clamp(32, 256)),
            MatrixUnits::Group => Path::Wide,
        })
    }

    /// Shared memory of the kernels for few rows.
    fn vector_bytes(&self, matrix: &Matrix, rows: u32) -> u32 {
        match matrix.layout.is_quantised() {
            true => {
                let chunks = matrix.columns.next_multiple_of(GROUP_COLUMNS) / 32;
                let activations = vector_width(rows) * chunks * ACTIVATION_BYTES;
                activations + VECTOR_SUMS[(rows > 1) as usize]
            }
            false => rows * matrix.columns * 4,
        }
    }

    /// Whether a node is done by all products that read it; then it needs no launch.
    pub(super) fn goes_along(&self, node: &Node, value: ValueId) -> bool {
        let readers = self.analysis.readers(value);
        let graph = self.graph;
        let all = |accepted: fn(Path) -> bool| {
            !readers.is_empty()
                && readers.iter().all(|(reader, place)| {
                    let Some(reader) = graph.nodes.get(*reader) else { return false };
                    *place == 1 && reader.ty.shape.len() == 2 && self.path(reader).is_some_and(accepted)
                })
        };
        match &node.op {
            Op::RmsNorm(_) => {
                let width = node.ty.width().unwrap_or(0);
                let weight = match node.inputs.get(1) {
                    Some(weight @ Operand::Weight(_)) => fixed_elements(&graph.operand_type(*weight)),
                    _ => 0,
                };
                let whole = width.is_multiple_of(32) && weight == width && node.ty.shape.len() == 2;
                let from_value = matches!(node.inputs[0], Operand::Value(_));
                let taken = |path| matches!(path, Path::Vector(_) | Path::Tiles(_) | Path::Wide);
                whole && from_value && all(taken)
            }
            Op::Glu(glu) if codes::function(glu.function).is_some() => {
                let whole = node.ty.width().unwrap_or(0).is_multiple_of(32) && node.ty.shape.len() == 2;
                let values = node.inputs.iter().all(|operand| matches!(operand, Operand::Value(_)));
                whole && values && all(|path| matches!(path, Path::Tiles(_) | Path::Wide))
            }
            _ => false,
        }
    }

    fn source(&self, x: ValueId) -> Source {
        let node = &self.graph.nodes[x.index()];
        if !self.analysis.absorbed.contains(&x.index()) || self.gated_units.contains(&x) {
            return Source::Plain(x);
        }
        match (&node.op, &node.inputs[..]) {
            (Op::RmsNorm(norm), [Operand::Value(from), Operand::Weight(weight)]) => {
                Source::Normed(*from, *weight, norm.epsilon.to_bits())
            }
            (Op::Glu(glu), [Operand::Value(gate), Operand::Value(up)]) => {
                Source::Gated(*gate, *up, codes::function(glu.function).unwrap_or(0))
            }
            _ => Source::Plain(x),
        }
    }

    pub(super) fn matmul(&mut self, index: usize, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let Operand::Value(x) = node.inputs[1] else { return Err(self.refuse("a product of no value")) };
        let Some(path) = self.path(node) else { return Err(self.refuse("a product without a matrix")) };
        match path {
            Path::Vector(_) | Path::Wide => self.joint_products(index, node, value, x, path),
            Path::EachRow => self.each_row(node, value),
            Path::Tiles(tokens) => self.tiles(index, node, value, x, tokens),
            Path::Single => self.single(index, node, value),
        }
    }

    /// The addend of a sum whose other side is this product alone, if it is there already. The sum is done then.
    fn residual(&mut self, index: usize, value: ValueId) -> Option<(SlotId, ValueId)> {
        let sum = self.analysis.only_reader(value)?;
        let node = &self.graph.nodes[sum];
        let (Op::Add(_), [Operand::Value(a), Operand::Value(b)]) = (&node.op, &node.inputs[..]) else {
            return None;
        };
        let other = if *a == value { *b } else { *a };
        let same = self.graph.value_type(other) == self.graph.value_type(value);
        let made = other.index() < index && self.slots.contains_key(&other);
        if !same || !made || other == value || self.analysis.absorbed.contains(&sum) {
            return None;
        }
        self.analysis.absorbed.insert(sum);
        Some((self.slots[&other], ValueId(sum as u32)))
    }

    /// Where a product goes, or the sum that is done with it.
    fn target_of_sum(
        &mut self,
        index: usize,
        value: ValueId,
        matrix: &Matrix,
        rows: (Symbol, u32),
    ) -> Target {
        match self.residual(index, value) {
            Some((residual, sum)) => self.target(sum, matrix, rows, Some(residual)),
            None => self.target(value, matrix, rows, None),
        }
    }

    /// The other side and the result of a gated unit of two products of the same value.
    fn gated(
        &self,
        index: usize,
        node: &Node,
        value: ValueId,
        x: ValueId,
    ) -> Option<(usize, usize, usize, i32)> {
        let unit = self.analysis.only_reader(value)?;
        let gated = &self.graph.nodes[unit];
        let (Op::Glu(glu), [Operand::Value(gate), Operand::Value(up)]) = (&gated.op, &gated.inputs[..])
        else {
            return None;
        };
        let other = if *gate == value { *up } else { *gate };
        let other_node = &self.graph.nodes[other.index()];
        let alike = gate != up
            && other.index() > index
            && self.analysis.only_reader(other) == Some(unit)
            && other_node.inputs.get(1) == Some(&Operand::Value(x))
            && self.path(other_node) == self.path(node)
            && node.inputs.len() == 2
            && other_node.inputs.len() == 2;
        let (first, second) = (self.matrix(node).ok()?, self.matrix(other_node).ok()?);
        let same = first.layout.dtype == second.layout.dtype && first.rows == second.rows;
        let function = codes::function(glu.function)?;
        let known = !matches!(self.path(node), Some(Path::Wide)) || function <= WIDE_FUNCTIONS;
        (alike && same && known).then_some((gate.index(), up.index(), unit, function))
    }

    /// Products of a value with all matrices that fit into one launch.
    fn joint_products(
        &mut self,
        index: usize,
        node: &Node,
        value: ValueId,
        x: ValueId,
        path: Path,
    ) -> Result<(), BackendError> {
        let matrix = self.matrix(node)?;
        let rows = self.product_rows(node);
        if let Some((gate, up, unit, function)) = self.gated(index, node, value, x) {
            let target = self.target(ValueId(unit as u32), &matrix, rows, None);
            self.analysis.absorbed.extend([gate, up, unit]);
            self.gated_units.insert(ValueId(unit as u32));
            let gate = self.matrix(&self.graph.nodes[gate])?;
            let up = self.matrix(&self.graph.nodes[up])?;
            let parts = [gate, up].map(|matrix| Part { matrix, bias: NULL, out: target.out });
            self.joint_launch(&parts, x, rows, path, NULL, function + 1)?;
            return self.exchange(vec![target]);
        }
        if let Some((residual, sum)) = self.residual(index, value) {
            let bias = self.bias(node.inputs.get(2), &matrix)?;
            let target = self.target(sum, &matrix, rows, Some(residual));
            let part = Part { matrix, bias, out: target.out };
            self.joint_launch(&[part], x, rows, path, target.residual, 0)?;
            return self.exchange(vec![target]);
        }
        let mut members = vec![(index, matrix)];
        for (reader, place) in self.analysis.readers(x) {
            let Some(other) = self.graph.nodes.get(*reader) else { continue };
            let fits = *place == 1
                && *reader > index
                && members.len() < 3
                && !self.analysis.absorbed.contains(reader)
                && self.path(other) == Some(path)
                && self.gated(*reader, other, ValueId(*reader as u32), x).is_none();
            let matrix = self.matrix(other);
            if let (true, Ok(matrix)) = (fits, matrix)
                && joint_kernel(members.iter().map(|(_, matrix)| matrix).chain([&matrix])).is_some()
            {
                members.push((*reader, matrix));
            }
        }
        let (mut parts, mut targets) = (Vec::new(), Vec::new());
        for (member, matrix) in members {
            let bias = self.bias(self.graph.nodes[member].inputs.get(2), &matrix)?;
            let target = self.target(ValueId(member as u32), &matrix, rows, None);
            self.analysis.absorbed.insert(member);
            parts.push(Part { matrix, bias, out: target.out });
            targets.push(target);
        }
        self.joint_launch(&parts, x, rows, path, NULL, 0)?;
        self.exchange(targets)
    }

    fn joint_launch(
        &mut self,
        parts: &[Part],
        x: ValueId,
        rows: (Symbol, u32),
        path: Path,
        residual: Arg,
        gated: i32,
    ) -> Result<(), BackendError> {
        let Some((kernel, order, split)) = joint_kernel(parts.iter().map(|part| &part.matrix)) else {
            return Err(self.refuse("matrices of one launch do not fit together"));
        };
        let parts: Vec<&Part> = order.iter().map(|index| &parts[*index]).collect();
        match path {
            Path::Wide => {
                let activations = self.prepare_tiles(self.source(x), rows, parts[0].matrix.columns)?;
                self.wide_launch(&parts, (kernel, split), activations, rows, residual, gated);
                Ok(())
            }
            _ => self.vector_launch(&parts, (kernel, split), x, residual, gated, self.rows(rows.0) * rows.1),
        }
    }

    /// The arguments by which kernels know up to three matrices, and where their products go.
    pub(super) fn part_arguments(&self, parts: &[&Part], split: u32, columns: u32) -> (Vec<Arg>, Vec<Arg>) {
        let part = |index: usize| parts.get(index);
        let address = |index| part(index).map_or(NULL, |part| part.matrix.address.into());
        let count = |index| Arg::from(part(index).map_or(0, |part| part.matrix.rows));
        let out = |index| part(index).map_or(NULL, |part| part.out);
        let bias = |index| part(index).map_or(NULL, |part| part.bias);
        let (first, other) = (&parts[0].matrix, &parts[parts.len() - 1].matrix);
        let mut matrices = vec![address(0), address(1), address(2), count(0), count(1), count(2)];
        matrices.extend(args![split, first.row_bytes, other.row_bytes, columns]);
        (matrices, vec![out(0), out(1), out(2), bias(0), bias(1), bias(2)])
    }

    fn vector_launch(
        &mut self,
        parts: &[&Part],
        (kernel, split): (String, u32),
        x: ValueId,
        residual: Arg,
        gated: i32,
        rows: u32,
    ) -> Result<(), BackendError> {
        let first = &parts[0].matrix;
        let streamed = if rows == 1 { self.streamed(parts, gated > 0) } else { None };
        let (x, norm, epsilon) = match self.source(x) {
            Source::Normed(from, weight, epsilon) => {
                let weight = self.operand(Operand::Weight(weight))?;
                (self.value_slot(from), weight, f32::from_bits(epsilon))
            }
            _ => (self.value_slot(x), NULL, 0.0),
        };
        let columns = if first.layout.is_quantised() { first.columns / 32 } else { first.columns };
        let (mut arguments, places) = self.part_arguments(parts, split, columns);
        if let Some(streamed) = streamed {
            arguments.extend(args![x, norm, epsilon]);
            arguments.extend(places);
            arguments.extend(args![residual, gated]);
            arguments.extend(self.format_arguments(&first.layout));
            self.stream(streamed, arguments);
            return Ok(());
        }
        let parts_of = |rows_at_once: u32| match gated {
            0 => parts.iter().map(|part| part.matrix.rows.div_ceil(rows_at_once)).sum(),
            _ => first.rows.div_ceil(rows_at_once),
        };
        let blocks = self.vector_blocks(&first.layout, parts_of);
        let grid = [Extent::Fixed(blocks), ONE, ONE];
        arguments.extend(args![x, rows, norm, epsilon]);
        arguments.extend(places);
        arguments.extend(args![residual, gated, 0, NULL, Arg::Known(Argument::Long(0)), 0]);
        arguments.extend(self.format_arguments(&first.layout));
        let shared = self.vector_bytes(first, rows);
        let width = if first.layout.is_quantised() { vector_width(rows) } else { rows };
        self.launch(format!("matvec_{kernel}_{width}"), grid, VECTOR_THREADS, shared, arguments);
        Ok(())
    }

    /// Blocks of the kernels for few rows; `parts` says how many parts of so many rows there are.
    fn vector_blocks(&self, layout: &Layout, parts: impl Fn(u32) -> u32) -> u32 {
        let processors = self.device.processors();
        match layout.is_quantised() {
            true => parts(VECTOR_TILE).clamp(1, processors),
            false => parts(VECTOR_THREADS / 32).clamp(1, processors * VECTOR_BLOCKS),
        }
    }

    /// A product for each slot of each row: `chosen` names its matrix, or the slot itself does.
    fn slot_products(
        &mut self,
        matrix: &Matrix,
        x: Arg,
        out: Arg,
        slots: (Symbol, u32),
        experts: u32,
        chosen: Arg,
        spread: bool,
    ) {
        let columns = if matrix.layout.is_quantised() { matrix.columns / 32 } else { matrix.columns };
        let mut arguments = args![matrix.address, NULL, NULL, matrix.rows, 0, 0, 1];
        arguments.extend(args![
            matrix.row_bytes,
            matrix.row_bytes,
            columns,
            x,
            1,
            NULL,
            0.0_f32,
            out,
            NULL,
            NULL
        ]);
        arguments.extend(args![NULL, NULL, NULL, NULL, 0, experts, chosen]);
        arguments.extend([Arg::Known(Argument::Long(matrix.bytes as i64)), spread.into()]);
        arguments.extend(self.format_arguments(&matrix.layout));
        let (symbol, times) = slots;
        let count = (self.rows(symbol) * times).max(1);
        let wanted = (2 * self.device.processors()).div_ceil(count);
        let blocks = self.vector_blocks(&matrix.layout, |rows| matrix.rows.div_ceil(rows)).min(wanted.max(1));
        let grid = [Extent::Fixed(blocks), Extent::Rows { symbol, per: 1, times, most: 65535 }, ONE];
        let shared = self.vector_bytes(matrix, 1);
        self.launch(format!("matvec_{}_1", matrix.layout.name), grid, VECTOR_THREADS, shared, arguments);
    }

    fn each_row(&mut self, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let matrix = self.matrix(node)?;
        let x = self.operand(node.inputs[1])?;
        let rows = self.product_rows(node);
        let target = self.target(value, &matrix, rows, None);
        let out = target.out;
        self.slot_products(&matrix, x, out, rows, 1, NULL, true);
        if node.inputs.len() > 2 {
            let bias = self.bias(node.inputs.get(2), &matrix)?;
            let (symbol, times) = rows;
            let width = times * matrix.rows;
            let arguments = args![
                out,
                bias,
                out,
                self.row_count(symbol),
                width,
                matrix.rows,
                codes::ADD,
                0.0_f32,
                0.0_f32
            ];
            self.launch("binary", self.elements(symbol, width), super::THREADS, 0, arguments);
        }
        self.exchange(vec![target])
    }

    pub(super) fn expert_products(&mut self, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let matrix = self.matrix(node)?;
        let used = extent(&node.ty, 1);
        let x_type = self.graph.operand_type(node.inputs[1]);
        let x = self.operand(node.inputs[1])?;
        let chosen = self.optional(node.inputs.get(2))?;
        let rows = (symbol_of(&node.ty), used);
        let target = self.target(value, &matrix, rows, None);
        let spread = x_type.shape.len() == 3;
        self.slot_products(&matrix, x, target.out, rows, used, chosen, spread);
        self.exchange(vec![target])
    }

    /// What kernels that make activations for products read: value, other value, norm; function, epsilon.
    pub(super) fn source_arguments(&mut self, source: Source) -> Result<([Arg; 3], i32, f32), BackendError> {
        Ok(match source {
            Source::Plain(x) => ([self.value_slot(x).into(), NULL, NULL], 0, 0.0),
            Source::Normed(x, weight, epsilon) => {
                let weight = self.operand(Operand::Weight(weight))?;
                ([self.value_slot(x).into(), NULL, weight], 0, f32::from_bits(epsilon))
            }
            Source::Gated(gate, up, function) => {
                let up = self.value_slot(up);
                ([self.value_slot(gate).into(), up.into(), NULL], function, 0.0)
            }
        })
    }

    /// Activations in half precision with the scales of their rows.
    fn prepare(
        &mut self,
        source: Source,
        (symbol, times): (Symbol, u32),
        columns: u32,
    ) -> Result<(SlotId, SlotId), BackendError> {
        if let Some(made) = self.prepared.get(&source) {
            return Ok(*made);
        }
        let rows = (self.rows(symbol) * times) as usize;
        let halves = self.scratch(rows * columns as usize * 2);
        let scales = self.scratch(rows * 4);
        let ([x, up, norm], function, epsilon) = self.source_arguments(source)?;
        let arguments = args![x, up, norm, halves, scales, columns, function, epsilon];
        let threads = super::rowwise::block_threads(columns);
        self.launch("prepare_half", self.groups(symbol, times), threads, 0, arguments);
        self.prepared.insert(source, (halves, scales));
        Ok((halves, scales))
    }

    fn tiles(
        &mut self,
        index: usize,
        node: &Node,
        value: ValueId,
        x: ValueId,
        tokens: u32,
    ) -> Result<(), BackendError> {
        let matrix = self.matrix(node)?;
        let (symbol, times) = self.product_rows(node);
        let (halves, scales) = self.prepare(self.source(x), (symbol, times), matrix.columns)?;
        let bias = self.bias(node.inputs.get(2), &matrix)?;
        let target = self.target_of_sum(index, value, &matrix, self.product_rows(node));
        let Target { out, residual, .. } = target;
        let rows = self.rows(symbol) * times;
        let row_tiles = matrix.rows.div_ceil(TILE);
        let blocks = row_tiles * rows.div_ceil(tokens);
        let steps = matrix.columns.div_ceil(STEP);
        let wanted = self.device.processors().div_ceil(blocks).min(steps / 8).max(1);
        let bytes = rows as u64 * matrix.rows as u64 * 4;
        let splits = if wanted as u64 * bytes <= MOST_PARTIAL { wanted.min(8) } else { 1 };
        let partial: Arg = match splits {
            1 => NULL,
            _ => self.scratch((splits as u64 * bytes) as usize).into(),
        };
        let mut arguments = args![
            matrix.address,
            matrix.rows,
            matrix.row_bytes,
            matrix.columns.div_ceil(32),
            halves,
            scales,
            Arg::Known(Argument::Rows(symbol, times)),
            out,
            bias,
            residual,
            partial,
            self.around.counters,
        ];
        arguments.extend(self.format_arguments(&matrix.layout));
        let grid = [
            Extent::Fixed(row_tiles),
            Extent::Rows { symbol, per: tokens, times, most: 65535 },
            Extent::Fixed(splits),
        ];
        let shared = (2 * (TILE + tokens) * STEP * 2).max((TILE + 4) * tokens * 4);
        let kernel = format!("matmul_{}_{tokens}", matrix.layout.name);
        self.launch(kernel, grid, TILE_THREADS, shared, arguments);
        self.exchange(vec![target])
    }

    fn single(&mut self, index: usize, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let matrix = self.matrix(node)?;
        if !matrix.layout.is_single() {
            return Err(self.refuse("a row is too wide for the kernels of this device"));
        }
        let x = self.operand(node.inputs[1])?;
        let bias = self.bias(node.inputs.get(2), &matrix)?;
        let target = self.target_of_sum(index, value, &matrix, self.product_rows(node));
        let Target { out, residual, .. } = target;
        let (symbol, times) = self.product_rows(node);
        let tokens = Arg::Known(Argument::Rows(symbol, times));
        let arguments = args![matrix.address, matrix.rows, matrix.columns, x, tokens, out, bias, residual];
        let grid = [
            Extent::Fixed(matrix.rows.div_ceil(64)),
            Extent::Rows { symbol, per: 64, times, most: 65535 },
            ONE,
        ];
        self.launch("matmul_single", grid, 256, 0, arguments);
        self.exchange(vec![target])
    }
}

/// Rows of activations that the kernels for so many are compiled for, when the matrix is one of integers.
fn vector_width(rows: u32) -> u32 {
    if rows == 1 { 1 } else { VECTOR_ROWS }
}

/// Pairs of layouts that one launch may mix.
pub(super) const PAIRS: &[(&str, &str)] = &[("code4_super", "code6_halves"), ("code5_super", "code6_halves")];

/// The kernel for up to three matrices of one width, the order of the matrices, and how many of them have the first
/// layout.
fn joint_kernel<'m>(matrices: impl Iterator<Item = &'m Matrix>) -> Option<(String, Vec<usize>, u32)> {
    let matrices: Vec<&Matrix> = matrices.collect();
    let first = matrices.first()?.layout;
    if matrices.iter().all(|matrix| matrix.layout.dtype == first.dtype && matrix.layout.name == first.name) {
        let all = (0..matrices.len()).collect();
        return Some((first.name.to_string(), all, matrices.len() as u32));
    }
    let indexes = 0..matrices.len();
    PAIRS.iter().find_map(|(one, other)| {
        let with = |name: &str| {
            indexes.clone().filter(|index| matrices[*index].layout.name == name).collect::<Vec<usize>>()
        };
        let (ones, others) = (with(one), with(other));
        let whole = ones.len() + others.len() == matrices.len() && !ones.is_empty();
        whole.then(|| {
            let split = ones.len() as u32;
            (format!("{one}_{other}"), [ones, others].concat(), split)
        })
    })
}
