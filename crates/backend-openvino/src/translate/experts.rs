//! Mixture of experts.

use puna_graph::ops::{ExpertWeights, Gating, RouteExperts};
use puna_graph::{Dim, Node, Op, Operand};

use super::{Translator, trailing};
use crate::ir::{Element, Port};

impl Translator<'_> {
    fn scores(&mut self, gating: Gating, logits: Port) -> Port {
        match gating {
            Gating::Softmax => self.softmax(logits, -1),
            Gating::Sigmoid => self.unary("Sigmoid", "opset1", logits),
            Gating::SoftmaxOfChosen => logits,
            Gating::SqrtSoftplus => {
                let x = self.function(puna_graph::ops::Function::Softplus, logits);
                self.unary("Sqrt", "opset1", x)
            }
        }
    }

    /// Values and indexes of the largest elements of the last axis; of equals the first.
    fn largest(&mut self, x: Port, count: u32) -> [Port; 2] {
        let count = self.integer(count as i64);
        let attributes = [
            ("axis", "-1".to_owned()),
            ("mode", "max".to_owned()),
            ("sort", "value".to_owned()),
            ("stable", "true".to_owned()),
            ("index_element_type", "i32".to_owned()),
        ];
        let outputs = [Element::F32, Element::I32];
        let ports = self.model.op_many("TopK", "opset11", &attributes, &[x, count], &outputs);
        [ports[0], ports[1]]
    }

    pub(super) fn route_experts(&mut self, node: &Node, op: &RouteExperts) -> Port {
        let logits = self.operand(node, 0);
        let mut scores = self.scores(op.gating, logits);
        if node.inputs.len() > 1 {
            let bias = self.operand(node, 1);
            scores = self.add(scores, bias);
        }
        let experts = self.operand_type(node, 0).width().unwrap_or(1) as i64;
        if let Some(groups) = op.groups {
            let (count, width) = (groups.count as i64, experts / groups.count as i64);
            let split = self.reshape(scores, &[0, count, width]);
            let [best, _] = self.largest(split, width.min(2) as u32);
            let strength = self.reduce("ReduceSum", best, -1, false);
            let [_, chosen] = self.largest(strength, groups.used);
            // One where a group is chosen.
            let hot = self.one_hot(chosen, count);
            let hot = self.reduce("ReduceSum", hot, 1, false);
            let one = self.number(1.0);
            let out = self.arithmetic("Subtract", hot, one);
            let out = self.times(out, EXCLUDED);
            let out = self.unsqueeze(out, -1);
            let limited = self.add(split, out);
            scores = self.reshape(limited, &[0, experts]);
        }
        let [_, indexes] = self.largest(scores, op.used);
        indexes
    }

    /// `[rows, n]` integers to `[rows, n, depth]`, one at each integer's place.
    fn one_hot(&mut self, indexes: Port, depth: i64) -> Port {
        let places = self.integers(&(0..depth).collect::<Vec<_>>());
        let indexes = self.model.convert(indexes, Element::I64);
        let indexes = self.unsqueeze(indexes, -1);
        let equal = self.model.op(
            "Equal",
            "opset1",
            &[("auto_broadcast", "numpy".to_owned())],
            &[indexes, places],
            Element::Boolean,
        );
        self.model.convert(equal, Element::F32)
    }

    pub(super) fn expert_weights(&mut self, node: &Node, op: &ExpertWeights) -> Port {
        let (logits, experts) = (self.operand(node, 0), self.operand(node, 1));
        let scores = self.scores(op.gating, logits);
        let mut shares = self.gather(scores, experts, 1, 1);
        if op.gating == Gating::SoftmaxOfChosen {
            shares = self.softmax(shares, -1);
        }
        if op.normalise {
            let total = self.reduce("ReduceSum", shares, -1, true);
            let least = self.number(LEAST_SUM);
            let total = self.arithmetic("Maximum", total, least);
            shares = self.arithmetic("Divide", shares, total);
        }
        shares = self.times(shares, op.scale);
        if node.inputs.len() > 2 {
            let factors = self.operand(node, 2);
            let factors = self.gather(factors, experts, 0, 0);
            shares = self.multiply(shares, factors);
        }
        shares
    }

    /// All experts multiply all rows and the selected results are taken, unless an expert may be selected twice.
    pub(super) fn matmul_experts(&mut self, node: &Node) -> Port {
        let (x, selected) = (self.operand(node, 1), self.operand(node, 2));
        let ty = self.operand_type(node, 0);
        let Some(Dim::Fixed(experts)) = ty.shape.first().copied() else { return x };
        let spread = self.operand_type(node, 1).shape.len() == 3;
        let weight = self.factor(node, 0);
        let extents = [trailing(&ty)[0], trailing(&ty)[1]];
        let every = if !spread {
            // One product for all experts.
            let flat = self.reshape(weight, &[experts as i64 * extents[0], extents[1]]);
            let all = self.product_of(x, flat, true);
            let by_expert = self.reshape(all, &[0, experts as i64, extents[0]]);
            return self.gather(by_expert, selected, 1, 1);
        } else if self.may_repeat(node) {
            return self.matmul_gathered(node, weight, x, selected);
        } else {
            // For each row and expert the input that belongs to it, zeros elsewhere.
            let hot = self.one_hot(selected, experts as i64);
            let hot = self.transpose(hot, &[0, 2, 1]);
            let rows = self.product_of(hot, x, false);
            let rows = self.transpose(rows, &[1, 0, 2]);
            self.product_of(rows, weight, true)
        };
        let rows_first = self.transpose(every, &[1, 0, 2]);
        self.gather(rows_first, selected, 1, 1)
    }

    fn may_repeat(&self, node: &Node) -> bool {
        match node.inputs[2] {
            Operand::Value(value) => {
                matches!(self.graph.nodes[value.index()].op, Op::GroupOfExpert(_))
            }
            _ => true,
        }
    }

    /// A matrix for each row and selection.
    fn matmul_gathered(&mut self, node: &Node, weight: Port, x: Port, selected: Port) -> Port {
        let extents = trailing(&node.ty);
        let width = trailing(&self.operand_type(node, 1)).last().copied().unwrap_or(1);
        let flat = self.integers(&[-1]);
        let selected = self.reshape_to(selected, flat);
        let matrices = self.gather(weight, selected, 0, 0);
        let rows = self.reshape(x, &[-1, 1, width]);
        let product = self.product_of(rows, matrices, true);
        self.reshape(product, &[-1, extents[0], extents[1]])
    }

    pub(super) fn sum_experts(&mut self, node: &Node) -> Port {
        let mut x = self.operand(node, 0);
        if node.inputs.len() > 1 {
            let shares = self.operand(node, 1);
            let shares = self.unsqueeze(shares, -1);
            x = self.multiply(x, shares);
        }
        self.reduce("ReduceSum", x, 1, false)
    }

    pub(super) fn add_expert_bias(&mut self, node: &Node) -> Port {
        let (x, biases, selected) = (self.operand(node, 0), self.operand(node, 1), self.operand(node, 2));
        let biases = self.gather(biases, selected, 0, 0);
        self.add(x, biases)
    }

    pub(super) fn group_of_expert(&mut self, node: &Node, size: u32) -> Port {
        let x = self.operand(node, 0);
        let bytes = (size as i32).to_le_bytes().to_vec();
        let size = self.model.small(&mut self.blob, Element::I32, &[1], bytes);
        self.arithmetic("Divide", x, size)
    }
}

/// Added to the score of experts outside of the chosen groups.
const EXCLUDED: f32 = 1e30;
/// Below it the sum of shares counts as this: the smallest normal half-precision number.
const LEAST_SUM: f32 = 6.103_515_6e-5;
