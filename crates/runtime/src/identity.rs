//! What tells models apart whose sequences were saved.
//!
//! What a sequence's caches hold follows from the operations up to those that keep something, from the weights and from how
//! strongly adapters count. What comes after (the last layer's end, the logits, states that are handed out for drafts)
//! changes nothing of it, so a sequence that was saved with something to guess ahead fits the same model without.

use std::collections::{HashMap, HashSet};

use puna_backend::WeightSource;
use puna_graph::ops::OpDef;
use puna_graph::{Graph, Operand, ValueId, WeightId};

use crate::{Checksum, Model};

/// Places of each weight, from its first to its last bytes, that are looked at, and bytes at each: enough to tell two trainings
/// of one architecture apart, also where some rows alone were trained, without reading all of a large file.
const PLACES: usize = 32;
const LOOKED_AT: usize = 64;

/// What a model is to its saved sequences.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Identity {
    /// Value of `general.architecture`.
    pub(crate) architecture: String,
    /// Layers, and numbers in an embedding: for people.
    pub(crate) layers: u32,
    pub(crate) embedding: u32,
    /// Checksums of the operations with all attributes, and of names and shapes of weights.
    pub(crate) computation: u64,
    /// Checksum of the number formats of weights.
    pub(crate) formats: u64,
    /// Checksum of some bytes of every weight.
    pub(crate) contents: u64,
    /// Checksum of how strongly adapters count; 0 if none can be switched.
    pub(crate) adapters: u64,
}

impl Identity {
    /// What distinguishes it from another one, as "this instead of that"; none if nothing does.
    pub(crate) fn difference(&self, other: &Identity) -> Option<String> {
        let pairs =
            [("layers", self.layers, other.layers), ("embedding length", self.embedding, other.embedding)];
        if self.architecture != other.architecture {
            return Some(format!("architecture '{}' instead of '{}'", self.architecture, other.architecture));
        }
        if let Some((what, own, other)) = pairs.into_iter().find(|(_, own, other)| own != other) {
            return Some(format!("{what} {own} instead of {other}"));
        }
        let sums = [
            (
                "other operations or shapes of weights (another file, overrides or adapters)",
                self.computation,
                other.computation,
            ),
            ("other number formats of weights (another quantization)", self.formats, other.formats),
            (
                "other numbers in its weights (another training or quantization)",
                self.contents,
                other.contents,
            ),
            ("adapters of other strengths", self.adapters, other.adapters),
        ];
        sums.into_iter().find(|(_, own, other)| own != other).map(|(what, _, _)| what.to_owned())
    }

    /// A number for all of it.
    pub(crate) fn value(&self) -> u64 {
        let mut hash = Checksum::default();
        hash.add(self.architecture.as_bytes());
        hash.add(&self.layers.to_le_bytes());
        hash.add(&self.embedding.to_le_bytes());
        for sum in [self.computation, self.formats, self.contents, self.adapters] {
            hash.add(&sum.to_le_bytes());
        }
        hash.value()
    }
}

impl Model {
    /// The model as it computes now.
    pub(crate) fn kind(&mut self) -> Identity {
        let information = &self.information;
        let own = self.identity.get_or_insert_with(|| Identity {
            architecture: information.architecture.clone(),
            layers: information.layers,
            embedding: information.embedding,
            ..of(&self.graph, self.weights.as_ref())
        });
        let mut hash = Checksum::default();
        // Both zeros count as one.
        self.adapters.iter().for_each(|strength| hash.add(&(strength + 0.0).to_le_bytes()));
        let adapters = if self.adapters.is_empty() { 0 } else { hash.value() };
        Identity { adapters, ..own.clone() }
    }
}

/// The checksums of a graph and its weights.
fn of(graph: &Graph, weights: &dyn WeightSource) -> Identity {
    let mut computation = Checksum::default();
    lines(graph).iter().for_each(|line| computation.add(line.as_bytes()));
    computation.add(format!("{:?}", graph.states).as_bytes());
    let (mut formats, mut contents) = (Checksum::default(), Checksum::default());
    let mut order: Vec<usize> = (0..graph.weights.len()).collect();
    order.sort_by_key(|index| &graph.weights[*index].name);
    for index in order {
        let declared = &graph.weights[index];
        computation.add(format!("{} {:?}\n", declared.name, declared.shape).as_bytes());
        formats.add(&declared.dtype.id().to_le_bytes());
        let bytes = weights.bytes(WeightId(index as u32));
        looked_at(bytes).for_each(|bytes| contents.add(bytes));
    }
    let (computation, formats, contents) = (computation.value(), formats.value(), contents.value());
    Identity { computation, formats, contents, ..Identity::default() }
}

