//! Attention temperature that grows with the position.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Inputs: `x` `[Tokens, ...]`, positions `[Tokens]`. Result: each row times
/// `1 + slope · ln(1 + floor((position + offset) / length))` (Nakanishi, arXiv 2501.19399; Llama 4).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PositionScale {
    /// Factor on the logarithm.
    pub slope: f32,
    /// Positions over which the factor stays the same, at least 1.
    pub length: u32,
    /// Added to the position.
    pub offset: u32,
}

impl PositionScale {
    /// The factor of a position.
    pub fn factor(&self, position: i32) -> f64 {
        let steps = (position as f64 + self.offset as f64) / self.length.max(1) as f64;
        1.0 + self.slope as f64 * (1.0 + steps.floor()).ln()
    }
}

impl OpDef for PositionScale {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("PositionScale", inputs, 2..=2, "a value and positions")?;
        if inputs[1].shape.len() != 1 || inputs[0].shape.first() != inputs[1].shape.first() {
            return Err(shape_error("PositionScale", inputs, "there must be one integer position per row"));
        }
        Ok(inputs[0].clone())
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (x, positions) = (inputs[0], inputs[1].integers());
        let width = x.floats().len() / positions.len().max(1);
        let data = x.floats().iter().enumerate();
        let data =
            data.map(|(index, x)| (*x as f64 * self.factor(positions[index / width])) as f32).collect();
        Array::f32(x.shape.clone(), data)
    }
}
