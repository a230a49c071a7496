//! Elementwise quotient.

use super::{OpDef, expect_inputs, is_suffix, shape_error};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Inputs: `a`, and `b` of the same shape or of the last extents of `a`, over which it is repeated.
/// Result: `a / b`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Div;

impl OpDef for Div {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Div", inputs, 2..=2, "two values")?;
        if !is_suffix(&inputs[1], &inputs[0]) {
            return Err(shape_error("Div", inputs, "the second shape must end the first"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (a, b) = (inputs[0], inputs[1]);
        let data = a.floats().iter().zip(b.floats().iter().cycle()).map(|(a, b)| a / b).collect();
        Array::f32(a.shape.clone(), data)
    }
}
