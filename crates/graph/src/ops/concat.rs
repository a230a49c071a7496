//! Values side by side.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, Element, GraphError, Type, evaluate::Context};

/// Inputs: `a` `[..., n]` and `b` `[..., m]`, equal in all other extents. Result: `[..., n + m]`, for each row
/// the elements of `a`, then those of `b`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Concat;

impl OpDef for Concat {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Concat", inputs, 2..=2, "two values")?;
        let (a, b) = (&inputs[0], &inputs[1]);
        let floats = a.element == Element::F32 && b.element == Element::F32;
        let width = a.width().zip(b.width()).and_then(|(a, b)| a.checked_add(b));
        let leading = |ty: &Type| ty.shape.split_last().map(|(_, leading)| leading.to_vec());
        let (Some(width), true) = (width, floats && leading(a) == leading(b)) else {
            return Err(shape_error("Concat", inputs, "all extents but the last must agree"));
        };
        let mut ty = a.clone();
        *ty.shape.last_mut().expect("has a last axis") = Dim::Fixed(width);
        Ok(ty)
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (a, b) = (inputs[0], inputs[1]);
        let mut shape = a.shape.clone();
        *shape.last_mut().expect("has a last axis") = a.width() + b.width();
        let rows = a.rows().zip(b.rows());
        Array::f32(shape, rows.flat_map(|(a, b)| a.iter().chain(b).copied()).collect())
    }
}
