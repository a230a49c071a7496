//! Mixture of experts: routing, selected projections and their weighted sum (Shazeer et al., arXiv 1701.06538).

use super::{Function, OpDef, expect_inputs, fixed, matmul::dot, row_index, shape_error};
use crate::{Array, Dim, Element, GraphError, Type, evaluate::Context};

/// How router logits become probabilities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// Softmax over the chosen experts alone; they are chosen by their logits.
    SoftmaxOfChosen,
    /// Square root of the softplus of each.
    SqrtSoftplus,
}

impl Gating {
    /// Scores of all experts from one row of logits: probabilities, or with [`Gating::SoftmaxOfChosen`] the
    /// logits themselves.
    pub fn scores(self, logits: &[f32]) -> Vec<f64> {
        let logits: Vec<f64> = logits.iter().map(|x| *x as f64).collect();
        match self {
            Gating::Softmax => softmax(&logits),
            Gating::Sigmoid => logits.iter().map(|x| Function::Sigmoid.apply(*x)).collect(),
            Gating::SoftmaxOfChosen => logits,
            Gating::SqrtSoftplus => logits.iter().map(|x| Function::Softplus.apply(*x).sqrt()).collect(),
        }
    }
}

fn softmax(values: &[f64]) -> Vec<f64> {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = values.iter().map(|x| (x - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Limits the choice of experts to the best groups of neighbours; a group counts as much as its two best
/// experts together (DeepSeek-V3, arXiv 2412.19437).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertGroups {
    /// Number of groups, a divisor of the number of experts.
    pub count: u32,
    /// Groups per token.
    pub used: u32,
}

impl ExpertGroups {
    /// Excludes the experts of all but the best groups.
    fn limit(self, scores: &mut [f64]) {
        let width = scores.len() / self.count as usize;
        let strength = |group: &[f64]| {
            let mut sorted = group.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted.iter().take(2).sum::<f64>()
        };
        let strengths: Vec<f64> = scores.chunks_exact(width).map(strength).collect();
        let mut order: Vec<usize> = (0..strengths.len()).collect();
        order.sort_by(|a, b| strengths[*b].total_cmp(&strengths[*a]));
        for group in &order[self.used as usize..] {
            scores[group * width..][..width].fill(f64::NEG_INFINITY);
        }
    }
}

/// Inputs: router logits `[Tokens, experts]`, optional selection bias `[experts]`.
/// Result: integers `[Tokens, used]`, the experts with the largest score plus bias, best first; of equals the
/// lower index.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RouteExperts {
    /// Experts per token.
    pub used: u32,
    /// Score function.
    pub gating: Gating,
    /// Groups that limit the choice.
    pub groups: Option<ExpertGroups>,
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
        if self.groups.is_some_and(|groups| {
            !(1..=groups.count).contains(&groups.used)
                || !experts.is_multiple_of(groups.count)
                || experts / groups.count * groups.used < self.used
        }) {
            return Err(shape_error("RouteExperts", inputs, "the groups in use must hold enough experts"));
        }
        Ok(Type { element: Element::I32, shape: vec![inputs[0].shape[0], Dim::Fixed(self.used)] })
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let mut data = Vec::new();
        for row in inputs[0].rows() {
            let mut scores = self.gating.scores(row);
            if let Some(bias) = inputs.get(1) {
                scores.iter_mut().zip(bias.floats()).for_each(|(score, bias)| *score += *bias as f64);
            }
            if let Some(groups) = self.groups {
                groups.limit(&mut scores);
            }
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            data.extend(order[..self.used as usize].iter().map(|expert| *expert as i32));
        }
        Array::i32(vec![inputs[0].shape[0], self.used as usize], data)
    }
}

