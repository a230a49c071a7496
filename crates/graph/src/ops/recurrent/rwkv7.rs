//! The recurrence of RWKV 7.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, matmul::dot, shape_error};
use crate::{Array, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Inputs, all `[Tokens, heads, dim]`: receptances `r`, decays `w`, keys `k`, values `v`, removal keys `e`, rates `a`.
///
/// For each token in turn: `S ← S · diag(w) − (S e) ⊗ (e · a) + v ⊗ k`, result `S r` (Peng et al., arXiv 2503.14456).
/// State: `S`, `[heads, dim, dim]`, a row per value channel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rwkv7 {
    /// `S`.
    pub state: StateId,
}

impl OpDef for Rwkv7 {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        let expected = "receptances, decays, keys, values, removal keys and rates";
        expect_inputs("Rwkv7", inputs, 6..=6, expected)?;
        if !are_by_token(inputs) {
            return Err(shape_error("Rwkv7", inputs, "there must be a row for each token"));
        }
        let split = matches!(extents(&inputs[0])[..], [_, Some(_), Some(_)]);
        if !split || inputs.iter().any(|input| *input != inputs[0]) {
            return Err(shape_error("Rwkv7", inputs, "all inputs must be split into the same heads"));
        }
        Ok(inputs[0].clone())
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let all = extents(&inputs[0]);
        is_recurrent(state, &[all[1], all[2], all[2]])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let all = [0, 1, 2, 3, 4, 5].map(|index| inputs[index].floats());
        let (heads, dim) = (inputs[0].shape[1], inputs[0].shape[2]);
        let mut out = vec![0.0; all[0].len()];
        context.each_span(self.state, heads * dim * dim, |rows, state| {
            for head_row in rows.start * heads..rows.end * heads {
                let [receptance, decay, key, value, removal, rate] = all.map(|x| &x[head_row * dim..][..dim]);
                let matrix = &mut state[head_row % heads * dim * dim..][..dim * dim];
                for (element, row) in matrix.chunks_exact_mut(dim).enumerate() {
                    let removed = dot(row, removal);
                    for (index, kept) in row.iter_mut().enumerate() {
                        let next = *kept as f64 * decay[index] as f64
                            - removed * removal[index] as f64 * rate[index] as f64
                            + value[element] as f64 * key[index] as f64;
                        *kept = next as f32;
                    }
                    out[head_row * dim + element] = dot(row, receptance) as f32;
                }
            }
        });
        Array::f32(inputs[0].shape.clone(), out)
    }
}
