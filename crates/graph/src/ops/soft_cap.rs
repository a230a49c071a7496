//! Smooth limit of a value.

use super::{OpDef, expect_inputs};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Input: `x`. Result: `cap · tanh(x / cap)` (Gemma 2, arXiv 2408.00118).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SoftCap {
    /// The limit.
    pub cap: f32,
}

impl OpDef for SoftCap {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("SoftCap", inputs, 1..=1, "one value")?;
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        inputs[0].map(|x| self.cap * (x / self.cap).tanh())
    }
}
