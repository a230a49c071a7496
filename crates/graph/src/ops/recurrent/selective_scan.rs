//! Selective state space, the recurrence of Mamba 1 and 2.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, shape_error};
use crate::{Array, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Inputs: `u` `[Tokens, heads, dim]`, time steps `[Tokens, heads]`, `a` `[heads, size]` or `[heads]`, `b` and `c`
/// `[Tokens, groups, size]`, skip `[heads]`. Head `h` reads group `h / (heads / groups)`.
///
/// For each token in turn, with `d` its time step: `S ← S · exp(d · a) + d · u ⊗ b`, result `S · c + skip · u`, of the
/// shape of `u`. Mamba 1 has heads of one element (Gu and Dao, arXiv 2312.00752); Mamba 2 one `a` per head (Dao
/// and Gu, arXiv 2405.21060). State: `S`, `[heads, dim, size]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SelectiveScan {
    /// `S`.
    pub state: StateId,
}

impl OpDef for SelectiveScan {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("SelectiveScan", inputs, 6..=6, "u, time steps, a, b, c and skip")?;
        if !are_by_token(&[&inputs[..2], &inputs[3..5]].concat()) {
            return Err(shape_error("SelectiveScan", inputs, "there must be a row for each token"));
        }
        let all: Vec<Vec<Option<u32>>> = inputs.iter().map(extents).collect();
        let ([_, heads @ Some(head_count), Some(_)], [_, Some(groups), size @ Some(_)]) =
            (&all[0][..], &all[3][..])
        else {
            return Err(shape_error("SelectiveScan", inputs, "u, b and c must be split into heads"));
        };
        let fits = all[1][1..] == [*heads]
            && (all[2][..] == [*heads, *size] || all[2][..] == [*heads])
            && all[4] == all[3]
            && all[5][..] == [*heads]
            && *groups > 0
            && head_count.is_multiple_of(*groups);
        if !fits {
            return Err(shape_error("SelectiveScan", inputs, "heads and sizes must agree"));
        }
        Ok(inputs[0].clone())
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let (u, b) = (extents(&inputs[0]), extents(&inputs[3]));
        is_recurrent(state, &[u[1], u[2], b[2]])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let [u, steps, a, b, c, skip] = [0, 1, 2, 3, 4, 5].map(|index| inputs[index].floats());
        let (heads, dim) = (inputs[0].shape[1], inputs[0].shape[2]);
        let (groups, size) = (inputs[3].shape[1], inputs[3].shape[2]);
        let rates = a.len() / heads;
        let mut out = vec![0.0; u.len()];
        context.each_span(self.state, heads * dim * size, |rows, state| {
            for row in rows {
                for head in 0..heads {
                    let step = steps[row * heads + head] as f64;
                    let group = (row * groups + head / (heads / groups)) * size;
                    for element in 0..dim {
                        let place = (head * dim + element) + row * heads * dim;
                        let value = u[place] as f64;
                        let state = &mut state[(head * dim + element) * size..][..size];
                        let mut sum = skip[head] as f64 * value;
                        for (index, kept) in state.iter_mut().enumerate() {
                            let rate = a[head * rates + index % rates] as f64;
                            let next =
                                *kept as f64 * (step * rate).exp() + step * value * b[group + index] as f64;
                            sum += next * c[group + index] as f64;
                            *kept = next as f32;
                        }
                        out[place] = sum as f32;
                    }
                }
            }
        });
        Array::f32(inputs[0].shape.clone(), out)
    }
}
