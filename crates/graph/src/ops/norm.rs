//! Normalisation of the last axis.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Inputs: `x` `[..., n]`, optional weight `[n]` or of more of the last extents (a weight per head).
/// Result: `x / sqrt(mean(x²) + epsilon) · weight` (Zhang and Sennrich, arXiv 1910.07467).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmsNorm {
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// Inputs: `x` `[..., n]`, optional weight, optional bias, both of the last extents of `x`.
/// Result: `(x − mean) / sqrt(variance + epsilon) · weight + bias` (Ba et al., arXiv 1607.06450).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

fn infer(op: &'static str, most: usize, inputs: &[Type]) -> Result<Type, GraphError> {
    expect_inputs(op, inputs, 1..=most, "a value and perhaps its weights")?;
    let Some(Dim::Fixed(_)) = inputs[0].shape.last() else {
        return Err(shape_error(op, inputs, "the last extent must be fixed"));
    };
    if inputs[1..].iter().any(|vector| !super::is_suffix(vector, &inputs[0])) {
        return Err(shape_error(op, inputs, "weights must have the last extents of the value"));
    }
    Ok(inputs[0].clone())
}

/// `(x − centre) · inverse · weight + bias`, where each row brings its centre and inverse deviation.
fn normalise(inputs: &[&Array], row_statistics: impl Fn(&[f32]) -> (f64, f64)) -> Array {
    let x = inputs[0];
    let at = |vector: Option<&&Array>, index: usize, default: f64| {
        vector.map_or(default, |vector| vector.floats()[index % vector.floats().len()] as f64)
    };
    let mut data = Vec::with_capacity(x.floats().len());
    for row in x.rows() {
        let (centre, inverse) = row_statistics(row);
        for value in row {
            let index = data.len();
            let (weight, bias) = (at(inputs.get(1), index, 1.0), at(inputs.get(2), index, 0.0));
            data.push(((*value as f64 - centre) * inverse * weight + bias) as f32);
        }
    }
    Array::f32(x.shape.clone(), data)
}

impl OpDef for RmsNorm {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        infer("RmsNorm", 2, inputs)
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        normalise(inputs, |row| {
            let mean = row.iter().map(|x| *x as f64 * *x as f64).sum::<f64>() / row.len() as f64;
            (0.0, 1.0 / (mean + self.epsilon as f64).sqrt())
        })
    }
}

impl OpDef for LayerNorm {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        infer("LayerNorm", 3, inputs)
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        normalise(inputs, |row| {
            let mean = row.iter().map(|x| *x as f64).sum::<f64>() / row.len() as f64;
            let variance = row.iter().map(|x| (*x as f64 - mean).powi(2)).sum::<f64>() / row.len() as f64;
            (mean, 1.0 / (variance + self.epsilon as f64).sqrt())
        })
    }
}
