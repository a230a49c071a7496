//! Projection by a weight matrix.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Inputs: weight `[n, k]`, `x` `[..., k]`, optional bias `[n]`. Result: `[..., n]`, each row `weight · x + bias`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatMul;

impl OpDef for MatMul {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("MatMul", inputs, 2..=3, "a weight, a value and perhaps a bias")?;
        let (weight, x) = (&inputs[0], &inputs[1]);
        let [Dim::Fixed(rows), Dim::Fixed(columns)] = weight.shape[..] else {
            return Err(shape_error("MatMul", inputs, "the weight must be a matrix"));
        };
        if x.width() != Some(columns) {
            return Err(shape_error("MatMul", inputs, "the value must be as wide as the weight"));
        }
        if inputs.get(2).is_some_and(|bias| bias.shape[..] != [Dim::Fixed(rows)]) {
            return Err(shape_error("MatMul", inputs, "the bias must have one element per weight row"));
        }
        let mut ty = x.clone();
        *ty.shape.last_mut().expect("has a last axis") = Dim::Fixed(rows);
        Ok(ty)
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (weight, x, bias) = (inputs[0], inputs[1], inputs.get(2));
        let rows = weight.shape[0];
        let mut data = Vec::with_capacity(x.rows().len() * rows);
        for x in x.rows() {
            for (row, w) in weight.rows().enumerate() {
                let bias = bias.map_or(0.0, |bias| bias.floats()[row] as f64);
                data.push((dot(w, x) + bias) as f32);
            }
        }
        let mut shape = x.shape.clone();
        *shape.last_mut().expect("has a last axis") = rows;
        Array::f32(shape, data)
    }
}

/// Exact-enough dot product: products and sums in `f64`.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum()
}
