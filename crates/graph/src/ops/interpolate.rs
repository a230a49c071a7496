//! Several mixtures of two values.

use super::{OpDef, expect_inputs, extents, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Inputs: `a` and `b` `[rows, n]`, shares `[mixtures, n]` or `[rows, mixtures, n]`.
/// Result: `[rows, mixtures · n]`, for each mixture `a + share · (b − a)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interpolate;

impl OpDef for Interpolate {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Interpolate", inputs, 3..=3, "two values and shares")?;
        let (x, shares) = (extents(&inputs[0]), extents(&inputs[2]));
        let fits = match (&x[..], &shares[..]) {
            ([_, n @ Some(_)], [Some(_), m]) => n == m,
            ([_, n @ Some(_)], [_, Some(_), m]) => n == m && inputs[0].shape[0] == inputs[2].shape[0],
            _ => false,
        };
        let width = inputs[2].shape.iter().rev().take(2).try_fold(1_u32, |width, dim| match dim {
            Dim::Fixed(extent) => width.checked_mul(*extent),
            Dim::Of(_) => None,
        });
        match width {
            Some(width) if fits && inputs[0] == inputs[1] => {
                Ok(Type::f32(vec![inputs[0].shape[0], Dim::Fixed(width)]))
            }
            _ => Err(shape_error("Interpolate", inputs, "values and shares must have one width")),
        }
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (a, b, shares) = (inputs[0], inputs[1], inputs[2]);
        let width = a.width();
        let mixtures = shares.shape[shares.shape.len() - 2];
        let per_row = if shares.shape.len() == 3 { mixtures * width } else { 0 };
        let mut data = Vec::with_capacity(a.shape[0] * mixtures * width);
        for (row, (a, b)) in a.rows().zip(b.rows()).enumerate() {
            let shares = &shares.floats()[row * per_row..][..mixtures * width];
            data.extend(shares.iter().enumerate().map(|(index, share)| {
                let (a, b) = (a[index % width] as f64, b[index % width] as f64);
                (a + *share as f64 * (b - a)) as f32
            }));
        }
        Array::f32(vec![a.shape[0], mixtures * width], data)
    }
}
