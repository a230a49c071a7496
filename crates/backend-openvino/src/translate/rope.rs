//! Rotations by position. Cosines and sines come from the host, in double precision until they are stored.

use puna_graph::ops::{Rope, RopeKind};
use puna_graph::{Node, Operand};

use super::{Feed, Translator, trailing};
use crate::ir::Port;

/// Angles per position of the pairs of one kind of rotation.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeTable {
    /// Radians per position, by pair.
    pub frequencies: Vec<f64>,
    /// Factor on cosine and sine.
    pub magnitude: f32,
}

impl Translator<'_> {
    pub(super) fn rope(&mut self, node: &Node, op: &Rope) -> Port {
        let x = self.operand(node, 0);
        let factors = match node.inputs.get(2) {
            Some(Operand::Weight(weight)) => Some(self.decode(*weight)),
            _ => None,
        };
        let table = RopeTable { frequencies: op.frequencies(factors.as_deref()), magnitude: op.magnitude };
        let index = self.ropes.iter().position(|other| *other == table).unwrap_or_else(|| {
            self.ropes.push(table);
            self.ropes.len() - 1
        });
        let (cosines, sines) = (self.feed(Feed::Cosines(index)), self.feed(Feed::Sines(index)));
        let (cosines, sines) = (self.unsqueeze(cosines, 1), self.unsqueeze(sines, 1));
        let extents = trailing(&node.ty);
        let (heads, width) = (extents[0], extents[1]);
        let (dimensions, half) = (op.dimensions as i64, op.dimensions as i64 / 2);
        let turning = if dimensions < width { self.slice(x, 0, dimensions, -1) } else { x };
        let (a, b) = match op.kind {
            RopeKind::Split => (self.slice(turning, 0, half, -1), self.slice(turning, half, dimensions, -1)),
            RopeKind::Interleaved => {
                let pairs = self.reshape(turning, &[0, heads, half, 2]);
                let [a, b] = [0, 1].map(|index| {
                    let index = self.integer(index);
                    self.gather(pairs, index, 3, 0)
                });
                (a, b)
            }
        };
        let (a_cosine, b_sine) = (self.multiply(a, cosines), self.multiply(b, sines));
        let (a_sine, b_cosine) = (self.multiply(a, sines), self.multiply(b, cosines));
        let first = self.arithmetic("Subtract", a_cosine, b_sine);
        let second = self.add(a_sine, b_cosine);
        let mut turned = match op.kind {
            RopeKind::Split => self.concat(&[first, second], -1),
            RopeKind::Interleaved => {
                let (first, second) = (self.unsqueeze(first, -1), self.unsqueeze(second, -1));
                let pairs = self.concat(&[first, second], -1);
                self.reshape(pairs, &[0, heads, dimensions])
            }
        };
        if dimensions < width {
            let rest = self.slice(x, dimensions, width, -1);
            turned = self.concat(&[turned, rest], -1);
        }
        turned
    }
}
