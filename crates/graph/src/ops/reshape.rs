//! Other extents for the same elements.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Input: `[rows, ...]`. Result: `[rows, trailing...]` with as many elements per row. The first axis stays.
#[derive(Clone, PartialEq, Debug)]
pub struct Reshape {
    /// Extents after the first axis.
    pub trailing: Vec<u32>,
}

impl OpDef for Reshape {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Reshape", inputs, 1..=1, "one value")?;
        let elements = self.trailing.iter().try_fold(1_u64, |all, extent| all.checked_mul(*extent as u64));
        if inputs[0].shape.is_empty() || elements != Some(inputs[0].row_elements() as u64) {
            return Err(shape_error("Reshape", inputs, "the number of elements in a row must stay"));
        }
        let mut shape = vec![inputs[0].shape[0]];
        shape.extend(self.trailing.iter().map(|extent| Dim::Fixed(*extent)));
        Ok(Type { element: inputs[0].element, shape })
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let mut shape = vec![inputs[0].shape[0]];
        shape.extend(self.trailing.iter().map(|extent| *extent as usize));
        inputs[0].clone().reshaped(shape)
    }
}
