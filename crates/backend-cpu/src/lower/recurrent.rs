//! Lowering of operations that carry a state, and of attention over blocks.

use puna_graph::ops::{self, KeyHeads};
use puna_graph::{Dim, Node, Op, Operand, StateId, Symbol, ValueId, WeightId};

use super::Lowering;
use crate::kernels::recurrent::{DeltaRule, Rwkv7};
use crate::recurrent_tasks::{BlockAttentionTask, LinearShape, Recurrence, RecurrentTask, ScanShape};
use crate::row_ops::RowOp;
use crate::tasks::Task;
use puna_backend::arena::SlotId;

fn weight(operand: Option<&Operand>) -> Option<WeightId> {
    match operand {
        Some(Operand::Weight(weight)) => Some(*weight),
        _ => None,
    }
}

impl Lowering<'_> {
    /// Fixed extents of an operand after its first axis.
    fn fixed(&self, operand: Operand) -> Vec<usize> {
        let shape = self.graph.operand_type(operand).shape;
        let fixed = shape.iter().filter_map(|dim| match dim {
            Dim::Fixed(extent) => Some(*extent as usize),
            Dim::Of(_) => None,
        });
        fixed.collect()
    }

    fn slots<const N: usize>(&mut self, node: &Node, which: [usize; N], task: usize) -> [SlotId; N] {
        which.map(|index| self.read(node.inputs[index], task))
    }

    /// A recurrence by its kernel, or by its definition where something that usually is a tensor of the file is not.
    pub(super) fn recurrence(&mut self, index: usize, node: &Node, value: ValueId) {
        let task = self.program.tasks.len();
        match self.recurrence_of(node, task) {
            Some((state, kind)) => {
                let out = self.output_at(value, task);
                self.push_task(Task::Recurrent(RecurrentTask { state, kind, out }));
            }
            None => self.evaluate(index, node, value),
        }
    }

    fn recurrence_of(&mut self, node: &Node, task: usize) -> Option<(StateId, Recurrence)> {
        let inputs = &node.inputs;
        let recurrence = match &node.op {
            Op::ShortConvolution(op) => {
                let filter = weight(inputs.get(1))?;
                let bias = match inputs.get(2) {
                    Some(bias) => Some(weight(Some(bias))?),
                    None => None,
                };
                let [channels, kernel] = self.fixed(inputs[1])[..] else { return None };
                let rows = self.weights.vector(filter);
                let taps =
                    (0..kernel).flat_map(|tap| (0..channels).map(move |channel| channel * kernel + tap));
                let taps = taps.map(|at| rows[at]).collect();
                let dilation = op.dilation as usize;
                let [x] = self.slots(node, [0], task);
                (op.state, Recurrence::Convolution { x, taps, bias, kernel, dilation })
            }
            Op::TokenShift(op) => {
                let [x] = self.slots(node, [0], task);
                (op.state, Recurrence::Shift { x })
            }
            Op::SelectiveScan(op) => {
                let (rates, skip) = (weight(inputs.get(2))?, weight(inputs.get(5))?);
                let [heads, dim] = self.fixed(inputs[0])[..] else { return None };
                let [groups, size] = self.fixed(inputs[3])[..] else { return None };
                let shape = ScanShape { heads, dim, size, groups };
                let inputs = self.slots(node, [0, 1, 3, 4], task);
                (op.state, Recurrence::Scan { inputs, shape, rates, skip })
            }
            Op::GatedDeltaRule(op) => {
                let [key_heads, key_dim] = self.fixed(inputs[1])[..] else { return None };
                let [heads, value_dim] = self.fixed(inputs[2])[..] else { return None };
                let [_, decay_dim] = self.fixed(inputs[3])[..] else { return None };
                let grouped = op.key_heads == KeyHeads::Grouped;
                let scale = op.scale;
                let rule = DeltaRule { heads, key_heads, grouped, key_dim, value_dim, decay_dim, scale };
                let inputs = self.slots(node, [0, 1, 2, 3, 4], task);
                (op.state, Recurrence::Delta { inputs, rule })
            }
            Op::GatedLinearAttention(op) => {
                let [heads, key_dim] = self.fixed(inputs[1])[..] else { return None };
                let [_, value_dim] = self.fixed(inputs[2])[..] else { return None };
                let first = if op.head_decays.is_some() { 3 } else { 4 };
                let bonus = match inputs.get(first) {
                    Some(bonus) => Some(weight(Some(bonus))?),
                    None => None,
                };
                let shape = LinearShape { heads, key_dim, value_dim, scale: op.scale };
                let head_decays = op.head_decays.clone();
                let decays = if first == 4 { Some(self.slots(node, [3], task)[0]) } else { None };
                let inputs = self.slots(node, [0, 1, 2], task);
                (op.state, Recurrence::Linear { inputs, decays, head_decays, bonus, shape })
            }
            Op::Rwkv7(op) => {
                let [heads, dim] = self.fixed(inputs[0])[..] else { return None };
                let inputs = self.slots(node, [0, 1, 2, 3, 4, 5], task);
                (op.state, Recurrence::Rwkv7 { inputs, shape: Rwkv7 { heads, dim } })
            }
            _ => return None,
        };
        Some(recurrence)
    }

    pub(super) fn block_attention(&mut self, node: &Node, op: &ops::BlockAttention, value: ValueId) {
        let symbol = Symbol::Tokens;
        let task = self.task(symbol);
        let [keys, values] = self.slots(node, [1, 2], task);
        self.push_row_op(symbol, RowOp::CacheWrite { state: op.state, keys, values });
        let heads = self.fixed(node.inputs[0]).first().copied().unwrap_or(1);
        let task = self.program.tasks.len();
        let [queries] = self.slots(node, [0], task);
        let out = self.output_at(value, task);
        let sinks = weight(node.inputs.get(3));
        self.push_task(Task::BlockAttention(BlockAttentionTask { op: *op, heads, sinks, queries, out }));
    }
}
