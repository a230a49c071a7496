//! Adds low-rank changes of weights (LoRA, arXiv 2106.09685) and directions at the ends of layers.

use std::collections::HashMap;

use crate::ops::{AdapterScale, Add, GatherRows, MatMul, MatMulExperts, MatMulHeads, Scale};
use crate::{Graph, GraphError, Node, Op, Operand, ValueId, WeightDecl, WeightId};

/// A change of one weight: `scale · B · (A · x)` is added to its product with `x`.
#[derive(Clone, PartialEq, Debug)]
pub struct LowRank {
    /// Name of the weight.
    pub weight: String,
    /// `A`, `[rank, columns]`; of a table that is looked up, `[rows, rank]`. With experts in front as the weight has.
    pub down: WeightDecl,
    /// `B`, `[rows, rank]`; of a table that is looked up, `[columns, rank]`.
    pub up: WeightDecl,
    /// Factor.
    pub scale: f32,
    /// Number of the adapter, if each step says how strongly it counts.
    pub adapter: Option<u32>,
}

/// A vector that is added to what a layer hands on.
#[derive(Clone, PartialEq, Debug)]
pub struct Direction {
    /// The layer.
    pub layer: u32,
    /// The vector, as wide as what layers hand on.
    pub vector: WeightDecl,
}

/// What [`add`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Added {
    /// For each change, the number of operations that it changed.
    pub changes: Vec<usize>,
    /// For each direction, whether its layer exists.
    pub directions: Vec<bool>,
}

/// Adds changes and directions to a graph. Fails where the shape of one does not fit; the graph is then of no use.
pub fn add(graph: &mut Graph, changes: &[LowRank], directions: &[Direction]) -> Result<Added, GraphError> {
    let mut added = Added { changes: vec![0; changes.len()], directions: vec![false; directions.len()] };
    let mut by_weight: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, change) in changes.iter().enumerate() {
        by_weight.entry(&change.weight).or_default().push(index);
    }
    let mut ends: HashMap<usize, Vec<usize>> = HashMap::new();
    for (index, direction) in directions.iter().enumerate() {
        if let Some(end) = graph.nodes.iter().rposition(|node| node.layer == Some(direction.layer)) {
            ends.entry(end).or_default().push(index);
        }
    }
    let mut weights = Declared { ids: HashMap::new() };
    let old = std::mem::take(&mut graph.nodes);
    let mut new_ids: Vec<ValueId> = Vec::with_capacity(old.len());
    for (index, mut node) in old.into_iter().enumerate() {
        for operand in &mut node.inputs {
            if let Operand::Value(value) = operand {
                *operand = Operand::Value(new_ids[value.index()]);
            }
        }
        let mut value = ValueId(graph.nodes.len() as u32);
        graph.nodes.push(node.clone());
        let name = match node.inputs.first() {
            Some(Operand::Weight(weight)) => graph.weights[weight.index()].name.clone(),
            _ => String::new(),
        };
        for change in by_weight.get(name.as_str()).into_iter().flatten() {
            if let Some(changed) = add_change(graph, &mut weights, &node, value, &changes[*change])? {
                value = changed;
                added.changes[*change] += 1;
            }
        }
        for direction in ends.get(&index).into_iter().flatten() {
            let vector = weights.declare(graph, &directions[*direction].vector);
            let inputs = vec![value.into(), vector];
            value = graph.push(Add, inputs, node.layer, "control_vector")?;
            added.directions[*direction] = true;
        }
        new_ids.push(value);
    }
    for (_, value) in &mut graph.outputs {
        *value = new_ids[value.index()];
    }
    Ok(added)
}

/// Weights that the graph did not have, each once.
struct Declared {
    ids: HashMap<String, WeightId>,
}

impl Declared {
    fn declare(&mut self, graph: &mut Graph, weight: &WeightDecl) -> Operand {
        let id = *self.ids.entry(weight.name.clone()).or_insert_with(|| {
            graph.weights.push(weight.clone());
            WeightId(graph.weights.len() as u32 - 1)
        });
        Operand::Weight(id)
    }
}

