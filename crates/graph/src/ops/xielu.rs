//! The xIELU activation.

use super::{Function, OpDef, expect_inputs};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Input: `x`. Result (Huang and Schlag, arXiv 2411.13010), with `p = softplus(alpha_p)` and
/// `n = beta + softplus(alpha_n)`: `p·x² + beta·x` for positive `x`, else
/// `(expm1(min(x, epsilon)) − x)·n + beta·x`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Xielu {
    /// Curvature of the negative side, before its softplus.
    pub alpha_n: f32,
    /// Curvature of the positive side, before its softplus.
    pub alpha_p: f32,
    /// Slope at zero.
    pub beta: f32,
    /// Largest argument of the exponential.
    pub epsilon: f32,
}

impl OpDef for Xielu {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Xielu", inputs, 1..=1, "one value")?;
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let beta = self.beta as f64;
        let positive = Function::Softplus.apply(self.alpha_p as f64);
        let negative = beta + Function::Softplus.apply(self.alpha_n as f64);
        inputs[0].map(|x| {
            let x = x as f64;
            let curved = match x > 0.0 {
                true => positive * x * x,
                false => (x.min(self.epsilon as f64).exp_m1() - x) * negative,
            };
            (curved + beta * x) as f32
        })
    }
}
