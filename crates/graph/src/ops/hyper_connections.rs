//! Hyper-connections: several residual streams, mixed before and after each branch.

use super::{OpDef, expect_inputs, extents, shape_error, unary::Function};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// What [`HyperRead`] and [`HyperWrite`] check alike: streams, mixing logits, scales, bases.
fn streams_of(
    op: &'static str,
    inputs: &[Type],
    [streams, mixing, scales, bases]: [usize; 4],
    parts: impl Fn(u32) -> Option<(u32, u32)>,
) -> Result<(u32, u32), GraphError> {
    let (streams, logits) = (extents(&inputs[streams]), extents(&inputs[mixing]));
    let (scales, bases) = (extents(&inputs[scales]), extents(&inputs[bases]));
    let ([_, Some(count), Some(width)], [_, found]) = (&streams[..], &logits[..]) else {
        return Err(shape_error(op, inputs, "it needs streams and a row of mixing logits"));
    };
    let Some((needed, factors)) = parts(*count).filter(|_| *count > 0) else {
        return Err(shape_error(op, inputs, "there are too many streams"));
    };
    let enough = |extents: &[Option<u32>], least: u32| matches!(extents, [Some(n)] if *n >= least);
    if !enough(&[*found], needed) || !enough(&bases, needed) || !enough(&scales, factors) {
        return Err(shape_error(op, inputs, "there must be a logit, a base and a scale for each part"));
    }
    Ok((*count, *width))
}

/// Inputs: streams `[Tokens, n, width]`, mixing logits `[Tokens, ≥ n]`, scales `[≥ 1]`, bases `[≥ n]`. Result:
/// `[Tokens, width]`, the sum over streams of `sigmoid(logit · scale + base) + epsilon` times the stream: what a branch
/// reads (Zhu et al., arXiv 2409.19606; in this form DeepSeek-AI, arXiv 2512.24880).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HyperRead {
    /// Added to each weight.
    pub epsilon: f32,
}

impl OpDef for HyperRead {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("HyperRead", inputs, 4..=4, "streams, logits, scales and bases")?;
        let (_, width) = streams_of("HyperRead", inputs, [0, 1, 2, 3], |n| Some((n, 1)))?;
        if inputs[0].shape[0] != inputs[1].shape[0] {
            return Err(shape_error("HyperRead", inputs, "streams and logits must have as many rows"));
        }
        Ok(Type::f32(vec![inputs[0].shape[0], Dim::Fixed(width)]))
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (streams, scales, bases) = (inputs[0], inputs[2].floats(), inputs[3].floats());
        let (count, width) = (streams.shape[1], streams.shape[2]);
        let mut data = Vec::with_capacity(streams.shape[0] * width);
        for (streams, logits) in streams.floats().chunks_exact(count * width).zip(inputs[1].rows()) {
            let weights: Vec<f64> = (0..count)
                .map(|stream| {
                    let logit = logits[stream] as f64 * scales[0] as f64 + bases[stream] as f64;
                    Function::Sigmoid.apply(logit) + self.epsilon as f64
                })
                .collect();
            data.extend((0..width).map(|element| {
                let terms = weights.iter().enumerate();
                terms.map(|(stream, weight)| weight * streams[stream * width + element] as f64).sum::<f64>()
                    as f32
            }));
        }
        Array::f32(vec![streams.shape[0], width], data)
    }
}

/// Inputs: streams `[Tokens, n, width]`, a branch's result `[Tokens, width]`, mixing logits `[Tokens, 2n + n²]`, scales
/// `[3]`, bases `[2n + n²]`; without `rounds` the last part of each is not read and may be missing. Result: streams,
/// `stream_d ← (magnitude · sigmoid(logit_{n+d} · scale_1 + base) + offset) · result + Σ_s C[s][d] · stream_s`.
///
/// `C` is the identity without `rounds`. Else it is the softmax over destinations of the last `n²` logits, read as
/// `[source][destination]`, plus `epsilon`, made doubly stochastic: columns (sums over sources) are divided by their
/// sums, then `rounds − 1` times rows and columns, each sum plus `epsilon` (Sinkhorn and Knopp; DeepSeek-AI,
/// arXiv 2512.24880).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HyperWrite {
    /// Factor on the share of the branch.
    pub magnitude: f32,
    /// Added to it.
    pub offset: f32,
    /// Added to weights and to sums.
    pub epsilon: f32,
    /// Normalisations of the mixture of streams, at least 1; none if streams are not mixed.
    pub rounds: Option<u32>,
}

