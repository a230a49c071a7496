//! Elementwise product.

use super::{OpDef, expect_inputs, is_suffix, shape_error};
use crate::{Array, Element, GraphError, Type, evaluate::Context};

/// Inputs: `a`, and `b` of the same shape, or of the last extents of `a`, over which it is repeated, or of the
/// shape of `a` with a last extent of 1: one factor per row.
/// Result: shape of `a`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mul;

/// Whether `factor` has one element for each row of the last axis of `value`.
fn is_factor_per_row(factor: &Type, value: &Type) -> bool {
    let leading = |ty: &Type| ty.shape.split_last().map(|(_, leading)| leading.to_vec());
    factor.element == Element::F32 && factor.width() == Some(1) && leading(factor) == leading(value)
}

impl OpDef for Mul {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Mul", inputs, 2..=2, "two values")?;
        if !is_suffix(&inputs[1], &inputs[0]) && !is_factor_per_row(&inputs[1], &inputs[0]) {
            return Err(shape_error("Mul", inputs, "the second shape must end the first, or be one per row"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (a, b) = (inputs[0], inputs[1]);
        if b.shape.len() == a.shape.len() && b.width() == 1 {
            let rows = a.rows().zip(b.floats());
            return Array::f32(
                a.shape.clone(),
                rows.flat_map(|(row, b)| row.iter().map(move |a| a * b)).collect(),
            );
        }
        let data = a.floats().iter().zip(b.floats().iter().cycle()).map(|(a, b)| a * b).collect();
        Array::f32(a.shape.clone(), data)
    }
}
