//! Sum over the last axis.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Element, GraphError, Type, evaluate::Context};

/// Input: `x` `[..., n]`. Result: `[...]`, the sum of each row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SumElements;

impl OpDef for SumElements {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("SumElements", inputs, 1..=1, "one value")?;
        if inputs[0].element != Element::F32 || inputs[0].width().is_none() || inputs[0].shape.len() < 2 {
            return Err(shape_error("SumElements", inputs, "the last extent must be fixed"));
        }
        let mut ty = inputs[0].clone();
        ty.shape.pop();
        Ok(ty)
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let mut shape = inputs[0].shape.clone();
        shape.pop();
        let sums = inputs[0].rows().map(|row| row.iter().map(|x| *x as f64).sum::<f64>() as f32);
        Array::f32(shape, sums.collect())
    }
}
