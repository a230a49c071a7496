//! States of a model, handed out for draft heads.

use puna_backend::Boundary;
use puna_graph::{Dim, Graph, Operand, Output, Step, Symbol, ValueId};

use crate::{HeadInputs, RuntimeError};

/// Makes states leave the model, and names their values. A layer reads what the one before it hands on last.
pub(crate) fn hand_out(graph: &mut Graph, inputs: &HeadInputs) -> Result<Vec<ValueId>, RuntimeError> {
    let layers = match inputs {
        HeadInputs::None => return Ok(Vec::new()),
        HeadInputs::LastState => return Ok(graph.output(Output::LastState).into_iter().collect()),
        HeadInputs::Layers(layers) => layers,
    };
    let mut values = Vec::with_capacity(layers.len());
    for layer in layers {
        let value = input(graph, *layer).ok_or(RuntimeError::NoLayerInput { layer: *layer })?;
        if !graph.outputs.contains(&(Output::Watched, value)) {
            graph.outputs.push((Output::Watched, value));
        }
        values.push(value);
    }
    Ok(values)
}

/// The input of a layer, if it is a row for each token. Of the last layer only those rows are left that leave the model, so
/// what it hands on has none; and where a layer hands on several streams, none is its input.
fn input(graph: &Graph, layer: u32) -> Option<ValueId> {
    let first = graph.nodes.iter().position(|node| node.layer == Some(layer))?;
    let before = layer.checked_sub(1);
    let last = graph.nodes[..first].iter().rposition(|node| node.layer == before)?;
    let value = ValueId(last as u32);
    let shape = &graph.value_type(value).shape;
    let is_row = matches!(shape[..], [Dim::Of(Symbol::Tokens), Dim::Fixed(_)]);
    // Streams are read by the next layer and not by their own.
    let reads = |by: Option<u32>, value: ValueId| {
        let mut nodes = graph.nodes.iter().filter(|node| node.layer == by);
        nodes.any(|node| node.inputs.contains(&Operand::Value(value)))
    };
    let of_layer = (0..first).filter(|node| graph.nodes[*node].layer == before);
    let values = of_layer.map(|node| ValueId(node as u32));
    let alike = values.filter(|value| graph.value_type(*value).shape == *shape);
    let streams = alike.filter(|value| reads(Some(layer), *value) && !reads(before, *value)).take(2).count();
    (is_row && streams < 2).then_some(value)
}

/// The first of the nodes at the graph's end that serve only rows which do not leave the model; none if there are no such
/// nodes.
pub(crate) fn apart(graph: &Graph) -> Option<usize> {
    graph.output(Output::OutputState)?;
    graph.output(Output::Logits).map(|logits| logits.index() + 1)
}

/// Whether all rows of a step leave the model, in their order.
pub(crate) fn all_leave(step: &Step) -> bool {
    step.output_rows.len() == step.tokens.len()
        && step.output_rows.iter().enumerate().all(|(index, row)| *row as usize == index)
}

/// Appends a step's rows of these values, side by side.
pub(crate) fn append(
    values: &[ValueId],
    boundary: &Boundary,
    rows: usize,
    to: &mut Vec<f32>,
) -> Result<(), RuntimeError> {
    if values.is_empty() || rows == 0 {
        return Ok(());
    }
    let mut parts = Vec::with_capacity(values.len());
    for value in values {
        let numbers = boundary.values.get(value).map_or(&[][..], |array| array.floats());
        let width = numbers.len() / rows;
        if width == 0 || !numbers.len().is_multiple_of(rows) {
            return Err(RuntimeError::OutputCount { found: numbers.len(), expected: rows });
        }
        parts.push(numbers.chunks_exact(width));
    }
    for _ in 0..rows {
        parts.iter_mut().filter_map(Iterator::next).for_each(|row| to.extend_from_slice(row));
    }
    Ok(())
}
