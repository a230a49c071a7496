//! Gated linear unit.

use super::{Function, OpDef, expect_inputs, shape_error};
use crate::{Array, GraphError, Type, evaluate::Context};

/// Inputs: gate and up of one shape. Result: `function(gate) · up` (Shazeer, arXiv 2002.05202).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Glu {
    /// Activation of the gate.
    pub function: Function,
}

impl OpDef for Glu {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Glu", inputs, 2..=2, "a gate and a value")?;
        if inputs[0] != inputs[1] {
            return Err(shape_error("Glu", inputs, "gate and value must have one shape"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (gate, up) = (inputs[0], inputs[1]);
        let pairs = gate.floats().iter().zip(up.floats());
        let data = pairs.map(|(g, u)| (self.function.apply(*g as f64) * *u as f64) as f32).collect();
        Array::f32(gate.shape.clone(), data)
    }
}
