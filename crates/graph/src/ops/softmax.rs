//! Softmax over the last axis.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Element, GraphError, Type, evaluate::Context};

/// Input: `x` `[..., n]`. Result: as `x`, `exp(x)` over its sum in each row of the last axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Softmax;

impl OpDef for Softmax {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Softmax", inputs, 1..=1, "one value")?;
        if inputs[0].element != Element::F32 || inputs[0].width().is_none() {
            return Err(shape_error("Softmax", inputs, "the last extent must be fixed"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let mut data = Vec::with_capacity(inputs[0].floats().len());
        for row in inputs[0].rows() {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
            let powers: Vec<f64> = row.iter().map(|x| (*x as f64 - most).exp()).collect();
            let total: f64 = powers.iter().sum();
            data.extend(powers.iter().map(|power| (power / total) as f32));
        }
        Array::f32(inputs[0].shape.clone(), data)
    }
}
