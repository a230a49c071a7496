//! A part of the last axis.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Input: `x` `[..., n]`. Result: `[..., length]`, elements `start..start + length` of the last axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slice {
    /// First element.
    pub start: u32,
    /// Number of elements.
    pub length: u32,
}

impl OpDef for Slice {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Slice", inputs, 1..=1, "one value")?;
        let width = inputs[0].width().unwrap_or(0);
        let inside = self.start.checked_add(self.length).is_some_and(|end| end <= width);
        if inputs[0].element != crate::Element::F32 || self.length == 0 || !inside {
            return Err(shape_error("Slice", inputs, "the part must lie within the last axis"));
        }
        let mut ty = inputs[0].clone();
        *ty.shape.last_mut().expect("has a last axis") = Dim::Fixed(self.length);
        Ok(ty)
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let range = self.start as usize..(self.start + self.length) as usize;
        let mut shape = inputs[0].shape.clone();
        *shape.last_mut().expect("has a last axis") = range.len();
        Array::f32(shape, inputs[0].rows().flat_map(|row| row[range.clone()].iter().copied()).collect())
    }
}
