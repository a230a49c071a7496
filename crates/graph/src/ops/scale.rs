//! Multiplication by a constant.

use super::{OpDef, expect_inputs};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Input: `x`. Result: `x · factor`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    /// The constant.
    pub factor: f32,
}

impl OpDef for Scale {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Scale", inputs, 1..=1, "one value")?;
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        inputs[0].map(|x| x * self.factor)
    }
}