/// `value + scale · B · (A · x)`; none for operations that have no such form.
fn add_change(
    graph: &mut Graph,
    weights: &mut Declared,
    node: &Node,
    value: ValueId,
    change: &LowRank,
) -> Result<Option<ValueId>, GraphError> {
    let Some(x) = node.inputs.get(1).copied() else { return Ok(None) };
    let (first, second): (Op, Op) = match node.op {
        Op::MatMul(_) => (MatMul.into(), MatMul.into()),
        Op::MatMulHeads(_) => (MatMulHeads.into(), MatMulHeads.into()),
        Op::MatMulExperts(experts) => (experts.into(), MatMulExperts.into()),
        Op::GatherRows(_) => (GatherRows.into(), MatMul.into()),
        _ => return Ok(None),
    };
    // Experts read which of them were chosen, too; a bias is no part of the product.
    let chosen = matches!(node.op, Op::MatMulExperts(_)).then(|| node.inputs.get(2).copied()).flatten();
    let (down, up) = (weights.declare(graph, &change.down), weights.declare(graph, &change.up));
    let inputs = [down, x].into_iter().chain(chosen).collect();
    let mut low = graph.push(first, inputs, node.layer, "lora_a")?;
    if let Some(adapter) = change.adapter {
        // Here the value is as narrow as the rank.
        let scale = AdapterScale { adapter, factor: change.scale };
        low = graph.push(scale, vec![low.into()], node.layer, "lora_scale")?;
    }
    let inputs = [up, low.into()].into_iter().chain(chosen).collect();
    let mut high = graph.push(second, inputs, node.layer, "lora_b")?;
    if change.adapter.is_none() && change.scale != 1.0 {
        high = graph.push(Scale { factor: change.scale }, vec![high.into()], node.layer, "lora_scale")?;
    }
    graph.push(Add, vec![value.into(), high.into()], node.layer, "lora").map(Some)
}

#[cfg(test)]
mod tests {
    use puna_quant::DType;

    use super::*;
    use crate::{Input, Output};

    fn weight(name: &str, shape: &[u32]) -> WeightDecl {
        WeightDecl { name: name.into(), dtype: DType::F32, shape: shape.to_vec(), layer: None }
    }

    /// A table, one matrix in layer 0, and the table again as the output.
    fn graph() -> Graph {
        let weights = vec![weight("table", &[5, 4]), weight("w", &[4, 4])];
        let mut graph = Graph { weights, ..Graph::default() };
        let (table, w) = (Operand::Weight(WeightId(0)), Operand::Weight(WeightId(1)));
        let x = graph.push(GatherRows, vec![table, Operand::Input(Input::Tokens)], None, "embed").unwrap();
        let y = graph.push(MatMul, vec![w, x.into()], Some(0), "w").unwrap();
        let z = graph.push(MatMul, vec![table, y.into()], None, "output").unwrap();
        graph.outputs.push((Output::Logits, z));
        graph
    }

    fn change(name: &str, down: &[u32], up: &[u32], scale: f32) -> LowRank {
        LowRank { weight: name.into(), down: weight("a", down), up: weight("b", up), scale, adapter: None }
    }

    #[test]
    fn products_get_their_changes_and_layers_their_directions() {
        let mut changed = graph();
        let directions = [
            Direction { layer: 0, vector: weight("direction.0", &[4]) },
            Direction { layer: 7, vector: weight("direction.7", &[4]) },
        ];
        let found = add(&mut changed, &[change("w", &[2, 4], &[4, 2], 0.5)], &directions).unwrap();
        assert_eq!(found, Added { changes: vec![1], directions: vec![true, false] });
        let names: Vec<&str> = changed.nodes.iter().map(|node| node.name).collect();
        assert_eq!(
            names,
            ["embed", "w", "lora_a", "lora_b", "lora_scale", "lora", "control_vector", "output"]
        );
        assert_eq!(changed.output(Output::Logits), Some(ValueId(7)));
        assert_eq!(changed.weights.len(), 5);
        // The output reads what the direction was added to.
        assert_eq!(changed.nodes[7].inputs[1], Operand::Value(ValueId(6)));
    }

    #[test]
    fn what_can_be_switched_asks_the_step() {
        let mut changed = graph();
        let switched = LowRank { adapter: Some(1), ..change("w", &[2, 4], &[4, 2], 1.0) };
        add(&mut changed, &[switched], &[]).unwrap();
        let names: Vec<&str> = changed.nodes.iter().map(|node| node.name).collect();
        assert_eq!(names, ["embed", "w", "lora_a", "lora_scale", "lora_b", "lora", "output"]);
        assert!(matches!(changed.nodes[3].op, Op::AdapterScale(AdapterScale { adapter: 1, factor: 1.0 })));
    }

    #[test]
    fn nothing_changes_without_changes_and_wrong_shapes_are_refused() {
        let mut same = graph();
        assert_eq!(add(&mut same, &[change("none", &[1, 1], &[1, 1], 1.0)], &[]).unwrap().changes, [0]);
        assert_eq!(same, graph());
        assert!(add(&mut graph(), &[change("w", &[2, 3], &[4, 2], 1.0)], &[]).is_err());
        assert!(add(&mut graph(), &[change("w", &[2, 4], &[3, 2], 1.0)], &[]).is_err());
        let wide = Direction { layer: 0, vector: weight("direction.0", &[5]) };
        assert!(add(&mut graph(), &[], &[wide]).is_err());
    }
}
