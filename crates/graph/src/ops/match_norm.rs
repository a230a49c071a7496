//! Rescaling of rows to the length of others.

use super::{OpDef, expect_inputs, matmul::dot, shape_error};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Inputs: `x` and a reference of the same shape. Result: each row of `x` scaled to the Euclidean length of the
/// reference's row; a row of zeros stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatchNorm;

impl OpDef for MatchNorm {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("MatchNorm", inputs, 2..=2, "a value and a reference")?;
        if inputs[0] != inputs[1] {
            return Err(shape_error("MatchNorm", inputs, "value and reference must have one shape"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (x, reference) = (inputs[0], inputs[1]);
        let mut data = Vec::with_capacity(x.floats().len());
        for (x, reference) in x.rows().zip(reference.rows()) {
            let length = dot(x, x).sqrt();
            let factor = if length > 0.0 { dot(reference, reference).sqrt() / length } else { 0.0 };
            data.extend(x.iter().map(|x| (*x as f64 * factor) as f32));
        }
        Array::f32(x.shape.clone(), data)
    }
}
