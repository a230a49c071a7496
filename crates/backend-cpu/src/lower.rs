//! From the nodes of a segment to the tasks of a program.

mod recurrent;

use std::collections::HashMap;
use std::sync::Arc;

use puna_backend::{Bounds, Segment};
use puna_graph::ops::{self, Function, GateBound, alibi_slope};
use puna_graph::{Dim, Graph, Input, Node, Op, Operand, StateDecl, Symbol, Type, ValueId, WeightId};

use crate::kernels::activation::{Binary, Unary};
use crate::kernels::attention::Heads;
use crate::kernels::matmul::ActivationFormat;
use crate::kernels::norm::NormKind;
use crate::kernels::rope::Rope;
use crate::row_ops::{Operands, Prepared, RowOp};
use crate::tasks::{AttentionTask, EvaluateTask, ExpertsTask, MatMulTask, Task};
use crate::weights::Weights;
use puna_backend::arena::{Arena, SlotId};

/// A segment's tasks and the memory they work in.
#[derive(Debug)]
pub struct Program {
    /// In order of execution.
    pub tasks: Vec<Task>,
    /// Places of the values.
    pub arena: Arena,
    /// Values that come from earlier segments.
    pub inputs: Vec<(ValueId, SlotId)>,
    /// Values that leave the segment.
    pub outputs: Vec<(ValueId, SlotId)>,
    /// The distinct attention plans of a step: heads and cache group.
    pub plans: Vec<(Heads, usize)>,
}

/// Rotation of a node, in the kernels' terms, with its frequencies.
pub fn rotation(graph: &Graph, node: &Node, rope: &ops::Rope, weights: &Weights) -> (Rope, Vec<f64>) {
    let factors = match node.inputs.get(2) {
        Some(Operand::Weight(weight)) => Some(weights.vector(*weight)),
        _ => None,
    };
    let head_dim = graph.operand_type(node.inputs[0]).width().unwrap_or(0) as usize;
    let kernel = Rope { kind: rope.kind, dims: rope.dimensions as usize, offset: 0, head_dim };
    (kernel, rope.frequencies(factors))
}

/// Lowers a segment for steps within `bounds`.
pub fn lower(segment: &Segment, weights: &Weights, bounds: Bounds) -> Program {
    let program = Program {
        tasks: Vec::new(),
        arena: Arena::default(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        plans: Vec::new(),
    };
    let graph = segment.graph.clone();
    let mut lowering = Lowering {
        graph,
        weights,
        bounds,
        program,
        slots: HashMap::new(),
        tables: Vec::new(),
        prepared: None,
    };
    for value in &segment.inputs {
        let slot = lowering.value_slot(*value);
        lowering.program.inputs.push((*value, slot));
    }
    for index in segment.nodes.clone() {
        lowering.node(index);
    }
    let last = lowering.program.tasks.len();
    for value in &segment.outputs {
        let slot = lowering.slots[value];
        lowering.program.arena.touch(slot, last);
        lowering.program.outputs.push((*value, slot));
    }
    lowering.program.arena.lay_out();
    lowering.program
}

/// A table of sines and cosines: parameters, frequencies, magnitude, positions, slot.
type RopeTable = (Rope, Vec<f64>, f32, ops::RopePlace, SlotId);

struct Lowering<'a> {
    graph: Arc<Graph>,
    weights: &'a Weights,
    bounds: Bounds,
    program: Program,
    slots: HashMap<ValueId, SlotId>,
    /// Tables of sines and cosines made so far.
    tables: Vec<RopeTable>,
    /// The activation that the last task's matrices read, for further matrices to join.
    prepared: Option<ValueId>,
}

