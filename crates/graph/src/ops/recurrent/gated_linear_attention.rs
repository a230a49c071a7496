//! Linear attention with decay: RWKV 6, gated linear attention, lightning attention.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, shape_error};
use crate::{Array, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Inputs: queries and keys `[Tokens, heads, key_dim]`, values `[Tokens, heads, value_dim]`, decays
/// `[Tokens, heads, key_dim]` or one per head `[heads]`, optional bonus `[heads, key_dim]`.
///
/// Without a bonus, for each token in turn: `S ← decay · S + k ⊗ v`, result `Sᵀ (scale · q)` (Yang et al.,
/// arXiv 2312.06635; one decay per head: Qin et al., arXiv 2401.04658). With a bonus the result reads the
/// state before the token, and its own key times the bonus: `(S + (bonus · k) ⊗ v)ᵀ (scale · q)`, then `S` changes
/// as above (RWKV 6; Peng et al., arXiv 2404.05892). Result: shape of the values. State: `S`,
/// `[heads, key_dim, value_dim]`.
#[derive(Clone, PartialEq, Debug)]
pub struct GatedLinearAttention {
    /// `S`.
    pub state: StateId,
    /// Factor on queries.
    pub scale: f32,
    /// Decay of each head, if it does not come as an input.
    pub head_decays: Option<Vec<f32>>,
}

impl OpDef for GatedLinearAttention {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        let fixed = usize::from(self.head_decays.is_none());
        let expected = "queries, keys, values, decays that are not constant and perhaps a bonus";
        expect_inputs("GatedLinearAttention", inputs, 3 + fixed..=4 + fixed, expected)?;
        if !are_by_token(&inputs[..3 + fixed]) {
            return Err(shape_error("GatedLinearAttention", inputs, "there must be a row for each token"));
        }
        let all: Vec<Vec<Option<u32>>> = inputs.iter().map(extents).collect();
        let ([_, heads @ Some(head_count), key_dim @ Some(_)], [_, value_heads, Some(_)]) =
            (&all[1][..], &all[2][..])
        else {
            return Err(shape_error("GatedLinearAttention", inputs, "inputs must be split into heads"));
        };
        let decays = match &self.head_decays {
            Some(decays) => decays.len() == *head_count as usize,
            None => all[3] == all[1],
        };
        let bonus = all.get(3 + fixed).is_none_or(|bonus| bonus[..] == [*heads, *key_dim]);
        if all[0] != all[1] || heads != value_heads || !decays || !bonus {
            return Err(shape_error("GatedLinearAttention", inputs, "heads and widths must agree"));
        }
        Ok(inputs[2].clone())
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let (keys, values) = (extents(&inputs[1]), extents(&inputs[2]));
        is_recurrent(state, &[keys[1], keys[2], values[2]])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let [queries, keys, values] = [0, 1, 2].map(|index| inputs[index].floats());
        let rest = &inputs[3..];
        let (decays, bonus) = match self.head_decays {
            Some(_) => (None, rest.first()),
            None => (rest.first().map(|decays| decays.floats()), rest.get(1)),
        };
        let bonus = bonus.map(|bonus| bonus.floats());
        let (heads, key_dim, value_dim) = (inputs[1].shape[1], inputs[1].shape[2], inputs[2].shape[2]);
        let mut out = vec![0.0; values.len()];
        context.each_span(self.state, heads * key_dim * value_dim, |rows, state| {
            for head_row in rows.start * heads..rows.end * heads {
                let head = head_row % heads;
                let matrix = &mut state[head * key_dim * value_dim..][..key_dim * value_dim];
                let value = &values[head_row * value_dim..][..value_dim];
                let mut sums = vec![0.0_f64; value_dim];
                for (index, row) in matrix.chunks_exact_mut(value_dim).enumerate() {
                    let place = head_row * key_dim + index;
                    let (query, key) = (queries[place] as f64 * self.scale as f64, keys[place] as f64);
                    let decay = match (&self.head_decays, decays) {
                        (Some(decays), _) => decays[head] as f64,
                        (None, decays) => decays.map_or(1.0, |decays| decays[place] as f64),
                    };
                    for ((kept, value), sum) in row.iter_mut().zip(value).zip(&mut sums) {
                        let (before, added) = (*kept as f64, key * *value as f64);
                        let after = before * decay + added;
                        let read = match bonus {
                            Some(bonus) => before + bonus[head * key_dim + index] as f64 * added,
                            None => after,
                        };
                        *sum += read * query;
                        *kept = after as f32;
                    }
                }
                let results = &mut out[head_row * value_dim..][..value_dim];
                results.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
            }
        });
        Array::f32(inputs[2].shape.clone(), out)
    }
}
