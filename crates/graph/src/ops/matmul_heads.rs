//! A projection of its own for each head.

use super::{OpDef, expect_inputs, extents, matmul::dot, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Inputs: weight `[heads, n, k]`, `x` `[rows, heads, k]`. Result: `[rows, heads, n]`, each head times its matrix.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatMulHeads;

impl OpDef for MatMulHeads {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("MatMulHeads", inputs, 2..=2, "a weight and a value")?;
        let (weight, x) = (extents(&inputs[0]), extents(&inputs[1]));
        match (&weight[..], &x[..]) {
            ([Some(heads), Some(n), k @ Some(_)], [_, x_heads, x_k])
                if *x_heads == Some(*heads) && x_k == k =>
            {
                Ok(Type::f32(vec![inputs[1].shape[0], Dim::Fixed(*heads), Dim::Fixed(*n)]))
            }
            _ => Err(shape_error(
                "MatMulHeads",
                inputs,
                "there must be one matrix as wide as its head for each",
            )),
        }
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (weight, x) = (inputs[0], inputs[1]);
        let [heads, n, k] = [weight.shape[0], weight.shape[1], weight.shape[2]];
        let mut data = Vec::with_capacity(x.shape[0] * heads * n);
        for (row, x) in x.rows().enumerate() {
            let matrix = &weight.floats()[row % heads * n * k..][..n * k];
            data.extend(matrix.chunks_exact(k.max(1)).map(|w| dot(w, x) as f32));
        }
        Array::f32(vec![x.shape[0], heads, n], data)
    }
}
