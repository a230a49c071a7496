//! Pairs of neighbours brought apart once and for all.
//!
//! Plugins make one operation of a rotation whose pairs lie half a head apart. Where a model rotates neighbours, every row of
//! queries and keys would be reordered before and after that, in each layer. But scores do not depend on the order of a head's
//! elements as long as queries and keys have the same, so the rows of the matrices that make both are reordered instead, when
//! they are written. Cached keys then have that order, too; what is saved has the model's own.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use puna_graph::ops::RopeKind;
use puna_graph::{Graph, Node, Op, Operand, StateId, ValueId, WeightId};

/// Order of a head's elements after the first and second elements of its pairs were brought apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadOrder {
    /// Elements that turn; those after them keep their places.
    pub dimensions: usize,
    /// Elements of a head.
    pub width: usize,
}

impl HeadOrder {
    /// Where in the model's own order the element at this place is.
    fn source(self, place: usize) -> usize {
        let (half, inside) = (self.dimensions / 2, place % self.width);
        let of_head = match inside {
            first if first < half => 2 * first,
            second if second < 2 * half => 2 * (second - half) + 1,
            rest => rest,
        };
        place - inside + of_head
    }

    /// Items of equally many bytes, one for each element of some heads, brought from the model's own order into this.
    pub fn apart(self, items: &[u8], bytes: usize) -> Vec<u8> {
        let place = |place: usize| self.source(place) * bytes;
        (0..items.len() / bytes).flat_map(|to| items[place(to)..][..bytes].iter().copied()).collect()
    }

    /// The way back.
    pub fn together(self, items: &[u8], bytes: usize) -> Vec<u8> {
        let mut all = items.to_vec();
        for (from, item) in items.chunks_exact(bytes).enumerate() {
            all[self.source(from) * bytes..][..bytes].copy_from_slice(item);
        }
        all
    }
}

/// What of a segment has its pairs apart.
#[derive(Default)]
pub struct Orders {
    /// Tensors whose rows, or elements, are reordered when they are written.
    pub(super) weights: HashMap<WeightId, HeadOrder>,
    /// Rotations whose operand and result have their pairs apart, as indexes of nodes.
    pub(super) rotations: HashSet<usize>,
    /// States whose keys do.
    pub keys: HashMap<StateId, HeadOrder>,
}

/// A rotation of what a product with a tensor makes.
struct Chain {
    rotation: usize,
    order: HeadOrder,
    weights: Vec<WeightId>,
}

/// Finds the states all of whose queries and keys are rotated products.
pub fn find(graph: &Graph, nodes: Range<usize>) -> Orders {
    let uses = Uses::of(graph);
    let mut orders = Orders::default();
    for index in 0..graph.states.len() {
        let state = StateId(index as u32);
        if let Some(chains) = chains_of(graph, &nodes, &uses, state) {
            for chain in chains {
                orders.keys.insert(state, chain.order);
                orders.rotations.insert(chain.rotation);
                orders.weights.extend(chain.weights.iter().map(|weight| (*weight, chain.order)));
            }
        }
    }
    orders
}

/// The chains to the queries and keys of a state, if all can have their pairs apart in the same way.
fn chains_of(graph: &Graph, nodes: &Range<usize>, uses: &Uses, state: StateId) -> Option<Vec<Chain>> {
    let mut chains = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        match &node.op {
            Op::Attention(op) if op.state == state => {}
            Op::BlockAttention(op) if op.state == state => return None,
            _ => continue,
        }
        if !nodes.contains(&index) {
            return None;
        }
        let [queries, keys] = [0, 1].map(|input| chain(graph, nodes, uses, node, input));
        chains.extend([queries?, keys?]);
    }
    let first = chains.first()?.order;
    chains.iter().all(|chain| chain.order == first).then_some(chains)
}

/// The chain to an input of an attention.
fn chain(graph: &Graph, nodes: &Range<usize>, uses: &Uses, attention: &Node, input: usize) -> Option<Chain> {
    let inside = |operand: Operand| match operand {
        Operand::Value(value) if nodes.contains(&value.index()) => Some(value),
        _ => None,
    };
    let turned = inside(attention.inputs[input])?;
    // Layers may share keys, but nothing else may read them.
    if uses.elsewhere.contains(&(turned, input)) {
        return None;
    }
    let rotation = &graph.nodes[turned.index()];
    let Op::Rope(rope) = &rotation.op else { return None };
    let heads = inside(rotation.inputs[0])?;
    let reshape = &graph.nodes[heads.index()];
    let Op::Reshape(_) = &reshape.op else { return None };
    let rows = inside(reshape.inputs[0])?;
    let product = &graph.nodes[rows.index()];
    let Op::MatMul(_) = &product.op else { return None };
    let is_own = |value: ValueId| uses.values.get(&value) == Some(&1);
    if rope.kind != RopeKind::Interleaved || !is_own(heads) || !is_own(rows) {
        return None;
    }
    let tensors = product.inputs.iter().enumerate().filter(|(place, _)| *place != 1);
    let tensors: Option<Vec<WeightId>> = tensors
        .map(|(_, operand)| match operand {
            Operand::Weight(weight) if uses.weights.get(weight) == Some(&1) => {
                // Only what is a row of whole blocks can go to another place.
                let declared = &graph.weights[weight.index()];
                let is_matrix = declared.shape.len() == 2;
                (is_matrix || declared.dtype.format().block == 1).then_some(*weight)
            }
            _ => None,
        })
        .collect();
    let width = graph.value_type(turned).width()? as usize;
    let order = HeadOrder { dimensions: rope.dimensions as usize, width };
    Some(Chain { rotation: turned.index(), order, weights: tensors? })
}

/// How often things are read.
#[derive(Default)]
struct Uses {
    values: HashMap<ValueId, u32>,
    weights: HashMap<WeightId, u32>,
    /// Values that something else than this input of attentions reads: 0 for queries, 1 for keys.
    elsewhere: HashSet<(ValueId, usize)>,
}

impl Uses {
    fn of(graph: &Graph) -> Self {
        let mut uses = Self::default();
        let outputs = graph.outputs.iter().map(|(_, value)| (Operand::Value(*value), None));
        let inputs = graph.nodes.iter().flat_map(|node| {
            let is_attention = matches!(node.op, Op::Attention(_));
            node.inputs
                .iter()
                .enumerate()
                .map(move |(place, operand)| (*operand, is_attention.then_some(place)))
        });
        for (operand, place) in inputs.chain(outputs) {
            match operand {
                Operand::Value(value) => {
                    *uses.values.entry(value).or_default() += 1;
                    let others = [0, 1].into_iter().filter(|input| place != Some(*input));
                    uses.elsewhere.extend(others.map(|input| (value, input)));
                }
                Operand::Weight(weight) => *uses.weights.entry(weight).or_default() += 1,
                Operand::Input(_) => {}
            }
        }
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_go_apart_and_together() {
        let order = HeadOrder { dimensions: 4, width: 6 };
        let items: Vec<u8> = (0..24).collect();
        let apart = order.apart(&items, 2);
        // Elements 0, 2, 1, 3, 4, 5 of each head.
        assert_eq!(apart[..12], [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11]);
        assert_eq!(apart[12..16], [12, 13, 16, 17]);
        assert_eq!(order.together(&apart, 2), items);
    }
}
