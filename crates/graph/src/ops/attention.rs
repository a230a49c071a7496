//! Attention over a layer's cache.

use super::{OpDef, expect_inputs, fixed, matmul::dot, shape_error};
use crate::{Array, Dim, GraphError, StateDecl, StateId, Symbol, Type, evaluate::Context};

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
    /// Those at most half of so many positions away, before or after.
    SymmetricWindow(u32),
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
            MaskRule::SymmetricWindow(n) => {
                let half = i64::from(n / 2);
                (back(half), i32::try_from(i64::from(query) + half).unwrap_or(i32::MAX))
            }
            MaskRule::Bidirectional => (i32::MIN, i32::MAX),
        }
    }

    /// Whether the query at `query` sees the key at `key`.
    pub fn sees(self, query: i32, key: i32) -> bool {
        let (first, last) = self.interval(query);
        first <= key && key <= last
    }
}

/// A learned bias on scores by the distance of key and query, in buckets that widen with it (Raffel et al.,
/// arXiv 1910.10683): the first half of the buckets, as far as they serve one direction, holds one distance
/// each, the others grow geometrically up to [`RelativeBias::REACH`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelativeBias {
    /// Number of buckets: rows of the table; at least 2, or 4 in both directions.
    pub buckets: u32,
    /// Whether later keys have buckets of their own: the second half of the table.
    pub both_directions: bool,
}

impl RelativeBias {
    /// Distance from which on all keys share a bucket.
    pub const REACH: i32 = 128;

    /// Row of the table for a key `offset` positions after the query.
    pub fn bucket(self, offset: i32) -> usize {
        let buckets = if self.both_directions { self.buckets / 2 } else { self.buckets };
        let later = self.both_directions && offset > 0;
        let distance =
            if self.both_directions { offset.unsigned_abs() } else { offset.min(0).unsigned_abs() };
        let exact = buckets / 2;
        let bucket = if distance < exact {
            distance
        } else {
            let octaves = (distance as f64 / exact as f64).ln() / (Self::REACH as f64 / exact as f64).ln();
            // Rounded to single precision first: whole numbers stay whole.
            let bucket = exact as f64 + octaves * (buckets - exact) as f64;
            (bucket as f32 as u32).min(buckets - 1)
        };
        (bucket + if later { buckets } else { 0 }) as usize
    }

    fn is_sound(self) -> bool {
        let least = if self.both_directions { 4 } else { 2 };
        (least..=4 * Self::REACH as u32).contains(&self.buckets)
            && self.buckets.is_multiple_of(least)
            && self.buckets / least < Self::REACH as u32
    }
}

/// Inputs: queries `[Tokens, heads, key_dim]`, keys `[Tokens, kv_heads, key_dim]`, values
/// `[Tokens, kv_heads, value_dim]`, optional sinks `[heads]`, with a relative bias its table `[buckets, heads]`. The
/// rows may also be of another axis, as the cache's group says. Keys and values are first stored in the state's
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
    /// Bias by distance, whose table is the last input; not together with ALiBi.
    pub relative: Option<RelativeBias>,
}

/// Slope of head `head` of `heads`: a geometric series over the largest power of two of heads, the rest
/// interleaved between.
pub fn alibi_slope(max_bias: f32, head: u32, heads: u32) -> f64 {
    let power = 1_u32 << heads.max(1).ilog2();
    let first = 2.0_f64.powf(-max_bias as f64 / power as f64);
    let between = 2.0_f64.powf(-max_bias as f64 / 2.0 / power as f64);
    if head < power { first.powi(head as i32 + 1) } else { between.powi(2 * (head - power) as i32 + 1) }
}

impl Attention {
    /// Sinks and the table of the relative bias, of those inputs that are there.
    pub fn optional_inputs<'i, T>(&self, inputs: &'i [T]) -> (Option<&'i T>, Option<&'i T>) {
        let rest = inputs.get(3..).unwrap_or_default();
        match (self.relative, rest) {
            (None, rest) => (rest.first(), None),
            (Some(_), [table]) => (None, Some(table)),
            (Some(_), rest) => (rest.first(), rest.get(1)),
        }
    }
}

impl OpDef for Attention {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        let tables = usize::from(self.relative.is_some());
        let expected = "queries, keys, values, perhaps sinks, with a relative bias its table";
        expect_inputs("Attention", inputs, 3 + tables..=4 + tables, expected)?;
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
        let by_token = |input: &Type| {
            matches!(input.shape.first(), Some(Dim::Of(Symbol::Tokens | Symbol::EncoderTokens)))
        };
        let together = inputs[1].shape.first() == inputs[2].shape.first();
        if !inputs[..3].iter().all(by_token) || !together {
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
        let (sinks, table) = self.optional_inputs(inputs);
        if sinks.is_some_and(|sinks| sinks.shape[..] != [Dim::Fixed(*heads)]) {
            return Err(shape_error("Attention", inputs, "there must be one sink per head"));
        }
        if let Some(bias) = self.relative {
            let shape = [Dim::Fixed(bias.buckets), Dim::Fixed(*heads)];
            if !bias.is_sound() || table.is_none_or(|table| table.shape[..] != shape) {
                let reason = "the relative bias needs a table of few buckets by heads";
                return Err(shape_error("Attention", inputs, reason));
            }
            if self.alibi_max_bias.is_some() {
                return Err(shape_error("Attention", inputs, "there are two kinds of bias by distance"));
            }
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
        let rows = |index: usize, symbol: Symbol| inputs[index].shape.first() == Some(&Dim::Of(symbol));
        let group = state.group();
        [width(1, 1), width(1, 2), width(2, 2)] == [Some(*kv_heads), Some(*key_dim), Some(*value_dim)]
            && rows(0, group.readers())
            && rows(1, group.writers())
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (queries, keys, values) = (inputs[0], inputs[1], inputs[2]);
        let (sinks, table) = self.optional_inputs(inputs);
        let sinks = sinks.map(|sinks| sinks.floats());
        let (tokens, heads, key_dim) = (queries.shape[0], queries.shape[1], queries.shape[2]);
        let (kv_heads, value_dim) = (keys.shape[1], values.shape[2]);
        let group = context.group(self.state).clone();
        let readers = context.graph.states[self.state.index()].group().readers();
        let positions = context.step.positions_of(readers);
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
                            if let (Some(bias), Some(table)) = (self.relative, table) {
                                let bucket = bias.bucket(group.cell_positions[*cell] - position);
                                score += table.floats()[bucket * heads + head] as f64;
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
