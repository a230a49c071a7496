//! Experts that a table assigns to tokens.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Element, GraphError, Type, evaluate::Context};

/// Input: rows of a table of expert numbers, as floats, `[Tokens, used]`. Result: integers of the same shape, at most
/// `experts − 1` (hash layers; Roller et al., arXiv 2106.04426).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChooseByTable {
    /// Number of experts, at least 1.
    pub experts: u32,
}

impl OpDef for ChooseByTable {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("ChooseByTable", inputs, 1..=1, "rows of a table")?;
        if inputs[0].element != Element::F32
            || inputs[0].shape.len() != 2
            || !(1..=i32::MAX as u32).contains(&self.experts)
        {
            return Err(shape_error("ChooseByTable", inputs, "it needs rows of numbers and some experts"));
        }
        Ok(Type { element: Element::I32, shape: inputs[0].shape.clone() })
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let last = self.experts as i32 - 1;
        let chosen = inputs[0].floats().iter().map(|expert| (*expert as i32).clamp(0, last)).collect();
        Array::i32(inputs[0].shape.clone(), chosen)
    }
}