/// What is looked at of a weight's bytes: of a small one all.
fn looked_at(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let last = bytes.len().saturating_sub(LOOKED_AT);
    let places = if bytes.len() <= PLACES * LOOKED_AT { 1 } else { PLACES };
    let length = if places == 1 { bytes.len() } else { LOOKED_AT };
    (0..places).filter_map(move |place| {
        let start = (last as u128 * place as u128 / (PLACES - 1) as u128) as usize;
        bytes.get(start..start + length)
    })
}

/// The operations that what is kept depends on, in their order and with numbers of their own: what else is in the graph
/// changes nothing.
fn lines(graph: &Graph) -> Vec<String> {
    let mut needed: HashSet<usize> = HashSet::new();
    // Readers come later in the list, so one pass from the end decides them all.
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if node.op.state().is_some() || needed.contains(&index) {
            needed.insert(index);
            needed.extend(node.inputs.iter().filter_map(|operand| match operand {
                Operand::Value(ValueId(value)) => Some(*value as usize),
                Operand::Weight(_) | Operand::Input(_) => None,
            }));
        }
    }
    let mut numbers: HashMap<usize, usize> = HashMap::new();
    let mut lines = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| needed.contains(index)) {
        numbers.insert(index, lines.len());
        let operands = node.inputs.iter().map(|operand| match operand {
            Operand::Value(value) => {
                format!("%{}", numbers.get(&value.index()).copied().unwrap_or(usize::MAX))
            }
            Operand::Weight(weight) => graph.weights[weight.index()].name.clone(),
            Operand::Input(input) => format!("{input:?}"),
        });
        let operands: Vec<String> = operands.collect();
        lines.push(format!("{:?} {:?} {} {:?}\n", node.op, node.ty, operands.join(" "), node.layer));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{Identity, LOOKED_AT, PLACES, looked_at};

    #[test]
    fn weights_are_looked_at_from_their_first_to_their_last_bytes() {
        for length in [0, 1, 64, 1000, PLACES * LOOKED_AT] {
            let bytes: Vec<u8> = (0..length).map(|place| place as u8).collect();
            assert_eq!(looked_at(&bytes).collect::<Vec<_>>().concat(), bytes, "{length}");
        }
        // Of 31 * 100 + 64 bytes every hundredth place.
        let bytes: Vec<u8> = (0..3164_u32).map(|place| (place / 100) as u8).collect();
        let starts: Vec<u8> = looked_at(&bytes).map(|bytes| bytes[0]).collect();
        assert_eq!(starts, (0..32).collect::<Vec<u8>>());
        assert!(looked_at(&bytes).all(|bytes| bytes.len() == LOOKED_AT));
        assert_eq!(looked_at(&bytes).last(), Some(&bytes[3100..]));
    }

    #[test]
    fn what_differs_is_named() {
        let own =
            Identity { architecture: "llama".into(), layers: 30, embedding: 576, ..Identity::default() };
        let cases = [
            (
                Identity { architecture: "qwen2".into(), ..own.clone() },
                "architecture 'llama' instead of 'qwen2'",
            ),
            (Identity { layers: 32, ..own.clone() }, "layers 30 instead of 32"),
            (Identity { embedding: 960, layers: 30, ..own.clone() }, "embedding length 576 instead of 960"),
            (Identity { computation: 1, contents: 1, ..own.clone() }, "other operations"),
            (Identity { formats: 1, contents: 1, ..own.clone() }, "number formats"),
            (Identity { contents: 1, ..own.clone() }, "numbers in its weights"),
            (Identity { adapters: 1, ..own.clone() }, "adapters"),
        ];
        for (other, expected) in cases {
            let found = own.difference(&other).unwrap_or_default();
            assert!(found.contains(expected), "{found}: {expected}");
            assert_ne!(own.value(), other.value(), "{expected}");
        }
        assert_eq!(own.difference(&own), None);
    }
}
