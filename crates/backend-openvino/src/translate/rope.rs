//! Rotations by position. Cosines and sines come from the host, in double precision until they are stored.

use std::ops::Range;

use puna_backend::WeightSource;
use puna_graph::ops::{Rope, RopeKind, RopePlace};
use puna_graph::{Graph, Node, Op, Operand};

use super::{Feed, Translator, decode, trailing};
use crate::ir::Port;

/// Angles per position of the pairs of one kind of rotation.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeTable {
    /// Radians per position, by pair.
    pub frequencies: Vec<f64>,
    /// Factor on cosine and sine.
    pub magnitude: f32,
    /// Which position a row is rotated by.
    pub place: RopePlace,
}

/// The table that a node rotates by.
fn table_of(graph: &Graph, node: &Node, op: &Rope, weights: &dyn WeightSource) -> RopeTable {
    let factors = match node.inputs.get(2) {
        Some(Operand::Weight(weight)) => Some(decode(graph, *weight, weights)),
        _ => None,
    };
    RopeTable { frequencies: op.frequencies(factors.as_deref()), magnitude: op.magnitude, place: op.place }
}

/// The tables that some nodes rotate by, each once, in the order of the nodes.
pub(super) fn tables(graph: &Graph, nodes: Range<usize>, weights: &dyn WeightSource) -> Vec<RopeTable> {
    let mut tables = Vec::new();
    for node in &graph.nodes[nodes] {
        let Op::Rope(op) = &node.op else { continue };
        let table = table_of(graph, node, op, weights);
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables
}

impl Translator<'_> {
    pub(super) fn rope(&mut self, node: &Node, op: &Rope) -> Port {
        let x = self.operand(node, 0);
        let table = table_of(self.graph, node, op, self.weights.as_ref());
        let index = self.ropes.iter().position(|other| *other == table).expect("all are listed");
        let (cosines, sines) = (self.feed(Feed::Cosines(index)), self.feed(Feed::Sines(index)));
        let extents = trailing(&node.ty);
        let width = extents[1];
        let dimensions = op.dimensions as i64;
        // Plugins make one operation of what follows if there are four axes and pairs lie half the width apart.
        let mut x = x;
        let reorders = op.kind == RopeKind::Interleaved && !self.orders.rotations.contains(&self.index);
        if reorders {
            x = self.reordered(x, dimensions, width, |place, half| match place < half {
                true => 2 * place,
                false => 2 * (place - half) + 1,
            });
        }
        let x = self.unsqueeze(x, 2);
        let (turning, rest) = match dimensions < width {
            true => {
                let parts = self.split(x, &[dimensions, width - dimensions], 3);
                (parts[0], Some(parts[1]))
            }
            false => (x, None),
        };
        let halves = self.split(turning, &[dimensions / 2, dimensions / 2], 3);
        let minus = self.floats_constant(&[], &[-1.0]);
        let opposite = self.multiply(halves[1], minus);
        let crossed = self.concat(&[opposite, halves[0]], -1);
        let (along, across) = (self.multiply(turning, cosines), self.multiply(crossed, sines));
        let mut turned = self.add(along, across);
        if let Some(rest) = rest {
            turned = self.concat(&[turned, rest], -1);
        }
        let turned = self.squeeze(turned, 2);
        match reorders {
            false => turned,
            true => self.reordered(turned, dimensions, width, |place, half| place / 2 + place % 2 * half),
        }
    }

    /// Elements of the last of three axes in another order: each place of the first `dimensions` takes the element that
    /// `from` says.
    fn reordered(&mut self, x: Port, dimensions: i64, width: i64, from: fn(i64, i64) -> i64) -> Port {
        let places =
            (0..width).map(|place| if place < dimensions { from(place, dimensions / 2) } else { place });
        let places = self.integers(&places.collect::<Vec<_>>());
        self.gather(x, places, 2, 0)
    }
}
