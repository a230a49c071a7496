//! Sparsity by the distribution of a row.

use super::{OpDef, expect_inputs};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Input: `x`. Result: `max(x − (mean + deviations · deviation), 0)`, with mean and sample standard deviation of
/// each row of the last axis: of a normal distribution a fixed share stays (Gemma 3n).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GaussianCut {
    /// Standard deviations above the mean where the cut lies.
    pub deviations: f32,
}

impl OpDef for GaussianCut {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("GaussianCut", inputs, 1..=1, "one value")?;
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let x = inputs[0];
        let mut data = Vec::with_capacity(x.floats().len());
        for row in x.rows() {
            let mean = row.iter().map(|x| *x as f64).sum::<f64>() / row.len() as f64;
            let squares: f64 = row.iter().map(|x| (*x as f64 - mean).powi(2)).sum();
            let deviation = (squares / (row.len() as f64 - 1.0).max(1.0)).sqrt();
            let cut = mean + self.deviations as f64 * deviation;
            data.extend(row.iter().map(|x| (*x as f64 - cut).max(0.0) as f32));
        }
        Array::f32(x.shape.clone(), data)
    }
}
