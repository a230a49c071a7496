//! Operations that treat each row alone.

use puna_backend::BackendError;
use puna_graph::ops::Function;
use puna_graph::{Node, Op, Operand, Symbol, ValueId};

use super::{Arg, Lowering, NULL, ONE, THREADS, args, extent, fixed_elements, symbol_of};
use crate::codes;
use crate::states::frequency_bytes;
use crate::{Argument, Extent};

impl Lowering<'_, '_> {
    pub(super) fn rowwise(&mut self, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let symbol = symbol_of(&node.ty);
        let width = node.ty.row_elements() as u32;
        let last = node.ty.width().unwrap_or(1).max(1);
        let rows = self.row_count(symbol);
        let x = self.operand(node.inputs[0])?;
        let out = self.value_slot(value);
        let input = self.graph.operand_type(node.inputs[0]);
        let input_last = input.width().unwrap_or(1).max(1);
        let elements = self.elements(symbol, width);
        match &node.op {
            Op::Scale(scale) => self.unary(node, value, codes::SCALE, [scale.factor, 0.0, 0.0, 0.0])?,
            Op::SoftCap(soft) => self.unary(node, value, codes::SOFT_CAP, [soft.cap, 0.0, 0.0, 0.0])?,
            Op::Clamp(clamp) => self.unary(node, value, codes::CLAMP, [clamp.low, clamp.high, 0.0, 0.0])?,
            Op::Xielu(xielu) => {
                let positive = Function::Softplus.apply(xielu.alpha_p as f64) as f32;
                let negative = (xielu.beta as f64 + Function::Softplus.apply(xielu.alpha_n as f64)) as f32;
                self.unary(node, value, codes::XIELU, [positive, negative, xielu.beta, xielu.epsilon])?;
            }
            Op::Unary(unary) => self.unary(node, value, self.function(unary.function)?, [0.0; 4])?,
            Op::Add(_) => self.binary(node, value, codes::ADD, 0.0, 0.0)?,
            Op::Mul(_) => self.binary(node, value, codes::MULTIPLY, 0.0, 0.0)?,
            Op::Div(_) => self.binary(node, value, codes::DIVIDE, 0.0, 0.0)?,
            Op::Glu(glu) => {
                self.binary(node, value, codes::GATED + self.function(glu.function)?, 0.0, 0.0)?;
            }
            Op::ClampedGlu(glu) => {
                let (operation, alpha) = codes::bounded(glu);
                self.binary(node, value, operation, alpha, glu.limit)?;
            }
            Op::RmsNorm(norm) => self.norm(node, value, norm.epsilon, false)?,
            Op::LayerNorm(norm) => self.norm(node, value, norm.epsilon, true)?,
            Op::Rope(rope) => {
                let factors = match node.inputs.get(2) {
                    Some(Operand::Weight(weight)) => self.around.weights.numbers(*weight),
                    _ => None,
                };
                let frequencies = self.constant(frequency_bytes(&rope.frequencies(factors)))?;
                let positions = self.rope_positions(rope.place, node.inputs[1])?;
                let split = rope.kind == puna_graph::ops::RopeKind::Split;
                let heads = extent(&node.ty, 1);
                let arguments = args![
                    x,
                    positions,
                    frequencies,
                    out,
                    rows,
                    heads,
                    last,
                    rope.dimensions,
                    split,
                    rope.magnitude
                ];
                self.launch("rope", elements, THREADS, 0, arguments);
            }
            Op::Slice(slice) => {
                let arguments = args![x, out, rows, width / last, input_last, slice.start, slice.length];
                self.launch("slice", elements, THREADS, 0, arguments);
            }
            Op::Concat(_) => {
                let y = self.operand(node.inputs[1])?;
                let other = self.graph.operand_type(node.inputs[1]).width().unwrap_or(1);
                let arguments = args![x, y, out, rows, width / last, input_last, other];
                self.launch("concat", elements, THREADS, 0, arguments);
            }
            Op::RepeatHeads(repeat) => {
                let arguments = args![x, out, rows, extent(&input, 1), input_last, repeat.times];
                self.launch("repeat_heads", elements, THREADS, 0, arguments);
            }
            Op::ScaleRows(_) => {
                let factors = self.operand(node.inputs[1])?;
                let period = fixed_elements(&self.graph.operand_type(node.inputs[1]));
                let arguments = args![x, factors, out, rows, width / last, last, period];
                self.launch("scale_rows", elements, THREADS, 0, arguments);
            }
            Op::PositionScale(scale) => {
                let positions = self.operand(node.inputs[1])?;
                let arguments =
                    args![x, positions, out, rows, width, scale.slope, scale.length.max(1), scale.offset];
                self.launch("position_scale", elements, THREADS, 0, arguments);
            }
            Op::SumElements(_) => self.reduce(node, value, NULL, 0, 0.0)?,
            Op::Softmax(_) => self.reduce(node, value, NULL, 1, 0.0)?,
            Op::GaussianCut(cut) => self.reduce(node, value, NULL, 2, cut.deviations)?,
            Op::MatchNorm(_) => {
                let reference = self.operand(node.inputs[1])?;
                self.reduce(node, value, reference, 3, 0.0)?;
            }
            Op::WeightedSum(_) => {
                let columns = node.inputs.len() as u32 - 1;
                for column in 0..columns {
                    let term = self.operand(node.inputs[column as usize + 1])?;
                    let arguments = args![x, term, out, rows, width, columns, column];
                    self.launch("weighted_add", elements, THREADS, 0, arguments);
                }
            }
            Op::Interpolate(_) => {
                let other = self.operand(node.inputs[1])?;
                let shares = self.operand(node.inputs[2])?;
                let fixed = fixed_elements(&self.graph.operand_type(node.inputs[2]));
                let per_row = if fixed == 0 { width } else { 0 };
                let arguments = args![x, other, shares, out, rows, input_last, width / input_last, per_row];
                self.launch("interpolate", elements, THREADS, 0, arguments);
            }
            other => return Err(self.refuse(&format!("there is no kernel for {}", other.name()))),
        }
        Ok(())
    }

