//! Linear attention with the gated delta rule.

use puna_graph::ValueId;
use puna_graph::ops::{Function, GatedDeltaRule, KeyHeads, ScaleRows};

use crate::{Builder, ModelError};

/// How the decay of Kimi's delta attention follows from its gate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ChannelDecay {
    /// `exp(ssm_a · softplus(gate))`
    Softplus,
    /// `exp(bound · sigmoid(sign · ssm_a · gate))`
    Bounded {
        /// Logarithm of the strongest decay.
        bound: f32,
        /// Sign of `ssm_a` in the file.
        sign: f32,
    },
}

impl Builder<'_> {
    /// Gated delta net with one decay per head, as in Qwen3-Next (Yang et al., arXiv 2412.06464):
    /// `[Tokens, width]` to the same. `output_gate` is applied to `attn_gate · x`.
    pub fn gated_delta_net(
        &mut self,
        x: ValueId,
        key_heads: KeyHeads,
        output_gate: Function,
    ) -> Result<ValueId, ModelError> {
        let (key_dim, keys) = (self.extent("ssm.state_size")?, self.extent("ssm.group_count")?);
        let (heads, inner) = (self.extent("ssm.time_step_rank")?, self.extent("ssm.inner_size")?);
        if !heads.is_multiple_of(keys) || !inner.is_multiple_of(heads) {
            return Err(self.value_error(
                "ssm.time_step_rank",
                heads,
                "a multiple of groups, a divisor of inner",
            ));
        }
        let Some(side) = keys.checked_mul(key_dim).filter(|side| *side <= 1 << 24) else {
            return Err(self.value_error("ssm.state_size", key_dim, "smaller with so many groups"));
        };
        let mixed = self.linear("attn_qkv", x, 2 * side + inner)?;
        let z = self.linear("attn_gate", x, inner)?;
        let (rates, decays) =
            match !self.has_any(&["ssm_alpha"]) && self.either("ssm_ba.weight", "ssm_beta.weight")? {
                true => {
                    let both = self.linear("ssm_ba", x, 2 * heads)?;
                    let shared = heads / keys;
                    let split = self.split_heads(both, 2 * shared)?;
                    let (rates, decays) = (self.slice(split, 0, shared)?, self.slice(split, shared, shared)?);
                    (self.join_heads(rates)?, self.join_heads(decays)?)
                }
                false => (self.linear("ssm_beta", x, heads)?, self.linear("ssm_alpha", x, heads)?),
            };
        let rates = self.unary(Function::Sigmoid, rates, "ssm_beta")?;
        let bias = self.weight("ssm_dt.bias", &[heads])?;
        let decays = self.add(decays, bias)?;
        let decays = self.unary(Function::Softplus, decays, "ssm_dt")?;
        let slopes = self.weight("ssm_a", &[heads])?;
        let decays = self.mul(decays, slopes, "ssm_a")?;
        let decays = self.split_heads(decays, 1)?;

        let mixed = self.short_convolution("ssm_conv1d", mixed)?;
        let mixed = self.unary(Function::Silu, mixed, "ssm_conv1d")?;
        let (q, k) = (self.slice(mixed, 0, side)?, self.slice(mixed, side, side)?);
        let v = self.slice(mixed, 2 * side, inner)?;
        let (q, k) = (self.split_heads(q, key_dim)?, self.split_heads(k, key_dim)?);
        let v = self.split_heads(v, inner / heads)?;
        let epsilon = self.positive_f32("attention.layer_norm_rms_epsilon")?;
        let (q, k) = (self.unit_length(q, epsilon)?, self.unit_length(k, epsilon)?);
        let o = self.delta_rule([q, k, v, decays, rates], key_heads)?;
        let o = self.norm("ssm_norm", o)?;
        let o = self.join_heads(o)?;
        let o = self.glu(output_gate, z, o)?;
        let width = self.width(x);
        self.linear("ssm_out", o, width)
    }

    /// Kimi delta attention, with one decay per key channel (Kimi Team, arXiv 2510.26692): `[Tokens, width]` to the
    /// same. `heads` of `kda.head_dim`; `epsilon` is that of the unit length of queries and keys.
    pub fn kimi_delta_attention(
        &mut self,
        x: ValueId,
        heads: u32,
        decay: ChannelDecay,
        epsilon: f32,
    ) -> Result<ValueId, ModelError> {
        let dim = self.extent("kda.head_dim")?;
        let Some(inner) = heads.checked_mul(dim).filter(|inner| (1..=1 << 24).contains(inner)) else {
            return Err(self.value_error("kda.head_dim", dim, "smaller with so many heads"));
        };
        let branch = |b: &mut Self, projection: &'static str, convolution: &'static str| {
            let h = b.linear_with(projection, x, inner, false)?;
            let h = b.short_convolution(convolution, h)?;
            let h = b.unary(Function::Silu, h, convolution)?;
            b.split_heads(h, dim)
        };
        let q = branch(self, "attn_q", "ssm_conv1d_q")?;
        let k = branch(self, "attn_k", "ssm_conv1d_k")?;
        let v = branch(self, "attn_v", "ssm_conv1d_v")?;
        let (q, k) = (self.unit_length(q, epsilon)?, self.unit_length(k, epsilon)?);

        let gate = self.low_rank(x, ["ssm_f_a", "ssm_f_b"], inner)?;
        let bias = self.weight("ssm_dt.bias", &[inner])?;
        let gate = self.add(gate, bias)?;
        let gate = self.split_heads(gate, dim)?;
        let slopes = self.weight("ssm_a", &[heads])?;
        let decays = match decay {
            ChannelDecay::Softplus => {
                let gate = self.unary(Function::Softplus, gate, "ssm_f")?;
                self.push(ScaleRows, vec![gate.into(), slopes], "ssm_a")?
            }
            ChannelDecay::Bounded { bound, sign } => {
                let gate = self.push(ScaleRows, vec![gate.into(), slopes], "ssm_a")?;
                let gate = self.scale(gate, sign, "ssm_f")?;
                let gate = self.unary(Function::Sigmoid, gate, "ssm_f")?;
                self.scale(gate, bound, "ssm_f")?
            }
        };
        let rates = self.linear("ssm_beta", x, heads)?;
        let rates = self.unary(Function::Sigmoid, rates, "ssm_beta")?;
        let o = self.delta_rule([q, k, v, decays, rates], KeyHeads::Grouped)?;
        let o = self.norm("ssm_norm", o)?;
        let o = self.join_heads(o)?;
        let z = match !self.has_any(&["ssm_g_b"]) && self.either("ssm_g.weight", "ssm_g_a.weight")? {
            true => self.linear("ssm_g", x, inner)?,
            false => self.low_rank(x, ["ssm_g_a", "ssm_g_b"], inner)?,
        };
        let o = self.glu(Function::Sigmoid, z, o)?;
        let width = self.width(x);
        self.linear("attn_output", o, width)
    }

    /// `second · (first · x)`, or without the second tensor `first · x`. What is between them is as wide as a head, if the tensors
    /// do not say otherwise.
    fn low_rank(
        &mut self,
        x: ValueId,
        [first, second]: [&'static str; 2],
        width: u32,
    ) -> Result<ValueId, ModelError> {
        if !self.has_any(&[second]) {
            return self.linear(first, x, width);
        }
        let said =
            [(first, 1), (second, 0)].map(|(name, axis)| self.said_by(&format!("{name}.weight"), axis));
        let rank = self.agreed(Some(self.extent("kda.head_dim")?), said)?;
        let h = self.linear(first, x, rank)?;
        self.linear(second, h, width)
    }

    /// Queries, keys, values, logarithms of decay, learning rates through the recurrence.
    fn delta_rule(&mut self, inputs: [ValueId; 5], key_heads: KeyHeads) -> Result<ValueId, ModelError> {
        let [_, k, v, _, _] = inputs;
        let key_dim = self.width(k);
        let state = self.recurrent_state(&[self.heads_of(v), key_dim, self.width(v)])?;
        let scale = 1.0 / (key_dim as f32).sqrt();
        let inputs = inputs.into_iter().map(Into::into).collect();
        self.push(GatedDeltaRule { state, scale, key_heads }, inputs, "delta_rule")
    }
}