/// Inputs: router logits `[Tokens, experts]`, selected experts `[Tokens, used]`, optional factors `[experts]`.
/// Result: `[Tokens, used]`, the share of each selected expert, times its factor.
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
        expect_inputs("ExpertWeights", inputs, 2..=3, "logits, selected experts and perhaps factors")?;
        let rows = inputs[0].shape[0] == inputs[1].shape[0];
        if inputs[0].shape.len() != 2 || inputs[1].shape.len() != 2 || !rows {
            return Err(shape_error("ExpertWeights", inputs, "it needs logits and experts of each token"));
        }
        if inputs.get(2).is_some_and(|factors| factors.shape[..] != inputs[0].shape[1..]) {
            return Err(shape_error("ExpertWeights", inputs, "there must be one factor per expert"));
        }
        Ok(Type::f32(inputs[1].shape.clone()))
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        /// Below it the sum of shares counts as this: the smallest normal half-precision number.
        const LEAST_SUM: f64 = 6.103515625e-5;
        let (logits, experts) = (inputs[0], inputs[1]);
        let used = experts.width();
        let mut data = Vec::new();
        for (row, experts) in logits.rows().zip(experts.integers().chunks_exact(used)) {
            let scores = self.gating.scores(row);
            let mut shares: Vec<f64> =
                experts.iter().map(|expert| scores[row_index(*expert, scores.len())]).collect();
            if self.gating == Gating::SoftmaxOfChosen {
                shares = softmax(&shares);
            }
            let divisor = if self.normalise { shares.iter().sum::<f64>().max(LEAST_SUM) } else { 1.0 };
            data.extend(shares.iter().zip(experts).map(|(share, expert)| {
                let factor = inputs.get(2).map_or(1.0, |factors| {
                    let factors = factors.floats();
                    factors[row_index(*expert, factors.len())] as f64
                });
                (share / divisor * self.scale as f64 * factor) as f32
            }));
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
        let shared = x.shape.len() == 2 && x.shape[0] == experts.shape[0];
        if experts.shape.len() != 2 || x.width() != Some(columns) || !(shared || spread) {
            return Err(shape_error("MatMulExperts", inputs, "rows, width and selection must agree"));
        }
        Ok(Type::f32(vec![experts.shape[0], experts.shape[1], Dim::Fixed(rows)]))
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[2]
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (weights, x, experts) = (inputs[0], inputs[1], inputs[2]);
        let (rows, columns, used) = (weights.shape[1], weights.shape[2], experts.width());
        let mut data = Vec::new();
        for (slot, expert) in experts.integers().iter().enumerate() {
            let row = if x.shape.len() == 2 { slot / used } else { slot };
            let x = &x.floats()[row * columns..][..columns];
            let matrix =
                &weights.floats()[row_index(*expert, weights.shape[0]) * rows * columns..][..rows * columns];
            data.extend(matrix.chunks_exact(columns).map(|w| dot(w, x) as f32));
        }
        Array::f32(vec![experts.shape[0], used, rows], data)
    }
}

/// Inputs: `x` `[Tokens, used, n]`, optional shares `[Tokens, used]`. Result: `[Tokens, n]`, the sum of
/// share · row, or of the rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SumExperts;

impl OpDef for SumExperts {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("SumExperts", inputs, 1..=2, "a value and perhaps shares")?;
        let x = &inputs[0];
        let agrees = |shares: &Type| x.shape.get(..2) == Some(&shares.shape[..]);
        let rows = x.shape.len() == 3 && fixed(x.shape.get(1)).is_some();
        if !rows || !inputs.get(1).is_none_or(agrees) {
            return Err(shape_error("SumExperts", inputs, "there must be one share per expert row"));
        }
        Ok(Type::f32(vec![x.shape[0], x.shape[2]]))
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (x, shares) = (inputs[0], inputs.get(1).map(|shares| shares.floats()));
        let (used, width) = (x.shape[1], x.shape[2]);
        let mut data = Vec::with_capacity(x.shape[0] * width);
        for (token, rows) in x.floats().chunks_exact(used * width).enumerate() {
            let share = |slot: usize| shares.map_or(1.0, |shares| shares[token * used + slot] as f64);
            data.extend((0..width).map(|element| {
                (0..used).map(|slot| share(slot) * rows[slot * width + element] as f64).sum::<f64>() as f32
            }));
        }
        Array::f32(vec![x.shape[0], width], data)
    }
}

/// Inputs: `x` `[Tokens, used, n]`, biases `[experts, n]`, selected experts `[Tokens, used]`.
/// Result: row `(t, u)` plus the bias of the expert selected there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddExpertBias;

impl OpDef for AddExpertBias {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("AddExpertBias", inputs, 3..=3, "a value, biases and selected experts")?;
        let (x, biases, experts) = (&inputs[0], &inputs[1], &inputs[2]);
        let rows = x.shape.len() == 3 && x.shape[..2] == experts.shape[..];
        let fixed = matches!(biases.shape.first(), Some(Dim::Fixed(_)));
        if !rows || !fixed || biases.shape.len() != 2 || x.shape[2..] != biases.shape[1..] {
            return Err(shape_error("AddExpertBias", inputs, "there must be one bias per expert and column"));
        }
        Ok(x.clone())
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[2]
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (x, biases, experts) = (inputs[0], inputs[1].floats(), inputs[2].integers());
        let width = x.width();
        let rows = x.rows().zip(experts);
        let data = rows.flat_map(|(row, expert)| {
            let bias = &biases[row_index(*expert, inputs[1].shape[0]) * width..];
            row.iter().zip(bias).map(|(x, bias)| x + bias)
        });
        Array::f32(x.shape.clone(), data.collect())
    }
}

/// Input: selected experts `[Tokens, used]`. Result: the number of the group of `size` neighbours that each
/// is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupOfExpert {
    /// Experts per group, at least 1.
    pub size: u32,
}

impl OpDef for GroupOfExpert {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("GroupOfExpert", inputs, 1..=1, "selected experts")?;
        if self.size == 0 || i32::try_from(self.size).is_err() {
            return Err(shape_error(
                "GroupOfExpert",
                inputs,
                "groups must have at least one and not too many",
            ));
        }
        Ok(inputs[0].clone())
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[0]
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let groups = inputs[0].integers().iter().map(|expert| expert / self.size as i32).collect();
        Array::i32(inputs[0].shape.clone(), groups)
    }
}
