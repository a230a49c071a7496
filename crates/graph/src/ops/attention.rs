//! Attention over a layer's cache.

use super::{OpDef, expect_inputs, fixed, matmul::dot, shape_error};
use crate::{Array, Dim, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Which cached positions a query sees, besides belonging to the same sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MaskRule {
    /// Its own and earlier ones.
    #[default]
    Causal,
    /// The last so many, its own included.
    Window(u32),
    /// Its own and earlier ones of the same chunk of so many positions.
    Chunked(u32),
    /// All.
    Bidirectional,
}

impl MaskRule {
    /// First and last position that the query at `query` sees; the last is below the first if it sees none.
    pub fn interval(self, query: i32) -> (i32, i32) {
        let back = |n: i64| i32::try_from(i64::from(query) - n).unwrap_or(i32::MIN);
        match self {
            MaskRule::Causal => (i32::MIN, query),
            MaskRule::Window(0) => (i32::MAX, i32::MIN),
            MaskRule::Window(n) => (back(i64::from(n) - 1), query),
            MaskRule::Chunked(n) => (back(i64::from(query).rem_euclid(i64::from(n.max(1)))), query),
            MaskRule::Bidirectional => (i32::MIN, i32::MAX),
        }
    }

    /// Whether the query at `query` sees the key at `key`.
    pub fn sees(self, query: i32, key: i32) -> bool {
        let (first, last) = self.interval(query);
        first <= key && key <= last
    }
}

/// Inputs: queries `[Tokens, heads, key_dim]`, keys `[Tokens, kv_heads, key_dim]`, values
/// `[Tokens, kv_heads, value_dim]`, optional sinks `[heads]`. Keys and values are first stored in the state's
/// cells; then every query attends to the cells of its sequence that the mask shows. Query head `h` reads
/// key and value head `h / (heads / kv_heads)`. Result: `[Tokens, heads · value_dim]`; a query that sees
/// nothing gets zeros.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// The layer's cache.
    pub state: StateId,
    /// Factor on query · key.
    pub scale: f32,
    /// Visible positions.
    pub mask: MaskRule,
    /// Smooth limit of scaled scores: `c · tanh(score / c)`.
    pub soft_cap: Option<f32>,
    /// Largest bias of ALiBi; head slopes come from [`alibi_slope`] (Press et al., arXiv 2108.12409).
    pub alibi_max_bias: Option<f32>,
}

/// Slope of head `head` of `heads`: a geometric series over the largest power of two of heads, the rest
/// interleaved between.
pub fn alibi_slope(max_bias: f32, head: u32, heads: u32) -> f64 {
    let power = 1_u32 << heads.max(1).ilog2();
    let first = 2.0_f64.powf(-max_bias as f64 / power as f64);
    let between = 2.0_f64.powf(-max_bias as f64 / 2.0 / power as f64);
    if head < power { first.powi(head as i32 + 1) } else { between.powi(2 * (head - power) as i32 + 1) }
}