    fn function(&self, function: Function) -> Result<i32, BackendError> {
        codes::function(function).ok_or_else(|| self.refuse("a function that kernels lack"))
    }

    fn unary(
        &mut self,
        node: &Node,
        value: ValueId,
        function: i32,
        numbers: [f32; 4],
    ) -> Result<(), BackendError> {
        let symbol = symbol_of(&node.ty);
        let width = node.ty.row_elements() as u32;
        let x = self.operand(node.inputs[0])?;
        let out = self.value_slot(value);
        let [a, b, c, d] = numbers;
        let arguments = args![x, out, self.row_count(symbol), width, function, a, b, c, d];
        self.launch("unary", self.elements(symbol, width), THREADS, 0, arguments);
        Ok(())
    }

    fn binary(
        &mut self,
        node: &Node,
        value: ValueId,
        operation: i32,
        a: f32,
        b: f32,
    ) -> Result<(), BackendError> {
        let symbol = symbol_of(&node.ty);
        let width = node.ty.row_elements() as u32;
        let x = self.operand(node.inputs[0])?;
        let y = self.operand(node.inputs[1])?;
        let period = fixed_elements(&self.graph.operand_type(node.inputs[1]));
        let out = self.value_slot(value);
        let arguments = args![x, y, out, self.row_count(symbol), width, period, operation, a, b];
        self.launch("binary", self.elements(symbol, width), THREADS, 0, arguments);
        Ok(())
    }

    fn norm(&mut self, node: &Node, value: ValueId, epsilon: f32, centred: bool) -> Result<(), BackendError> {
        let symbol = symbol_of(&node.ty);
        let width = node.ty.width().unwrap_or(1).max(1);
        let groups = node.ty.row_elements() as u32 / width;
        let x = self.operand(node.inputs[0])?;
        let weight = self.optional(node.inputs.get(1))?;
        let bias = self.optional(node.inputs.get(2))?;
        let period = |place: usize| {
            node.inputs.get(place).map_or(1, |operand| fixed_elements(&self.graph.operand_type(*operand)))
        };
        let (weight_period, bias_period) = (period(1).max(1), period(2).max(1));
        let out = self.value_slot(value);
        let arguments = args![x, weight, bias, out, width, weight_period, bias_period, epsilon, centred];
        self.launch("normalise", self.groups(symbol, groups), block_threads(width), 0, arguments);
        Ok(())
    }

    /// A block for each group of the last axis of the input.
    fn reduce(
        &mut self,
        node: &Node,
        value: ValueId,
        other: Arg,
        operation: i32,
        number: f32,
    ) -> Result<(), BackendError> {
        let symbol = symbol_of(&node.ty);
        let input = self.graph.operand_type(node.inputs[0]);
        let width = input.width().unwrap_or(1).max(1);
        let groups = input.row_elements() as u32 / width;
        let x = self.operand(node.inputs[0])?;
        let out = self.value_slot(value);
        let arguments = args![x, other, out, width, operation, number];
        self.launch("reduce_rows", self.groups(symbol, groups), block_threads(width), 0, arguments);
        Ok(())
    }

    pub(super) fn gather_rows(&mut self, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let symbol = symbol_of(&node.ty);
        let width = node.ty.row_elements() as u32;
        if let Operand::Value(source) = node.inputs[0]
            && self.rows(Symbol::Tokens) == 1
            && self.rows(Symbol::Outputs) == 1
        {
            // A step's only row is the one that leaves.
            let slot = self.value_slot(source);
            self.slots.insert(value, slot);
            return Ok(());
        }
        let indexes = self.operand(node.inputs[1])?;
        let out = self.value_slot(value);
        if let Operand::Weight(table) = node.inputs[0] {
            let Some(matrix) = self.around.weights.table(table).cloned() else {
                return Err(self.refuse("a table was not loaded"));
            };
            let chunks = if matrix.layout.is_quantised() { matrix.columns / 32 } else { matrix.columns };
            let mut arguments = args![matrix.address, indexes, out, matrix.rows, matrix.row_bytes, chunks];
            arguments.extend(self.format_arguments(&matrix.layout));
            let kernel = format!("embed_{}", matrix.layout.name);
            self.launch(kernel, self.groups(symbol, 1), 128, 0, arguments);
            return Ok(());
        }
        let x = self.operand(node.inputs[0])?;
        let arguments = args![x, indexes, out, Arg::Known(Argument::Rows(symbol, 1)), width];
        let grid: [Extent; 3] = [self.elements(symbol, width)[0], ONE, ONE];
        self.launch("output_rows", grid, THREADS, 0, arguments);
        Ok(())
    }
}

/// Threads of a block that goes over one group of so many numbers.
pub(super) fn block_threads(width: u32) -> u32 {
    (width / 4).next_multiple_of(32).clamp(32, 512)
}