impl Lowering<'_> {
    /// Index of the task that is being filled or comes next.
    fn task(&self, symbol: Symbol) -> usize {
        match self.program.tasks.last() {
            Some(Task::Rows { symbol: open, .. }) if *open == symbol => self.program.tasks.len() - 1,
            _ => self.program.tasks.len(),
        }
    }

    fn bound(&self, symbol: Symbol) -> usize {
        match symbol {
            Symbol::Tokens | Symbol::EncoderTokens => self.bounds.tokens as usize,
            Symbol::Outputs => self.bounds.outputs as usize,
        }
    }

    fn symbol(ty: &Type) -> Symbol {
        match ty.shape.first() {
            Some(Dim::Of(symbol)) => *symbol,
            _ => Symbol::Tokens,
        }
    }

    /// A new slot of `width` numbers a row, first used by the task that comes or is open.
    fn new_slot(&mut self, symbol: Symbol, width: usize) -> SlotId {
        let task = self.task(symbol);
        let bytes = self.bound(symbol) * width * 4;
        self.program.arena.add(symbol, width, bytes, task)
    }

    /// The slot of a value, made if the value is new.
    fn value_slot(&mut self, value: ValueId) -> SlotId {
        if let Some(slot) = self.slots.get(&value) {
            return *slot;
        }
        let ty = self.graph.value_type(value).clone();
        let slot = self.new_slot(Self::symbol(&ty), ty.row_elements());
        self.slots.insert(value, slot);
        slot
    }

    /// The slot of a value that the current task reads.
    fn read(&mut self, operand: Operand, task: usize) -> SlotId {
        let Operand::Value(value) = operand else { unreachable!("operand {operand:?} is no value") };
        let slot = self.value_slot(value);
        self.program.arena.touch(slot, task);
        slot
    }

    fn push_row_op(&mut self, symbol: Symbol, op: RowOp) {
        self.prepared = None;
        if let Some(Task::Rows { symbol: open, ops }) = self.program.tasks.last_mut()
            && *open == symbol
        {
            ops.push(op);
            return;
        }
        self.program.tasks.push(Task::Rows { symbol, ops: vec![op] });
    }

    fn push_task(&mut self, task: Task) {
        self.prepared = None;
        self.program.tasks.push(task);
    }

    fn node(&mut self, index: usize) {
        let graph = self.graph.clone();
        let node = &graph.nodes[index];
        let value = ValueId(index as u32);
        let symbol = Self::symbol(&node.ty);
        match &node.op {
            Op::Reshape(_) => {
                let task = self.program.tasks.len();
                let slot = self.read(node.inputs[0], task.saturating_sub(1));
                self.slots.insert(value, slot);
            }
            Op::GatherRows(_) => self.gather_rows(node, value, symbol),
            Op::MatMul(_) => self.matmul(node, value),
            Op::MatMulExperts(_) => self.experts(node, value),
            Op::Attention(attention) => self.attention(node, attention, value),
            Op::Rope(rope) => self.rope(node, rope, value, symbol),
            Op::RmsNorm(norm) => self.norm(node, NormKind::Rms, norm.epsilon, value, symbol),
            Op::LayerNorm(norm) => self.norm(node, NormKind::Layer, norm.epsilon, value, symbol),
            Op::Add(_) => self.binary(node, Binary::Add, value, symbol),
            Op::Mul(_) => self.binary(node, Binary::Multiply, value, symbol),
            Op::Scale(scale) => {
                self.unary(node, Unary::Affine { factor: scale.factor, offset: 0.0 }, value, symbol);
            }
            Op::SoftCap(soft_cap) => self.unary(node, Unary::Softcap { cap: soft_cap.cap }, value, symbol),
            Op::Unary(unary) => match unary_kernel(unary.function) {
                Some(kernel) => self.unary(node, kernel, value, symbol),
                None => self.evaluate_rows(index, node, value, symbol),
            },
            Op::MatMulHeads(_) => self.heads(node, value),
            Op::Glu(glu) => match gate_kernel(glu.function) {
                Some(kernel) => self.binary(node, kernel, value, symbol),
                None => self.evaluate_rows(index, node, value, symbol),
            },
            Op::ShortConvolution(_)
            | Op::TokenShift(_)
            | Op::SelectiveScan(_)
            | Op::GatedDeltaRule(_)
            | Op::GatedLinearAttention(_)
            | Op::Rwkv7(_) => self.recurrence(index, node, value),
            Op::BlockAttention(attention) => self.block_attention(node, attention, value),
            // These read other rows than their own, or what the step brings.
            Op::Features(_)
            | Op::PreferFeatured(_)
            | Op::MeanRows(_)
            | Op::Convolution(_)
            | Op::GroupNorm(_)
            | Op::FillColumns(_)
            | Op::CompressBlocks(_)
            | Op::NgramRows(_) => self.evaluate(index, node, value),
            Op::Concat(_) | Op::RepeatHeads(_) | Op::SumElements(_) | Op::SumExperts(_) => {
                self.rearrange(node, value, symbol);
            }
            Op::Div(_) => self.binary(node, Binary::Divide, value, symbol),
            Op::Clamp(clamp) => {
                self.unary(node, Unary::Clamp { low: clamp.low, high: clamp.high }, value, symbol);
            }
            Op::ClampedGlu(glu) => self.binary(node, bounded_kernel(*glu), value, symbol),
            Op::Slice(slice) => self.slice(node, *slice, value, symbol),
            Op::ScaleRows(_) => self.scale_rows(node, value, symbol),
            Op::AddExpertBias(_) => self.add_expert_bias(node, value, symbol),
            Op::PositionScale(scale) => {
                let task = self.task(symbol);
                let x = self.read(node.inputs[0], task);
                let out = self.value_slot(value);
                self.push_row_op(symbol, RowOp::PositionScale { scale: *scale, x, out });
            }
            Op::AddRow(_)
            | Op::RouteExperts(_)
            | Op::ExpertWeights(_)
            | Op::GroupOfExpert(_)
            | Op::Softmax(_)
            | Op::Interpolate(_)
            | Op::HyperRead(_)
            | Op::HyperWrite(_)
            | Op::ChooseByTable(_)
            | Op::AdapterScale(_)
            | Op::WeightedSum(_)
            | Op::MatchNorm(_)
            | Op::GaussianCut(_)
            | Op::Xielu(_) => self.evaluate_rows(index, node, value, symbol),
        }
    }

    /// Row-wise operation with one input.
    fn unary(&mut self, node: &Node, function: Unary, value: ValueId, symbol: Symbol) {
        let task = self.task(symbol);
        let x = self.read(node.inputs[0], task);
        let out = self.value_slot(value);
        self.push_row_op(symbol, RowOp::Unary { function, x, out });
    }

    fn binary(&mut self, node: &Node, function: Binary, value: ValueId, symbol: Symbol) {
        let task = self.task(symbol);
        let a = self.read(node.inputs[0], task);
        let op = match node.inputs[1] {
            Operand::Weight(number)
                if function == Binary::Multiply && self.weights.vector(number).len() == 1 =>
            {
                let factor = self.weights.vector(number)[0];
                let out = self.value_slot(value);
                RowOp::Unary { function: Unary::Affine { factor, offset: 0.0 }, x: a, out }
            }
            Operand::Weight(vector) => {
                RowOp::WithVector { function, x: a, vector, out: self.value_slot(value) }
            }
            other => {
                let b = self.read(other, task);
                RowOp::Binary { function, a, b, out: self.value_slot(value) }
            }
        };
        self.push_row_op(symbol, op);
    }

    fn slice(&mut self, node: &Node, slice: ops::Slice, value: ValueId, symbol: Symbol) {
        let group = self.graph.operand_type(node.inputs[0]).width().unwrap_or(1) as usize;
        let task = self.task(symbol);
        let x = self.read(node.inputs[0], task);
        let out = self.value_slot(value);
        let (start, length) = (slice.start as usize, slice.length as usize);
        self.push_row_op(symbol, RowOp::Slice { group, start, length, x, out });
    }

    fn scale_rows(&mut self, node: &Node, value: ValueId, symbol: Symbol) {
        let task = self.task(symbol);
        let x = self.read(node.inputs[0], task);
        let factors = match node.inputs[1] {
            Operand::Weight(weight) => Operands::Vector(weight),
            other => Operands::Slot(self.read(other, task)),
        };
        let out = self.value_slot(value);
        self.push_row_op(symbol, RowOp::ScaleGroups { factors, x, out });
    }

    fn add_expert_bias(&mut self, node: &Node, value: ValueId, symbol: Symbol) {
        let Operand::Weight(biases) = node.inputs[1] else {
            unreachable!("`supports` refuses other operands")
        };
        let task = self.task(symbol);
        let x = self.read(node.inputs[0], task);
        let chosen = self.read(node.inputs[2], task);
        let out = self.value_slot(value);
        self.push_row_op(symbol, RowOp::AddExpertBias { biases, chosen, x, out });
    }

    fn norm(&mut self, node: &Node, kind: NormKind, epsilon: f32, value: ValueId, symbol: Symbol) {
        let task = self.task(symbol);
        let x = self.read(node.inputs[0], task);
        let weight_of = |index: usize| match node.inputs.get(index) {
            Some(Operand::Weight(weight)) => Some(*weight),
            _ => None,
        };
        let (weight, bias) = (weight_of(1), weight_of(2));
        let groups = node.ty.row_elements() / node.ty.width().unwrap_or(1).max(1) as usize;
        let out = self.value_slot(value);
        self.push_row_op(symbol, RowOp::Norm { kind, epsilon, groups, weight, bias, x, out });
    }

    fn rope(&mut self, node: &Node, rope: &ops::Rope, value: ValueId, symbol: Symbol) {
        let (kernel, frequencies) = rotation(&self.graph, node, rope, self.weights);
        let place = rope.place;
        let made = self.tables.iter().find(|(other, known, magnitude, other_place, _)| {
            (other.kind, other.dims) == (kernel.kind, kernel.dims)
                && *known == frequencies
                && *magnitude == rope.magnitude
                && *other_place == place
        });
        let table = match made {
            Some((_, _, _, _, slot)) => *slot,
            None => {
                let out = self.new_slot(symbol, kernel.table_width());
                self.tables.push((kernel, frequencies.clone(), rope.magnitude, place, out));
                let magnitude = rope.magnitude;
                let op = RowOp::RopeTable { rope: kernel, frequencies, magnitude, place, out };
                self.push_row_op(symbol, op);
                out
            }
        };
        let task = self.task(symbol);
        self.program.arena.touch(table, task);
        let x = self.read(node.inputs[0], task);
        let out = self.value_slot(value);
        self.push_row_op(symbol, RowOp::Rope { rope: kernel, table, x, out });
    }

    fn gather_rows(&mut self, node: &Node, value: ValueId, symbol: Symbol) {
        match (node.inputs[0], node.inputs[1]) {
            (Operand::Weight(table), Operand::Input(Input::Tokens | Input::EncoderTokens)) => {
                let out = self.value_slot(value);
                self.push_row_op(symbol, RowOp::Embed { table, symbol, out });
            }
            (Operand::Weight(table), Operand::Input(Input::Positions)) => {
                let out = self.value_slot(value);
                self.push_row_op(symbol, RowOp::EmbedPositions { table, out });
            }
            (Operand::Weight(table), chosen @ Operand::Value(_)) => {
                let task = self.task(symbol);
                let chosen = self.read(chosen, task);
                let out = self.value_slot(value);
                self.push_row_op(symbol, RowOp::EmbedChosen { table, chosen, out });
            }
            (x @ Operand::Value(_), Operand::Input(Input::OutputRows)) => {
                // Rows of another axis are read, so they must be complete: a task of its own.
                let task = self.task(symbol);
                let x = self.read(x, task);
                let out = self.value_slot(value);
                self.push_row_op(symbol, RowOp::OutputRows { x, out });
            }
            other => unreachable!("rows of {other:?}: `supports` refuses this"),
        }
    }

    /// Makes the forms of an activation that a matrix may ask for.
    fn prepare(&mut self, x: SlotId, value: ValueId, reader: WeightId) -> Prepared {
        let symbol = self.program.arena.slot(x).symbol;
        let width = self.program.arena.slot(x).width;
        let forms = self.forms(reader, symbol, width);
        let task = self.task(symbol);
        let prepared = Prepared {
            readers: vec![reader],
            forms: forms
                .into_iter()
                .map(|(format, bytes)| (format, self.program.arena.add(symbol, width, bytes, task)))
                .collect(),
        };
        self.push_row_op(symbol, RowOp::Prepare { x, prepared: prepared.clone() });
        self.prepared = Some(value);
        prepared
    }

    /// Formats that a matrix asks for between one row and the bound, with their bytes. That of one row is the one that steps
    /// of any number of rows may be told to use.
    fn forms(&self, reader: WeightId, symbol: Symbol, width: usize) -> Vec<(ActivationFormat, usize)> {
        let rows = self.bound(symbol).max(1);
        let form = |count| self.weights.activation(reader, self.weights.precision(), count);
        let mut forms = vec![(form(1), form(1).bytes(rows, width))];
        for count in 2..=rows {
            let format = form(count);
            let bytes = format.bytes(count, width);
            match forms.iter_mut().find(|(other, _)| *other == format) {
                Some((_, most)) => *most = bytes.max(*most),
                None => forms.push((format, bytes)),
            }
        }
        forms
    }

    fn matmul(&mut self, node: &Node, value: ValueId) {
        let (Operand::Weight(weight), Operand::Value(x_value)) = (node.inputs[0], node.inputs[1]) else {
            unreachable!("`supports` refuses other operands");
        };
        if !self.join(weight, x_value, value) {
            let x_type = self.graph.value_type(x_value).clone();
            let task = self.task(Self::symbol(&x_type));
            let x = self.read(Operand::Value(x_value), task);
            let prepared = self.prepare(x, x_value, weight);
            let task = self.program.tasks.len();
            self.program.arena.touch(x, task);
            for (_, slot) in &prepared.forms {
                self.program.arena.touch(*slot, task);
            }
            let out = self.output_at(value, task);
            let task = MatMulTask { prepared, x, outs: vec![out] };
            self.program.tasks.push(Task::MatMul(task));
            self.prepared = Some(x_value);
        }
        if let Some(Operand::Weight(bias)) = node.inputs.get(2).copied() {
            let out = self.slots[&value];
            let symbol = self.program.arena.slot(out).symbol;
            let task = self.task(symbol);
            self.program.arena.touch(out, task);
            // Later matrices may still join the task before: the bias does not close it.
            let prepared = self.prepared;
            let op = RowOp::WithVector { function: Binary::Add, x: out, vector: bias, out };
            self.push_row_op(symbol, op);
            self.prepared = prepared;
        }
    }

    fn output_at(&mut self, value: ValueId, task: usize) -> SlotId {
        let ty = self.graph.value_type(value).clone();
        let (symbol, width) = (Self::symbol(&ty), ty.row_elements());
        let bytes = self.bound(symbol) * width * 4;
        let slot = self.program.arena.add(symbol, width, bytes, task);
        self.slots.insert(value, slot);
        slot
    }

    /// Lets a matrix join the last matrix task if that reads the same activation and only biases follow it.
    fn join(&mut self, weight: WeightId, x_value: ValueId, value: ValueId) -> bool {
        if self.prepared != Some(x_value) {
            return false;
        }
        let Some(at) = self.program.tasks.iter().rposition(|task| matches!(task, Task::MatMul(_))) else {
            return false;
        };
        let Task::MatMul(task) = &self.program.tasks[at] else { return false };
        let x = task.x;
        let symbol = self.program.arena.slot(x).symbol;
        let width = self.program.arena.slot(x).width;
        let forms = self.forms(weight, symbol, width);
        let out = self.output_at(value, at);
        let mut added = Vec::new();
        let Task::MatMul(task) = &mut self.program.tasks[at] else { return false };
        for (format, bytes) in forms {
            // Readers ask for a form up to different numbers of rows: the slot serves the largest.
            if let Some((_, slot)) = task.prepared.forms.iter().find(|(other, _)| *other == format) {
                self.program.arena.grow(*slot, bytes);
            } else {
                let slot = self.program.arena.add(symbol, width, bytes, at - 1);
                self.program.arena.touch(slot, at);
                added.push((format, slot));
            }
        }
        task.prepared.forms.extend(added);
        task.prepared.readers.push(weight);
        task.outs.push(out);
        let prepared = task.prepared.clone();
        // The operation that prepares is the last one of the task before.
        if let Some(Task::Rows { ops, .. }) = self.program.tasks.get_mut(at - 1)
            && let Some(RowOp::Prepare { prepared: shared, .. }) = ops.last_mut()
        {
            *shared = prepared;
        }
        true
    }

    fn experts(&mut self, node: &Node, value: ValueId) {
        let Operand::Weight(weight) = node.inputs[0] else {
            unreachable!("`supports` refuses other operands")
        };
        let task = self.program.tasks.len();
        let x = self.read(node.inputs[1], task);
        let chosen = self.read(node.inputs[2], task);
        let used = self.graph.operand_type(node.inputs[2]).width().unwrap_or(1) as usize;
        let out = self.output_at(value, task);
        self.push_task(Task::Experts(ExpertsTask { weight, x, chosen: Some(chosen), used, out }));
    }

    /// A matrix per head: experts of which every row uses all, in order.
    fn heads(&mut self, node: &Node, value: ValueId) {
        let Operand::Weight(weight) = node.inputs[0] else {
            unreachable!("`supports` refuses other operands")
        };
        let task = self.program.tasks.len();
        let x = self.read(node.inputs[1], task);
        let used = self.graph.weights[weight.index()].shape[0] as usize;
        let out = self.output_at(value, task);
        self.push_task(Task::Experts(ExpertsTask { weight, x, chosen: None, used, out }));
    }

    fn attention(&mut self, node: &Node, attention: &ops::Attention, value: ValueId) {
        let declared = &self.graph.states[attention.state.index()];
        let symbol = declared.group().writers();
        let task = self.task(symbol);
        let keys = self.read(node.inputs[1], task);
        let values = self.read(node.inputs[2], task);
        self.push_row_op(symbol, RowOp::CacheWrite { state: attention.state, keys, values });

        let declared = &self.graph.states[attention.state.index()];
        let StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } = *declared else {
            unreachable!("attention has keys and values")
        };
        let groups = self.graph.groups();
        let group_of = declared.group();
        let group = groups.iter().position(|group| *group == group_of).unwrap_or(0);
        let heads = match self.graph.operand_type(node.inputs[0]).shape[..] {
            [_, Dim::Fixed(heads), _] => heads,
            _ => unreachable!("queries are split into heads"),
        };
        let shape = Heads {
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            key_dim: key_dim as usize,
            value_dim: value_dim as usize,
        };
        let plan = self.program.plans.iter().position(|plan| *plan == (shape, group)).unwrap_or_else(|| {
            self.program.plans.push((shape, group));
            self.program.plans.len() - 1
        });
        let task = self.program.tasks.len();
        let queries = self.read(node.inputs[0], task);
        let out = self.output_at(value, task);
        let weight_of = |operand: Option<&Operand>| match operand {
            Some(Operand::Weight(weight)) => Some(*weight),
            _ => None,
        };
        let (sinks, table) = attention.optional_inputs(&node.inputs);
        let attention = AttentionTask {
            state: attention.state,
            readers: group_of.readers(),
            heads: shape,
            plan,
            scale: attention.scale,
            soft_cap: attention.soft_cap,
            mask: attention.mask,
            sinks: weight_of(sinks),
            relative: weight_of(table)
                .zip(attention.relative)
                .map(|(table, bias)| relative_table(bias, heads as usize, self.weights.vector(table))),
            alibi: attention
                .alibi_max_bias
                .map(|bias| (0..heads).map(|head| alibi_slope(bias, head, heads) as f32).collect()),
            queries,
            out,
        };
        self.push_task(Task::Attention(attention.clone()));
        self.program.arena.touch(out, task + 1);
        self.push_task(Task::AttentionMerge(attention));
    }

    fn rearrange(&mut self, node: &Node, value: ValueId, symbol: Symbol) {
        let widths = node.inputs.iter().map(|input| self.graph.operand_type(*input).width().unwrap_or(1));
        let widths: Vec<usize> = widths.map(|width| width as usize).collect();
        let task = self.task(symbol);
        let slots: Vec<SlotId> = node.inputs.iter().map(|input| self.read(*input, task)).collect();
        let out = self.value_slot(value);
        let (x, group) = (slots[0], widths[0]);
        self.push_row_op(
            symbol,
            match node.op {
                Op::Concat(_) => RowOp::Concat { a: x, b: slots[1], groups: [group, widths[1]], out },
                Op::RepeatHeads(ops::RepeatHeads { times }) => {
                    RowOp::Repeat { group, times: times as usize, x, out }
                }
                Op::SumElements(_) => RowOp::SumGroups { group, x, out },
                _ => RowOp::SumParts { x, shares: slots.get(1).copied(), out },
            },
        );
    }

    /// An operation that treats each row alone, by its definition.
    fn evaluate_rows(&mut self, index: usize, node: &Node, value: ValueId, symbol: Symbol) {
        let task = self.task(symbol);
        let inputs = node
            .inputs
            .iter()
            .map(|operand| matches!(operand, Operand::Value(_)).then(|| self.read(*operand, task)))
            .collect();
        let out = self.value_slot(value);
        self.push_row_op(symbol, RowOp::Evaluate { node: index, inputs, out });
    }

    /// An operation by its definition.
    fn evaluate(&mut self, index: usize, node: &Node, value: ValueId) {
        let task = self.program.tasks.len();
        let inputs = node
            .inputs
            .iter()
            .map(|operand| matches!(operand, Operand::Value(_)).then(|| self.read(*operand, task)))
            .collect();
        let out = self.output_at(value, task);
        self.push_task(Task::Evaluate(EvaluateTask { node: index, inputs, out }));
    }
}

