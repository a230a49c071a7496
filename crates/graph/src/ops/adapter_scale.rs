//! Multiplication by how strongly an adapter counts in a step.

use super::{OpDef, expect_inputs};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Input: `x`. Result: `x · factor · s`, where `s` is what the step says about the adapter (`Step::adapters`), or 1 where
/// it says nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdapterScale {
    /// Number of the adapter.
    pub adapter: u32,
    /// The constant.
    pub factor: f32,
}

impl OpDef for AdapterScale {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("AdapterScale", inputs, 1..=1, "one value")?;
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let strength = context.step.adapters.get(self.adapter as usize).copied().unwrap_or(1.0);
        inputs[0].map(|x| x * (self.factor * strength))
    }
}
