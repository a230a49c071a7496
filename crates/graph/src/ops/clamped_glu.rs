//! Gated linear units with bounds on gate and value.

use super::{Function, OpDef, expect_inputs, shape_error};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Where the gate is bounded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum GateBound {
    /// `silu(min(gate, limit)) · clamp(up, ±limit)`
    BeforeSilu,
    /// `min(silu(gate), limit) · clamp(up, ±limit)`
    AfterSilu,
    /// With `g = min(gate, limit)`: `g · sigmoid(alpha · g) · (clamp(up, ±limit) + 1)`, as in gpt-oss
    /// (OpenAI, arXiv 2508.10925).
    Shifted {
        /// Steepness of the sigmoid.
        alpha: f32,
    },
}

/// Inputs: gate and up of one shape. Result: the bounded product, see [`GateBound`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClampedGlu {
    /// Form of the product.
    pub bound: GateBound,
    /// Largest gate, and largest value of either sign.
    pub limit: f32,
}

impl OpDef for ClampedGlu {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("ClampedGlu", inputs, 2..=2, "a gate and a value")?;
        if inputs[0] != inputs[1] {
            return Err(shape_error("ClampedGlu", inputs, "gate and value must have one shape"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let limit = self.limit as f64;
        let silu = |x| Function::Silu.apply(x);
        let product = |gate: f64, up: f64| {
            let up = up.max(-limit).min(limit);
            match self.bound {
                GateBound::BeforeSilu => silu(gate.min(limit)) * up,
                GateBound::AfterSilu => silu(gate).min(limit) * up,
                GateBound::Shifted { alpha } => {
                    let gate = gate.min(limit);
                    gate * Function::Sigmoid.apply(alpha as f64 * gate) * (up + 1.0)
                }
            }
        };
        let (gate, up) = (inputs[0], inputs[1]);
        let pairs = gate.floats().iter().zip(up.floats());
        let data = pairs.map(|(g, u)| product(*g as f64, *u as f64) as f32).collect();
        Array::f32(gate.shape.clone(), data)
    }
}
