//! Rows of a table by index.

use super::{OpDef, expect_inputs, row_index, shape_error};
use crate::{Array, Dim, GraphError, Symbol, Type, evaluate::Context};

/// Inputs: table `[n, ...]`, indexes `[m]` or `[m, k]`. Result: `[m, ...]` or `[m, k, ...]`; an index past the end counts
/// as the last. No step has one: tokens are checked, and texts are no longer than a table of positions ([`crate::Graph::positions`]).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GatherRows;

impl OpDef for GatherRows {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("GatherRows", inputs, 2..=2, "a table and indexes")?;
        let (table, indexes) = (&inputs[0], &inputs[1]);
        if !(1..=2).contains(&indexes.shape.len()) || table.shape.len() < 2 {
            let reason = "it needs a table and one or two axes of integers";
            return Err(shape_error("GatherRows", inputs, reason));
        }
        // A step has tokens, but perhaps no outputs.
        if table.shape[0] == Dim::Of(Symbol::Outputs) {
            return Err(shape_error("GatherRows", inputs, "the table may have no rows"));
        }
        let shape = [&indexes.shape[..], &table.shape[1..]].concat();
        Ok(Type { element: table.element, shape })
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (table, indexes) = (inputs[0], inputs[1]);
        let row: usize = table.shape[1..].iter().product();
        let shape = [&indexes.shape[..], &table.shape[1..]].concat();
        let rows = indexes.integers().iter().flat_map(|index| {
            let start = row_index(*index, table.shape[0]) * row;
            table.floats()[start..start + row].iter().copied()
        });
        Array::f32(shape, rows.collect())
    }
}