impl OpDef for Attention {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Attention", inputs, 3..=4, "queries, keys, values and perhaps sinks")?;
        let (
            [rows, Dim::Fixed(heads), query],
            [_, Dim::Fixed(kv_heads), key],
            [_, values, Dim::Fixed(value_dim)],
        ) = (&inputs[0].shape[..], &inputs[1].shape[..], &inputs[2].shape[..])
        else {
            return Err(shape_error(
                "Attention",
                inputs,
                "queries, keys and values must be split into heads",
            ));
        };
        let sinks = inputs.get(3).map_or(&[][..], |_| &inputs[3..]);
        if !super::are_by_token(&inputs[..inputs.len() - sinks.len()]) {
            return Err(shape_error("Attention", inputs, "there must be a row for each token"));
        }
        if query != key || *values != Dim::Fixed(*kv_heads) {
            return Err(shape_error(
                "Attention",
                inputs,
                "widths of queries and keys, and key and value heads, must agree",
            ));
        }
        if *kv_heads == 0 || !heads.is_multiple_of(*kv_heads) {
            return Err(shape_error("Attention", inputs, "query heads must be a multiple of key heads"));
        }
        if inputs.get(3).is_some_and(|sinks| sinks.shape[..] != [Dim::Fixed(*heads)]) {
            return Err(shape_error("Attention", inputs, "there must be one sink per head"));
        }
        let Some(width) = heads.checked_mul(*value_dim) else {
            return Err(shape_error("Attention", inputs, "heads times width is too large"));
        };
        Ok(Type::f32(vec![*rows, Dim::Fixed(width)]))
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } = state else { return false };
        let width = |index: usize, axis: usize| fixed(inputs[index].shape.get(axis));
        [width(1, 1), width(1, 2), width(2, 2)] == [Some(*kv_heads), Some(*key_dim), Some(*value_dim)]
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (queries, keys, values) = (inputs[0], inputs[1], inputs[2]);
        let sinks = inputs.get(3).map(|sinks| sinks.floats());
        let (tokens, heads, key_dim) = (queries.shape[0], queries.shape[1], queries.shape[2]);
        let (kv_heads, value_dim) = (keys.shape[1], values.shape[2]);
        let group = context.group(self.state).clone();
        let positions = &context.step.positions;
        let memory = &mut context.memory[self.state.index()];
        for (token, cell) in group.write_cells.iter().enumerate() {
            memory.write(
                *cell as usize,
                &keys.floats()[token * kv_heads * key_dim..][..kv_heads * key_dim],
                &values.floats()[token * kv_heads * value_dim..][..kv_heads * value_dim],
            );
        }
        let mut out = vec![0.0_f32; tokens * heads * value_dim];
        for span in &group.spans {
            for token in span.tokens.clone() {
                let position = positions[token as usize];
                let cells: Vec<usize> = span
                    .cells
                    .iter()
                    .cloned()
                    .flatten()
                    .map(|cell| cell as usize)
                    .filter(|cell| self.mask.sees(position, group.cell_positions[*cell]))
                    .collect();
                for head in 0..heads {
                    let kv_head = head / (heads / kv_heads);
                    let row = token as usize * heads + head;
                    let query = &queries.floats()[row * key_dim..][..key_dim];
                    let scores = cells
                        .iter()
                        .map(|cell| {
                            let key = &memory.keys[(cell * kv_heads + kv_head) * key_dim..][..key_dim];
                            let mut score = dot(query, key) * self.scale as f64;
                            if let Some(cap) = self.soft_cap {
                                score = cap as f64 * (score / cap as f64).tanh();
                            }
                            if let Some(max_bias) = self.alibi_max_bias {
                                let distance = (position as f64 - group.cell_positions[*cell] as f64).abs();
                                score -= alibi_slope(max_bias, head as u32, heads as u32) * distance;
                            }
                            score
                        })
                        .collect::<Vec<f64>>();
                    let sink = sinks.map(|sinks| sinks[head] as f64);
                    let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - most).exp());
                    for element in 0..value_dim {
                        let sum: f64 = cells
                            .iter()
                            .zip(&weights)
                            .map(|(cell, weight)| {
                                weight
                                    * memory.values[(cell * kv_heads + kv_head) * value_dim + element] as f64
                            })
                            .sum();
                        if !cells.is_empty() {
                            out[row * value_dim + element] = (sum / total) as f32;
                        }
                    }
                }
            }
        }
        Array::f32(vec![tokens, heads * value_dim], out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_by_position() {
        for (mask, query, seen) in [
            (MaskRule::Causal, 3, 0..=3),
            (MaskRule::Window(1), 3, 3..=3),
            (MaskRule::Window(3), 5, 3..=5),
            (MaskRule::Window(100), 5, 0..=5),
            (MaskRule::Window(u32::MAX), 5, 0..=5),
            (MaskRule::Chunked(4), 6, 4..=6),
            (MaskRule::Chunked(4), 8, 8..=8),
            (MaskRule::Bidirectional, 5, 0..=10),
        ] {
            for key in 0..=10 {
                assert_eq!(mask.sees(query, key), seen.contains(&key), "{mask:?} {query} {key}");
            }
        }
        assert!(!(0..10).any(|key| MaskRule::Window(0).sees(5, key)));
        assert!(MaskRule::Causal.sees(i32::MAX, i32::MIN));
    }
}