/// More change nothing that a float shows.
const MOST_ROUNDS: u32 = 1000;

impl HyperWrite {
    /// `C` from its logits, `[source][destination]`.
    pub fn mixture(&self, logits: &[f64], count: usize, rounds: u32) -> Vec<f64> {
        let epsilon = self.epsilon as f64;
        let mut mixture = logits.to_vec();
        for row in mixture.chunks_exact_mut(count) {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row.iter_mut().for_each(|x| *x = (*x - most).exp());
            let total: f64 = row.iter().sum();
            row.iter_mut().for_each(|x| *x = *x / total + epsilon);
        }
        for round in 0..rounds {
            if round > 0 {
                for row in mixture.chunks_exact_mut(count) {
                    let total = row.iter().sum::<f64>() + epsilon;
                    row.iter_mut().for_each(|x| *x /= total);
                }
            }
            for column in 0..count {
                let total = mixture.iter().skip(column).step_by(count).sum::<f64>() + epsilon;
                mixture.iter_mut().skip(column).step_by(count).for_each(|x| *x /= total);
            }
        }
        mixture
    }
}

impl OpDef for HyperWrite {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("HyperWrite", inputs, 5..=5, "streams, a result, logits, scales and bases")?;
        let parts = |n: u32| {
            let shares = n.checked_mul(2)?;
            match self.rounds {
                Some(_) => Some((shares.checked_add(n.checked_mul(n)?)?, 3)),
                None => Some((shares, 2)),
            }
        };
        let (_, width) = streams_of("HyperWrite", inputs, [0, 2, 3, 4], parts)?;
        if self.rounds.is_some_and(|rounds| !(1..=MOST_ROUNDS).contains(&rounds)) {
            return Err(shape_error("HyperWrite", inputs, "there must be 1 to 1000 rounds"));
        }
        let rows = inputs[0].shape[0];
        if inputs[1].shape[..] != [rows, Dim::Fixed(width)] || inputs[2].shape[0] != rows {
            return Err(shape_error("HyperWrite", inputs, "the result must be as wide as a stream"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (streams, result, scales, bases) = (inputs[0], inputs[1], inputs[3].floats(), inputs[4].floats());
        let (count, width) = (streams.shape[1], streams.shape[2]);
        let mut data = Vec::with_capacity(streams.floats().len());
        let rows = streams.floats().chunks_exact(count * width).zip(result.rows()).zip(inputs[2].rows());
        for ((streams, result), logits) in rows {
            let logit = |index: usize, scale: usize| {
                logits[index] as f64 * scales[scale] as f64 + bases[index] as f64
            };
            let mixture = self.rounds.map(|rounds| {
                let logits: Vec<f64> = (0..count * count).map(|index| logit(2 * count + index, 2)).collect();
                self.mixture(&logits, count, rounds)
            });
            for stream in 0..count {
                let share = Function::Sigmoid.apply(logit(count + stream, 1)) * self.magnitude as f64
                    + self.offset as f64;
                data.extend((0..width).map(|element| {
                    let kept = match &mixture {
                        Some(mixture) => (0..count)
                            .map(|source| {
                                mixture[source * count + stream] * streams[source * width + element] as f64
                            })
                            .sum(),
                        None => streams[stream * width + element] as f64,
                    };
                    (kept + share * result[element] as f64) as f32
                }));
            }
        }
        Array::f32(streams.shape.clone(), data)
    }
}
