//! Mixture of experts: routing, selected projections and their weighted sum (Shazeer et al., arXiv 1701.06538).

use super::{OpDef, expect_inputs, fixed, matmul::dot, shape_error};
use crate::{Array, Dim, Element, GraphError, Type, evaluate::Context};

/// How router logits become probabilities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

impl Gating {
    /// Probabilities of all experts from one row of logits.
    pub fn probabilities(self, logits: &[f32]) -> Vec<f64> {
        match self {
            Gating::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
                let weights: Vec<f64> = logits.iter().map(|x| (*x as f64 - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                weights.iter().map(|weight| weight / total).collect()
            }
            Gating::Sigmoid => logits.iter().map(|x| super::Function::Sigmoid.apply(*x as f64)).collect(),
        }
    }
}

/// Inputs: router logits `[Tokens, experts]`, optional selection bias `[experts]`.
/// Result: integers `[Tokens, used]`, the experts with the largest probability plus bias, best first; of
/// equals the lower index.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RouteExperts {
    /// Experts per token.
    pub used: u32,
    /// Probability function.
    pub gating: Gating,
}

impl OpDef for RouteExperts {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("RouteExperts", inputs, 1..=2, "logits and perhaps a bias")?;
        let experts = inputs[0].width().unwrap_or(0);
        if inputs[0].shape.len() != 2 || self.used == 0 || self.used > experts {
            return Err(shape_error("RouteExperts", inputs, "experts in use must be between one and all"));
        }
        if inputs.get(1).is_some_and(|bias| bias.shape[..] != [Dim::Fixed(experts)]) {
            return Err(shape_error("RouteExperts", inputs, "there must be one bias per expert"));
        }
        Ok(Type { element: Element::I32, shape: vec![inputs[0].shape[0], Dim::Fixed(self.used)] })
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let mut data = Vec::new();
        for row in inputs[0].rows() {
            let mut scores = self.gating.probabilities(row);
            if let Some(bias) = inputs.get(1) {
                scores.iter_mut().zip(bias.floats()).for_each(|(score, bias)| *score += *bias as f64);
            }
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            data.extend(order[..self.used as usize].iter().map(|expert| *expert as i32));
        }
        Array::i32(vec![inputs[0].shape[0], self.used as usize], data)
    }
}

/// Inputs: router logits `[Tokens, experts]`, selected experts `[Tokens, used]`.
/// Result: `[Tokens, used]`, the share of each selected expert.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExpertWeights {
    /// Probability function.
    pub gating: Gating,
    /// Whether the shares of a token are divided by their sum.
    pub normalise: bool,
    /// Factor on the shares.
    pub scale: f32,
}

impl OpDef for ExpertWeights {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("ExpertWeights", inputs, 2..=2, "logits and selected experts")?;
        if inputs[0].shape.len() != 2 || inputs[1].element != Element::I32 {
            return Err(shape_error("ExpertWeights", inputs, "it needs logits and integers"));
        }
        Ok(Type::f32(inputs[1].shape.clone()))
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        /// Below it the sum of shares counts as this: the smallest normal half-precision number.
        const LEAST_SUM: f64 = 6.103515625e-5;
        let (logits, experts) = (inputs[0], inputs[1]);
        let used = experts.width();
        let mut data = Vec::new();
        for (row, experts) in logits.rows().zip(experts.integers().chunks_exact(used)) {
            let probabilities = self.gating.probabilities(row);
            let shares: Vec<f64> = experts.iter().map(|expert| probabilities[*expert as usize]).collect();
            let divisor = if self.normalise { shares.iter().sum::<f64>().max(LEAST_SUM) } else { 1.0 };
            data.extend(shares.iter().map(|share| (share / divisor * self.scale as f64) as f32));
        }
        Array::f32(experts.shape.clone(), data)
    }
}

/// Inputs: weights `[experts, n, k]`, `x` `[Tokens, k]` or `[Tokens, used, k]`, selected experts
/// `[Tokens, used]`. Result: `[Tokens, used, n]`: row `(t, u)` is projected by the expert selected there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatMulExperts;

impl OpDef for MatMulExperts {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("MatMulExperts", inputs, 3..=3, "weights, a value and selected experts")?;
        let (weights, x, experts) = (&inputs[0], &inputs[1], &inputs[2]);
        let [_, Dim::Fixed(rows), Dim::Fixed(columns)] = weights.shape[..] else {
            return Err(shape_error("MatMulExperts", inputs, "the weights must be a matrix per expert"));
        };
        let spread = x.shape.len() == 3 && x.shape[..2] == experts.shape[..];
        if experts.element != Element::I32 || x.width() != Some(columns) || !(x.shape.len() == 2 || spread) {
            return Err(shape_error("MatMulExperts", inputs, "rows, width and selection must agree"));
        }
        Ok(Type::f32(vec![experts.shape[0], experts.shape[1], Dim::Fixed(rows)]))
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (weights, x, experts) = (inputs[0], inputs[1], inputs[2]);
        let (rows, columns, used) = (weights.shape[1], weights.shape[2], experts.width());
        let mut data = Vec::new();
        for (slot, expert) in experts.integers().iter().enumerate() {
            let row = if x.shape.len() == 2 { slot / used } else { slot };
            let x = &x.floats()[row * columns..][..columns];
            let matrix = &weights.floats()[*expert as usize * rows * columns..][..rows * columns];
            data.extend(matrix.chunks_exact(columns).map(|w| dot(w, x) as f32));
        }
        Array::f32(vec![experts.shape[0], used, rows], data)
    }
}

/// Inputs: `x` `[Tokens, used, n]`, shares `[Tokens, used]`. Result: `[Tokens, n]`, the sum of share · row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SumExperts;

impl OpDef for SumExperts {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("SumExperts", inputs, 2..=2, "a value and shares")?;
        let (x, shares) = (&inputs[0], &inputs[1]);
        if x.shape.len() != 3 || x.shape[..2] != shares.shape[..] || fixed(shares.shape.last()).is_none() {
            return Err(shape_error("SumExperts", inputs, "there must be one share per expert row"));
        }
        Ok(Type::f32(vec![x.shape[0], x.shape[2]]))
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (x, shares) = (inputs[0], inputs[1]);
        let (used, width) = (x.shape[1], x.shape[2]);
        let mut data = Vec::with_capacity(x.shape[0] * width);
        for (rows, shares) in x.floats().chunks_exact(used * width).zip(shares.floats().chunks_exact(used)) {
            data.extend((0..width).map(|element| {
                let sum: f64 = shares
                    .iter()
                    .enumerate()
                    .map(|(slot, share)| *share as f64 * rows[slot * width + element] as f64)
                    .sum();
                sum as f32
            }));
        }
        Array::f32(vec![x.shape[0], width], data)
    }
}
