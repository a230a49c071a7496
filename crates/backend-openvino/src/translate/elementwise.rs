//! Operations on each element or row alone.

use puna_graph::Node;
use puna_graph::ops::{ClampedGlu, Function, GateBound, PositionScale, Xielu};

use super::{Feed, Translator, trailing};
use crate::ir::{Element, Port};

impl Translator<'_> {
    pub(super) fn binary(&mut self, kind: &'static str, node: &Node) -> Port {
        let (a, b) = (self.operand(node, 0), self.operand(node, 1));
        self.arithmetic(kind, a, b)
    }

    pub(super) fn scale(&mut self, node: &Node, factor: f32) -> Port {
        let x = self.operand(node, 0);
        self.times(x, factor)
    }

    pub(super) fn soft_cap(&mut self, node: &Node, cap: f32) -> Port {
        let x = self.operand(node, 0);
        self.capped(x, cap)
    }

    /// `cap · tanh(x / cap)`
    pub(super) fn capped(&mut self, x: Port, cap: f32) -> Port {
        let divisor = self.number(cap);
        let share = self.arithmetic("Divide", x, divisor);
        let bent = self.unary("Tanh", "opset1", share);
        self.times(bent, cap)
    }

    pub(super) fn clamp(&mut self, node: &Node, low: f32, high: f32) -> Port {
        let x = self.operand(node, 0);
        self.bounded(x, Some(low), Some(high))
    }

    /// Bounds that are not there or infinite do nothing.
    fn bounded(&mut self, x: Port, low: Option<f32>, high: Option<f32>) -> Port {
        let mut x = x;
        for (kind, bound) in [("Maximum", low), ("Minimum", high)] {
            if let Some(bound) = bound.filter(|bound| bound.is_finite()) {
                let bound = self.number(bound);
                x = self.arithmetic(kind, x, bound);
            }
        }
        x
    }

    pub(super) fn function(&mut self, function: Function, x: Port) -> Port {
        match function {
            Function::Silu => self.unary("Swish", "opset4", x),
            Function::Gelu => {
                let mode = [("approximation_mode", "TANH".to_owned())];
                self.model.op("Gelu", "opset7", &mode, &[x], Element::F32)
            }
            Function::Relu => self.unary("ReLU", "opset1", x),
            Function::ReluSquared => {
                let x = self.unary("ReLU", "opset1", x);
                self.multiply(x, x)
            }
            Function::Sigmoid => self.unary("Sigmoid", "opset1", x),
            Function::Tanh => self.unary("Tanh", "opset1", x),
            Function::Exp => self.unary("Exp", "opset1", x),
            Function::Softplus => self.softplus(x),
        }
    }

    /// `max(x, 0) + ln(1 + exp(-|x|))`: the plugins' own operation has other limits.
    fn softplus(&mut self, x: Port) -> Port {
        let positive = self.unary("ReLU", "opset1", x);
        let size = self.unary("Abs", "opset1", x);
        let negative = self.times(size, -1.0);
        let power = self.unary("Exp", "opset1", negative);
        let one = self.number(1.0);
        let sum = self.add(power, one);
        let logarithm = self.unary("Log", "opset1", sum);
        self.add(positive, logarithm)
    }

    pub(super) fn glu(&mut self, node: &Node, function: Function) -> Port {
        let (gate, up) = (self.operand(node, 0), self.operand(node, 1));
        let gate = self.function(function, gate);
        self.multiply(gate, up)
    }

    pub(super) fn clamped_glu(&mut self, node: &Node, op: &ClampedGlu) -> Port {
        let (gate, up) = (self.operand(node, 0), self.operand(node, 1));
        let limit = op.limit;
        let up = self.bounded(up, Some(-limit), Some(limit));
        match op.bound {
            GateBound::BeforeSilu => {
                let gate = self.bounded(gate, None, Some(limit));
                let gate = self.function(Function::Silu, gate);
                self.multiply(gate, up)
            }
            GateBound::AfterSilu => {
                let gate = self.function(Function::Silu, gate);
                let gate = self.bounded(gate, None, Some(limit));
                self.multiply(gate, up)
            }
            GateBound::Shifted { alpha } => {
                let gate = self.bounded(gate, None, Some(limit));
                let steep = self.times(gate, alpha);
                let share = self.function(Function::Sigmoid, steep);
                let gate = self.multiply(gate, share);
                let one = self.number(1.0);
                let up = self.add(up, one);
                self.multiply(gate, up)
            }
        }
    }

    pub(super) fn xielu(&mut self, node: &Node, op: &Xielu) -> Port {
        let x = self.operand(node, 0);
        let positive = Function::Softplus.apply(op.alpha_p as f64);
        let negative = op.beta as f64 + Function::Softplus.apply(op.alpha_n as f64);
        // Each side is zero where the other one holds.
        let above = self.unary("ReLU", "opset1", x);
        let square = self.multiply(above, above);
        let square = self.times(square, positive as f32);
        let below = self.bounded(x, None, Some(0.0));
        let small = self.bounded(below, None, Some(op.epsilon));
        let power = self.unary("Exp", "opset1", small);
        let one = self.number(1.0);
        let power = self.arithmetic("Subtract", power, one);
        let curve = self.arithmetic("Subtract", power, below);
        let curve = self.times(curve, negative as f32);
        let line = self.times(x, op.beta);
        let sum = self.add(square, curve);
        self.add(sum, line)
    }

    pub(super) fn sum_elements(&mut self, node: &Node) -> Port {
        let x = self.operand(node, 0);
        self.reduce("ReduceSum", x, -1, false)
    }

    pub(super) fn scale_rows(&mut self, node: &Node) -> Port {
        let (x, factors) = (self.operand(node, 0), self.operand(node, 1));
        let factors = self.unsqueeze(factors, -1);
        self.multiply(x, factors)
    }

    pub(super) fn position_scale(&mut self, node: &Node, op: &PositionScale) -> Port {
        let x = self.operand(node, 0);
        let mut factors = self.feed(Feed::PositionScale(*op));
        for _ in 2..self.operand_type(node, 0).shape.len() {
            factors = self.unsqueeze(factors, -1);
        }
        self.multiply(x, factors)
    }

    pub(super) fn weighted_sum(&mut self, node: &Node) -> Port {
        let weights = self.operand(node, 0);
        let mut sum = None;
        for index in 1..node.inputs.len() {
            let value = self.operand(node, index);
            let weight = self.slice(weights, index as i64 - 1, index as i64, -1);
            let term = self.multiply(value, weight);
            sum = Some(sum.map_or(term, |sum| self.add(sum, term)));
        }
        sum.expect("there is at least one value")
    }

    pub(super) fn interpolate(&mut self, node: &Node) -> Port {
        let (a, b, shares) = (self.operand(node, 0), self.operand(node, 1), self.operand(node, 2));
        let width = trailing(&node.ty);
        let change = self.arithmetic("Subtract", b, a);
        let (a, change) = (self.unsqueeze(a, 1), self.unsqueeze(change, 1));
        let change = self.multiply(change, shares);
        let mixed = self.add(change, a);
        self.reshape(mixed, &[0, width[0]])
    }
}
