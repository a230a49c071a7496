//! Elementwise functions.

use super::{OpDef, expect_inputs};
use crate::{Array, GraphError, Type, evaluate::Context};

/// A scalar function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Function {
    /// `x · sigmoid(x)`
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))` (Hendrycks and Gimpel, arXiv 1606.08415)
    Gelu,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    ReluSquared,
    /// `1 / (1 + exp(−x))`
    Sigmoid,
    /// `tanh(x)`
    Tanh,
    /// `exp(x)`
    Exp,
    /// `ln(1 + exp(x))`
    Softplus,
    /// `sign(x) · √max(|x|, 1e-6)`
    SignedRoot,
}

impl Function {
    /// The function's value.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Function::Silu => x * Function::Sigmoid.apply(x),
            Function::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * x * (1.0 + 0.044715 * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Function::Relu => x.max(0.0),
            Function::ReluSquared => x.max(0.0) * x.max(0.0),
            Function::Sigmoid => 0.5 * (1.0 + (0.5 * x).tanh()),
            Function::Tanh => x.tanh(),
            Function::Exp => x.exp(),
            Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            // The sign of zero is zero.
            Function::SignedRoot if x == 0.0 => 0.0,
            Function::SignedRoot => x.abs().max(1e-6).sqrt().copysign(x),
        }
    }
}

/// Input: `x`. Result: the function of each element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Unary {
    /// Which function.
    pub function: Function,
}

impl OpDef for Unary {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Unary", inputs, 1..=1, "one value")?;
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        inputs[0].map(|x| self.function.apply(x as f64) as f32)
    }
}
