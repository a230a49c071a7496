//! The gated delta rule, a linear attention that corrects what it remembers.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, shape_error};
use crate::{Array, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Which key head a value head reads where there are fewer of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyHeads {
    /// `h / (value_heads / key_heads)`: neighbours share.
    Grouped,
    /// `h mod key_heads`.
    Cyclic,
}

/// Inputs: queries and keys `[Tokens, key_heads, key_dim]`, values `[Tokens, heads, value_dim]`, logarithms of the
/// decay `[Tokens, heads, 1]` or `[Tokens, heads, key_dim]`, learning rates `[Tokens, heads]`.
///
/// For each token in turn: `S ← exp(decay) · S`, `S ← S + k ⊗ (rate · (v − Sᵀ k))`, result `Sᵀ (scale · q)`, of the
/// shape of the values. One decay per head: Yang et al., arXiv 2412.06464; one per key channel: Kimi Team,
/// arXiv 2510.26692. State: `S`, `[heads, key_dim, value_dim]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GatedDeltaRule {
    /// `S`.
    pub state: StateId,
    /// Factor on queries.
    pub scale: f32,
    /// Which key head a value head reads.
    pub key_heads: KeyHeads,
}

impl OpDef for GatedDeltaRule {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("GatedDeltaRule", inputs, 5..=5, "queries, keys, values, decays and rates")?;
        if !are_by_token(inputs) {
            return Err(shape_error("GatedDeltaRule", inputs, "there must be a row for each token"));
        }
        let all: Vec<Vec<Option<u32>>> = inputs.iter().map(extents).collect();
        let ([_, Some(key_heads), key_dim @ Some(_)], [_, heads @ Some(head_count), Some(_)]) =
            (&all[1][..], &all[2][..])
        else {
            return Err(shape_error("GatedDeltaRule", inputs, "keys and values must be split into heads"));
        };
        let fits = all[0] == all[1]
            && (all[3][1..] == [*heads, Some(1)] || all[3][1..] == [*heads, *key_dim])
            && all[4][1..] == [*heads]
            && *key_heads > 0
            && head_count.is_multiple_of(*key_heads);
        if !fits {
            return Err(shape_error("GatedDeltaRule", inputs, "heads and widths must agree"));
        }
        Ok(inputs[2].clone())
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let (keys, values) = (extents(&inputs[1]), extents(&inputs[2]));
        is_recurrent(state, &[values[1], keys[2], values[2]])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let [queries, keys, values, decays, rates] = [0, 1, 2, 3, 4].map(|index| inputs[index].floats());
        let (key_heads, key_dim) = (inputs[1].shape[1], inputs[1].shape[2]);
        let (heads, value_dim) = (inputs[2].shape[1], inputs[2].shape[2]);
        let decay_dim = inputs[3].shape[2];
        let mut out = vec![0.0; values.len()];
        context.each_span(self.state, heads * key_dim * value_dim, |rows, state| {
            for row in rows {
                for head in 0..heads {
                    let key_head = match self.key_heads {
                        KeyHeads::Grouped => head / (heads / key_heads),
                        KeyHeads::Cyclic => head % key_heads,
                    };
                    let key = &keys[(row * key_heads + key_head) * key_dim..][..key_dim];
                    let query = &queries[(row * key_heads + key_head) * key_dim..][..key_dim];
                    let head_row = row * heads + head;
                    let decay = &decays[head_row * decay_dim..][..decay_dim];
                    let matrix = &mut state[head * key_dim * value_dim..][..key_dim * value_dim];
                    for (index, row) in matrix.chunks_exact_mut(value_dim).enumerate() {
                        let factor = (decay[index % decay_dim] as f64).exp();
                        row.iter_mut().for_each(|x| *x = (*x as f64 * factor) as f32);
                    }
                    for element in 0..value_dim {
                        let place = head_row * value_dim + element;
                        let column = matrix.iter().skip(element).step_by(value_dim);
                        let known: f64 = column.zip(key).map(|(s, k)| *s as f64 * *k as f64).sum();
                        let change = rates[head_row] as f64 * (values[place] as f64 - known);
                        let mut sum = 0.0;
                        for (index, (key, query)) in key.iter().zip(query).enumerate() {
                            let kept = &mut matrix[index * value_dim + element];
                            let next = *kept as f64 + *key as f64 * change;
                            sum += next * *query as f64;
                            *kept = next as f32;
                        }
                        out[place] = (sum * self.scale as f64) as f32;
                    }
                }
            }
        });
        Array::f32(inputs[2].shape.clone(), out)
    }
}
