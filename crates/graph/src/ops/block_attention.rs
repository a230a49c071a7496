//! Attention over a window of tokens and over compressed blocks of all earlier ones.

use super::{OpDef, are_by_token, expect_inputs, extents, matmul::dot, shape_error};
use crate::{Array, Dim, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Inputs: queries `[Tokens, heads, n]`, rows `[Tokens, 1, n]`, block rows `[Tokens, 1, n]`, optional sinks `[heads]`.
/// Every query attends, in one softmax, to the rows of the last `window` positions and to the block rows of every
/// position that ends a block of `ratio` positions; a row is its own value. Result: `[Tokens, heads · n]`
/// (DeepSeek-V4's compressed sparse attention, with every block selected). State: rows as keys and block rows as
/// values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BlockAttention {
    /// The layer's cache.
    pub state: StateId,
    /// Factor on query · key.
    pub scale: f32,
    /// Positions whose own rows are seen, the query's included.
    pub window: u32,
    /// Positions in a block, at least 1.
    pub ratio: u32,
}

impl BlockAttention {
    /// Whether a query sees the row of an earlier or its own position, and the block row there.
    pub fn sees(&self, query: i32, key: i32) -> (bool, bool) {
        let past = key <= query;
        let near = past && (query as i64 - key as i64) < self.window as i64;
        (near, past && (key as i64 + 1) % self.ratio.max(1) as i64 == 0)
    }
}

impl OpDef for BlockAttention {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("BlockAttention", inputs, 3..=4, "queries, rows, block rows and perhaps sinks")?;
        if !are_by_token(&inputs[..3]) {
            return Err(shape_error("BlockAttention", inputs, "there must be a row for each token"));
        }
        let (queries, rows) = (extents(&inputs[0]), extents(&inputs[1]));
        let ([_, heads @ Some(count), Some(width)], [_, Some(1), row_width]) = (&queries[..], &rows[..])
        else {
            return Err(shape_error(
                "BlockAttention",
                inputs,
                "queries and one row must be split into heads",
            ));
        };
        let sinks = inputs.get(3).is_none_or(|sinks| extents(sinks)[..] == [*heads]);
        if *row_width != Some(*width) || inputs[1] != inputs[2] || !sinks || self.ratio == 0 {
            return Err(shape_error("BlockAttention", inputs, "widths and heads must agree"));
        }
        match count.checked_mul(*width) {
            Some(width) => Ok(Type::f32(vec![inputs[0].shape[0], Dim::Fixed(width)])),
            None => Err(shape_error("BlockAttention", inputs, "heads times width is too large")),
        }
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } = state else { return false };
        *kv_heads == 1 && key_dim == value_dim && inputs[1].width() == Some(*key_dim)
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (queries, rows, blocks) = (inputs[0], inputs[1], inputs[2]);
        let sinks = inputs.get(3).map(|sinks| sinks.floats());
        let (tokens, heads, width) = (queries.shape[0], queries.shape[1], queries.shape[2]);
        let group = context.group(self.state).clone();
        let positions = &context.step.positions;
        let memory = &mut context.memory[self.state.index()];
        for ((cell, row), block) in group.write_cells.iter().zip(rows.rows()).zip(blocks.rows()) {
            memory.write(*cell as usize, row, block);
        }
        let mut out = vec![0.0_f32; tokens * heads * width];
        for span in &group.spans {
            for token in span.tokens.clone() {
                let position = positions[token as usize];
                let mut seen: Vec<&[f32]> = Vec::new();
                for cell in span.cells.iter().cloned().flatten() {
                    let (near, block) = self.sees(position, group.cell_positions[cell as usize]);
                    let at = cell as usize * width;
                    seen.extend(near.then(|| &memory.keys[at..at + width]));
                    seen.extend(block.then(|| &memory.values[at..at + width]));
                }
                for head in 0..heads {
                    let place = (token as usize * heads + head) * width;
                    let query = &queries.floats()[place..place + width];
                    let scores: Vec<f64> =
                        seen.iter().map(|row| dot(query, row) * self.scale as f64).collect();
                    let sink = sinks.map(|sinks| sinks[head] as f64);
                    let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - most).exp());
                    for element in 0..width {
                        let terms = seen.iter().zip(&weights);
                        let sum: f64 = terms.map(|(row, weight)| weight * row[element] as f64).sum();
                        if !seen.is_empty() {
                            out[place + element] = (sum / total) as f32;
                        }
                    }
                }
            }
        }
        Array::f32(vec![tokens, heads * width], out)
    }
}
