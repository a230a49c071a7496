//! The row before.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, shape_error};
use crate::{Array, Element, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Input: `x` `[Tokens, n]`. Result: for each row the one before it in its sequence, zeros for the first
/// (Peng et al., arXiv 2305.13048). State: the last row, `[n]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TokenShift {
    /// The last row.
    pub state: StateId,
}

impl OpDef for TokenShift {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("TokenShift", inputs, 1..=1, "one value")?;
        if !are_by_token(inputs) {
            return Err(shape_error("TokenShift", inputs, "there must be a row for each token"));
        }
        if inputs[0].element != Element::F32 || inputs[0].shape.len() != 2 || inputs[0].width().is_none() {
            return Err(shape_error("TokenShift", inputs, "it needs rows of fixed width"));
        }
        Ok(inputs[0].clone())
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        is_recurrent(state, &extents(&inputs[0])[1..])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let x = inputs[0];
        let width = x.width();
        let mut out = vec![0.0; x.floats().len()];
        context.each_span(self.state, width, |rows, before| {
            for row in rows {
                out[row * width..][..width].copy_from_slice(before);
                before.copy_from_slice(&x.floats()[row * width..][..width]);
            }
        });
        Array::f32(x.shape.clone(), out)
    }
}
