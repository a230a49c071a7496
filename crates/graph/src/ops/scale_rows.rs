//! Multiplication of rows by a factor each.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Inputs: `x` `[..., n]`, factors `[...]` or of the last of these extents, over which they are repeated.
/// Result: each row of the last axis times its factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScaleRows;

impl OpDef for ScaleRows {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("ScaleRows", inputs, 2..=2, "a value and factors")?;
        let (x, factors) = (&inputs[0], &inputs[1]);
        let Some((_, rows)) = x.shape.split_last() else {
            return Err(shape_error("ScaleRows", inputs, "the value must have rows"));
        };
        if factors.shape.is_empty() || !rows.ends_with(&factors.shape) {
            return Err(shape_error("ScaleRows", inputs, "there must be one factor per row"));
        }
        Ok(x.clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (x, factors) = (inputs[0], inputs[1].floats());
        let rows = x.rows().zip(factors.iter().cycle());
        let data = rows.flat_map(|(row, factor)| row.iter().map(move |x| x * factor)).collect();
        Array::f32(x.shape.clone(), data)
    }
}
