//! Rows of a table by index.

use super::{OpDef, expect_inputs, row_index, shape_error};
use crate::{Array, Dim, GraphError, Symbol, Type, evaluate::Context};

/// Inputs: table `[n, ...]`, indexes `[m]`. Result: `[m, ...]`; an index past the end counts as the last, as of
/// a position beyond a table of learned ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GatherRows;

impl OpDef for GatherRows {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("GatherRows", inputs, 2..=2, "a table and indexes")?;
        let (table, indexes) = (&inputs[0], &inputs[1]);
        if indexes.shape.len() != 1 || table.shape.len() < 2 {
            return Err(shape_error("GatherRows", inputs, "it needs a table and a list of integers"));
        }
        // A step has tokens, but perhaps no outputs.
        if table.shape[0] == Dim::Of(Symbol::Outputs) {
            return Err(shape_error("GatherRows", inputs, "the table may have no rows"));
        }
        let mut shape = table.shape.clone();
        shape[0] = indexes.shape[0];
        Ok(Type { element: table.element, shape })
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (table, indexes) = (inputs[0], inputs[1]);
        let row: usize = table.shape[1..].iter().product();
        let mut shape = table.shape.clone();
        shape[0] = indexes.shape[0];
        let rows = indexes.integers().iter().flat_map(|index| {
            let start = row_index(*index, table.shape[0]) * row;
            table.floats()[start..start + row].iter().copied()
        });
        Array::f32(shape, rows.collect())
    }
}