/// A bias by distance as a row for each head: an entry for each offset of a key up to the reach on both sides.
fn relative_table(bias: ops::RelativeBias, heads: usize, table: &[f32]) -> Vec<f32> {
    let reach = ops::RelativeBias::REACH;
    let entry = |head: usize, offset: i32| table[bias.bucket(offset) * heads + head];
    (0..heads).flat_map(|head| (-reach..=reach).map(move |offset| entry(head, offset))).collect()
}

fn unary_kernel(function: Function) -> Option<Unary> {
    match function {
        Function::Silu => Some(Unary::Silu),
        Function::Gelu => Some(Unary::Gelu),
        Function::Relu => Some(Unary::Relu),
        Function::ReluSquared => Some(Unary::ReluSquared),
        Function::Sigmoid => Some(Unary::Sigmoid),
        Function::Tanh => Some(Unary::Tanh),
        Function::Exp => Some(Unary::Exp),
        Function::Softplus | Function::SignedRoot => None,
    }
}

fn bounded_kernel(glu: ops::ClampedGlu) -> Binary {
    let limit = glu.limit;
    match glu.bound {
        GateBound::BeforeSilu => Binary::SiluGateLimitedBefore { limit },
        GateBound::AfterSilu => Binary::SiluGateLimitedAfter { limit },
        GateBound::Shifted { alpha } => Binary::OaiGate { alpha, limit },
    }
}

fn gate_kernel(function: Function) -> Option<Binary> {
    match function {
        Function::Silu => Some(Binary::SiluGate),
        Function::Gelu => Some(Binary::GeluGate),
        Function::Relu => Some(Binary::ReluGate),
        Function::Sigmoid => Some(Binary::SigmoidGate),
        Function::ReluSquared
        | Function::Tanh
        | Function::Exp
        | Function::Softplus
        | Function::SignedRoot => None,
    }
}
