//! One head for many.

use super::{OpDef, expect_inputs, extents, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Input: `[rows, 1, width]`. Result: `[rows, heads, width]`, the same for every head.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RepeatHeads {
    /// Heads of the result.
    pub heads: u32,
}

impl OpDef for RepeatHeads {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("RepeatHeads", inputs, 1..=1, "one value")?;
        let ([_, Some(1), Some(width)], true) = (&extents(&inputs[0])[..], self.heads > 0) else {
            return Err(shape_error("RepeatHeads", inputs, "there must be one head"));
        };
        Ok(Type::f32(vec![inputs[0].shape[0], Dim::Fixed(self.heads), Dim::Fixed(*width)]))
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (rows, width) = (inputs[0].shape[0], inputs[0].width());
        let heads = self.heads as usize;
        let data = inputs[0].rows().flat_map(|row| std::iter::repeat_n(row, heads).flatten().copied());
        Array::f32(vec![rows, heads, width], data.collect())
    }
}
