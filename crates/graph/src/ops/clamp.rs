//! Bounds on a value.

use super::{OpDef, expect_inputs};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Input: `x`. Result: `min(max(x, low), high)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Clamp {
    /// Least result.
    pub low: f32,
    /// Largest result.
    pub high: f32,
}

impl OpDef for Clamp {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Clamp", inputs, 1..=1, "one value")?;
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        inputs[0].map(|x| x.max(self.low).min(self.high))
    }
}
