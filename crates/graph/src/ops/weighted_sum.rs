//! Sum of several values, each weighted by row.

use super::{OpDef, expect_inputs, fixed, shape_error};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Inputs: weights `[Tokens, n]`, then `n` values `[Tokens, width]`. Result: in each row the sum of
/// weight · value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightedSum;

impl OpDef for WeightedSum {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("WeightedSum", inputs, 2..=65, "weights and up to 64 values")?;
        let (weights, values) = (&inputs[0], &inputs[1..]);
        if weights.shape.len() != 2 || fixed(weights.shape.last()) != Some(values.len() as u32) {
            return Err(shape_error("WeightedSum", inputs, "there must be one weight per value"));
        }
        let rows = values[0].shape.len() == 2 && values[0].shape[0] == weights.shape[0];
        if !rows || values.iter().any(|value| *value != values[0]) {
            return Err(shape_error("WeightedSum", inputs, "values must have one shape and as many rows"));
        }
        Ok(values[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (weights, values) = (inputs[0], &inputs[1..]);
        let width = values[0].width();
        let mut data = Vec::with_capacity(values[0].floats().len());
        for (row, weights) in weights.rows().enumerate() {
            data.extend((row * width..(row + 1) * width).map(|index| {
                let terms = weights.iter().zip(values);
                terms.map(|(weight, value)| *weight as f64 * value.floats()[index] as f64).sum::<f64>() as f32
            }));
        }
        Array::f32(values[0].shape.clone(), data)
    }
}
