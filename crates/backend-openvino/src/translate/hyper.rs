//! Hyper-connections: several residual streams, mixed before and after each branch.

use puna_graph::Node;
use puna_graph::ops::{HyperRead, HyperWrite};

use super::{Translator, trailing};
use crate::ir::Port;

impl Translator<'_> {
    /// `[Tokens, width]`: the sum of the streams, each with its weight.
    pub(super) fn hyper_read(&mut self, node: &Node, op: &HyperRead) -> Port {
        let streams = self.operand(node, 0);
        let count = trailing(&self.operand_type(node, 0))[0];
        let logits = self.mixing_logits(node, 1, 0, 0..count);
        let weights = self.shares_of_streams(logits, 1.0, op.epsilon);
        let weighted = self.multiply(streams, weights);
        self.reduce("ReduceSum", weighted, 1, false)
    }

    /// `[Tokens, n, width]`: the streams, mixed among each other, and each one's share of a branch's result.
    pub(super) fn hyper_write(&mut self, node: &Node, op: &HyperWrite) -> Port {
        let (streams, result) = (self.operand(node, 0), self.operand(node, 1));
        let count = trailing(&self.operand_type(node, 0))[0];
        let logits = self.mixing_logits(node, 2, 1, count..2 * count);
        let shares = self.shares_of_streams(logits, op.magnitude, op.offset);
        let result = self.unsqueeze(result, 1);
        let brought = self.multiply(result, shares);
        let kept = match op.rounds {
            Some(rounds) => {
                let logits = self.mixing_logits(node, 2, 2, 2 * count..(2 + count) * count);
                let logits = self.reshape(logits, &[0, count, count]);
                let mixture = self.doubly_stochastic(logits, op.epsilon, rounds);
                let by_destination = self.transpose(mixture, &[0, 2, 1]);
                self.product_of(by_destination, streams, false)
            }
            None => streams,
        };
        self.add(kept, brought)
    }

    /// `[Tokens, columns]`: some columns of the logits, input `at`, times the scale of their part, plus their bases; the
    /// inputs after it.
    fn mixing_logits(&mut self, node: &Node, at: usize, part: i64, columns: std::ops::Range<i64>) -> Port {
        let [logits, scales, bases] = [at, at + 1, at + 2].map(|index| self.operand(node, index));
        let logits = self.slice(logits, columns.start, columns.end, 1);
        let scale = self.slice(scales, part, part + 1, 0);
        let bases = self.slice(bases, columns.start, columns.end, 0);
        let scaled = self.multiply(logits, scale);
        self.add(scaled, bases)
    }

    /// `magnitude · sigmoid(logits) + offset`, `[Tokens, n]` to `[Tokens, n, 1]`.
    fn shares_of_streams(&mut self, logits: Port, magnitude: f32, offset: f32) -> Port {
        let shares = self.unary("Sigmoid", "opset1", logits);
        let shares = self.times(shares, magnitude);
        let offset = self.number(offset);
        let shares = self.add(shares, offset);
        self.unsqueeze(shares, -1)
    }

    /// Weights `[Tokens, sources, destinations]` whose rows and columns have sums of almost one.
    fn doubly_stochastic(&mut self, logits: Port, epsilon: f32, rounds: u32) -> Port {
        let epsilon = self.number(epsilon);
        let softmax = self.softmax(logits, -1);
        let mut mixture = self.add(softmax, epsilon);
        for round in 0..rounds {
            let axes = if round > 0 { &[2, 1][..] } else { &[1] };
            for axis in axes {
                let total = self.reduce("ReduceSum", mixture, *axis, true);
                let total = self.add(total, epsilon);
                mixture = self.arithmetic("Divide", mixture, total);
            }
        }
        mixture
    }
}
