//! Part of the last axis.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Input: `[..., n]`. Result: `[..., length]`, elements `start..start + length` of each row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// First element.
    pub start: u32,
    /// Number of elements.
    pub length: u32,
}

impl OpDef for Slice {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Slice", inputs, 1..=1, "one value")?;
        let width = inputs[0].width().unwrap_or(0) as u64;
        if self.length == 0 || self.start as u64 + self.length as u64 > width {
            return Err(shape_error("Slice", inputs, "the part must lie within the last axis"));
        }
        let mut ty = inputs[0].clone();
        *ty.shape.last_mut().expect("has a last axis") = Dim::Fixed(self.length);
        Ok(ty)
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (start, length) = (self.start as usize, self.length as usize);
        let data = inputs[0].rows().flat_map(|row| &row[start..start + length]).copied().collect();
        let mut shape = inputs[0].shape.clone();
        *shape.last_mut().expect("has a last axis") = length;
        Array::f32(shape, data)
    }
}
