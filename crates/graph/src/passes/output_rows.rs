//! Drops rows that do not leave the model as early as possible.

use std::collections::{HashMap, HashSet};

use crate::ops::{GatherRows, OpDef};
use crate::{Dim, Graph, Input, Node, Op, Operand, Output, Symbol, ValueId};

/// Moves the selection of output rows up through operations that treat each row alone, so that what follows
/// the last attention runs only for rows whose result is asked for. Values are unchanged. What [`Output::LastState`] needs
/// of that runs for all rows apart, so that logits are computed as they are without: in nodes after all others, which need
/// not run where all rows leave, because [`Output::OutputState`] is the same then.
pub fn move_output_rows_up(graph: &mut Graph) {
    let gather = graph.nodes.iter().rposition(|node| {
        node.op == Op::GatherRows(GatherRows)
            && node.inputs.get(1) == Some(&Operand::Input(Input::OutputRows))
    });
    let Some(gather) = gather else { return };
    let Some(Operand::Value(selected)) = graph.nodes[gather].inputs.first().copied() else { return };

    // Row-wise nodes all of whose readers are row-wise nodes found before, or the selection itself. Readers
    // come later in the list, so one pass from the end decides them all.
    let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for operand in &node.inputs {
            if let Operand::Value(value) = operand {
                readers.entry(*value).or_default().push(index);
            }
        }
    }
    let leaving = graph.outputs.iter().filter(|(output, _)| *output != Output::LastState);
    let leaves: HashSet<ValueId> = leaving.map(|(_, value)| *value).collect();
    let mut moved: HashSet<usize> = HashSet::new();
    for index in (0..gather).rev() {
        let value = ValueId(index as u32);
        let read_by = readers.get(&value).map_or(&[][..], Vec::as_slice);
        let only_selected = !read_by.is_empty()
            && read_by.iter().all(|reader| *reader == gather && value == selected || moved.contains(reader));
        if only_selected && !leaves.contains(&value) && is_row_wise(&graph.nodes[index]) {
            moved.insert(index);
        }
    }
    if !moved.contains(&selected.index()) {
        return;
    }

    let last_state = graph.output(Output::LastState);
    let all_rows = last_state.map_or_else(HashSet::new, |value| needed(graph, value, &moved));
    let mut apart: Vec<(ValueId, Node)> = Vec::new();
    let old = std::mem::take(&mut graph.nodes);
    let mut new_ids: HashMap<ValueId, ValueId> = HashMap::new();
    let mut selections: HashMap<ValueId, ValueId> = HashMap::new();
    for (index, mut node) in old.into_iter().enumerate() {
        let value = ValueId(index as u32);
        if all_rows.contains(&index) {
            apart.push((value, node.clone()));
        }
        if index == gather {
            new_ids.insert(value, new_ids[&selected]);
            continue;
        }
        for operand in &mut node.inputs {
            let Operand::Value(input) = operand else { continue };
            let renamed = new_ids[input];
            *operand = Operand::Value(if moved.contains(&index) && !moved.contains(&input.index()) {
                *selections.entry(*input).or_insert_with(|| {
                    let mut ty = graph.nodes[renamed.index()].ty.clone();
                    ty.shape[0] = Dim::Of(Symbol::Outputs);
                    graph.nodes.push(Node {
                        op: GatherRows.into(),
                        inputs: vec![renamed.into(), Operand::Input(Input::OutputRows)],
                        ty,
                        layer: node.layer,
                        name: "output_rows",
                    });
                    ValueId(graph.nodes.len() as u32 - 1)
                })
            } else {
                renamed
            });
        }
        if moved.contains(&index) {
            node.ty.shape[0] = Dim::Of(Symbol::Outputs);
        }
        new_ids.insert(value, ValueId(graph.nodes.len() as u32));
        graph.nodes.push(node);
    }
    let mut all_row_ids: HashMap<ValueId, ValueId> = HashMap::new();
    for (value, mut node) in apart {
        for operand in &mut node.inputs {
            if let Operand::Value(input) = operand {
                *input = *all_row_ids.get(input).unwrap_or(&new_ids[input]);
            }
        }
        all_row_ids.insert(value, ValueId(graph.nodes.len() as u32));
        graph.nodes.push(node);
    }
    let leaving = last_state.filter(|value| all_row_ids.contains_key(value));
    for (output, value) in &mut graph.outputs {
        let whole = all_row_ids.get(value).filter(|_| *output == Output::LastState);
        *value = *whole.unwrap_or(&new_ids[value]);
    }
    graph.outputs.extend(leaving.map(|value| (Output::OutputState, new_ids[&value])));
    debug_assert!(graph.nodes.iter().all(|node| {
        let types: Vec<_> = node.inputs.iter().map(|operand| graph.operand_type(*operand)).collect();
        node.op.infer(&types).as_ref() == Ok(&node.ty)
    }));
}

/// Those of the moved nodes that a value is made of.
fn needed(graph: &Graph, value: ValueId, moved: &HashSet<usize>) -> HashSet<usize> {
    let mut found: HashSet<usize> = HashSet::new();
    let mut waiting = vec![value.index()];
    while let Some(index) = waiting.pop() {
        if moved.contains(&index) && found.insert(index) {
            let inputs = graph.nodes[index].inputs.iter();
            waiting.extend(inputs.filter_map(|operand| match operand {
                Operand::Value(input) => Some(input.index()),
                _ => None,
            }));
        }
    }
    found
}

/// Whether each result row depends on the same row of the inputs alone, and on nothing the step brings.
fn is_row_wise(node: &Node) -> bool {
    let reads_step = node.inputs.iter().any(|operand| matches!(operand, Operand::Input(_)));
    let by_token = node.ty.shape.first() == Some(&Dim::Of(Symbol::Tokens));
    let reads_step = reads_step || matches!(node.op, Op::Features(_) | Op::PreferFeatured(_));
    let reads_other_rows =
        matches!(node.op, Op::GatherRows(_) | Op::MeanRows(_) | Op::Convolution(_) | Op::GroupNorm(_));
    by_token && !reads_step && node.op.state().is_none() && !reads_other_rows
}
