//! Other arrangements of the same elements.

use puna_graph::{Dim, Node};

use super::Translator;
use crate::ir::Port;

impl Translator<'_> {
    pub(super) fn reshape_node(&mut self, node: &Node, extents: &[u32]) -> Port {
        let x = self.operand(node, 0);
        let mut shape = vec![match node.ty.shape.first() {
            Some(Dim::Fixed(extent)) => *extent as i64,
            _ => 0,
        }];
        shape.extend(extents.iter().map(|extent| *extent as i64));
        self.reshape(x, &shape)
    }

    pub(super) fn slice_node(&mut self, node: &Node, start: u32, length: u32) -> Port {
        let x = self.operand(node, 0);
        self.slice(x, start as i64, start as i64 + length as i64, -1)
    }

    pub(super) fn concat_node(&mut self, node: &Node) -> Port {
        let (a, b) = (self.operand(node, 0), self.operand(node, 1));
        self.concat(&[a, b], -1)
    }

    pub(super) fn repeat_heads(&mut self, node: &Node, times: u32) -> Port {
        let x = self.operand(node, 0);
        if times == 1 {
            return x;
        }
        let Some(Dim::Fixed(heads)) = self.operand_type(node, 0).shape.get(1).copied() else { return x };
        let copies: Vec<i64> =
            (0..heads as i64).flat_map(|head| std::iter::repeat_n(head, times as usize)).collect();
        let copies = self.integers(&copies);
        self.gather(x, copies, 1, 0)
    }
}
