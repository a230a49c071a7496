//! RWKV 6 (Peng et al., arXiv 2404.05892), and QRWKV, which has its mixer in a Qwen 2 decoder.

use puna_graph::ops::{Function, GatedLinearAttention, Interpolate, LayerNorm, MatMulHeads, RepeatHeads};
use puna_graph::{Graph, ValueId};

use crate::blocks::OUTPUT;
use crate::{Architecture, Builder, ModelError};

pub const RWKV6: Architecture = Architecture::new("rwkv6", build);
pub const RWKV6_QWEN2: Architecture = Architecture::new("rwkv6qwen2", build_qwen2);

/// Values that are mixed with the token before: decay, key, value, receptance, gate.
const MIXTURES: u32 = 5;

/// Biases of RWKV's layer norms.
pub const NORM_BIASES: &[&str] =
    &["token_embd_norm.bias", "attn_norm.bias", "attn_norm_2.bias", "output_norm.bias"];

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(NORM_BIASES).needing(OUTPUT);
    let rescale = b.u32_or("rescale_every_n_layers", 0)?;
    let x = b.embed()?;
    let x = b.norm("token_embd_norm", x)?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let mixed = mix(b, h)?;
        let gate = gated(b, mixed, false, Function::Silu)?;
        let h = b.project_back(gate, x)?;
        let x = b.add(x, h)?;
        let h = b.norm("attn_norm_2", x)?;
        let h = b.channel_mix(h, true)?;
        let x = b.add(x, h)?;
        match rescale > 0 && (b.layer() + 1).is_multiple_of(rescale) {
            true => b.scale(x, 0.5, "rescale"),
            false => Ok(x),
        }
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

fn build_qwen2(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let mixed = mix(b, h)?;
        let gate = gated(b, mixed, true, Function::Sigmoid)?;
        let h = b.project_back(gate, x)?;
        let x = b.add(x, h)?;
        let h = b.norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Mixtures of each row with the one before, in shares that depend on the row: `MIXTURES` values.
fn mix(b: &mut Builder<'_>, x: ValueId) -> Result<[ValueId; 5], ModelError> {
    let width = b.width(x);
    let before = b.token_shift(x)?;
    let shares = b.weight("time_mix_lerp_x.weight", &[1, width])?;
    let h = b.push(Interpolate, vec![x.into(), before.into(), shares], "time_mix_lerp_x")?;
    let rank = b.extent("time_mix_extra_dim")?;
    let h = b.linear("time_mix_w1", h, MIXTURES * rank)?;
    let h = b.unary(Function::Tanh, h, "time_mix_w1")?;
    let h = b.split_heads(h, rank)?;
    let second = b.weight("time_mix_w2.weight", &[MIXTURES, width, rank])?;
    let h = b.push(MatMulHeads, vec![second, h.into()], "time_mix_w2")?;
    let fixed = b.weight("time_mix_lerp_fused.weight", &[MIXTURES, width])?;
    let shares = b.add(h, fixed)?;
    let mixed = b.push(Interpolate, vec![x.into(), before.into(), shares.into()], "time_mix_lerp")?;
    b.mixtures(mixed, width)
}

/// The recurrence, its norm if it has one, and the gate.
fn gated(
    b: &mut Builder<'_>,
    [w, k, v, r, g]: [ValueId; 5],
    is_qwen2: bool,
    gate: Function,
) -> Result<ValueId, ModelError> {
    let (heads, dim) = b.wkv_heads()?;
    let width = heads * dim;
    let kv_width = match is_qwen2 {
        true => b.count("attention.head_count_kv", heads)? * dim,
        false => width,
    };
    if !width.is_multiple_of(kv_width) || !kv_width.is_multiple_of(dim) {
        return Err(b.value_error("wkv.head_size", dim, "a divisor of the widths of keys"));
    }
    let r = b.linear("time_mix_receptance", r, width)?;
    let k = b.linear("time_mix_key", k, kv_width)?;
    let v = b.linear("time_mix_value", v, kv_width)?;
    let g = b.linear("time_mix_gate", g, width)?;
    let rank = b.extent("time_decay_extra_dim")?;
    let w = b.linear("time_mix_decay_w1", w, rank)?;
    let w = b.unary(Function::Tanh, w, "time_mix_decay")?;
    let w = b.linear("time_mix_decay_w2", w, width)?;
    let decay = b.weight("time_mix_decay.weight", &[width])?;
    let w = b.add(w, decay)?;
    // exp(−exp(w))
    let w = b.unary(Function::Exp, w, "time_mix_decay")?;
    let w = b.scale(w, -1.0, "time_mix_decay")?;
    let w = b.unary(Function::Exp, w, "time_mix_decay")?;

    let (r, w) = (b.split_heads(r, dim)?, b.split_heads(w, dim)?);
    let shared = width / kv_width;
    let (mut k, mut v) = (b.split_heads(k, dim)?, b.split_heads(v, dim)?);
    if shared > 1 {
        k = b.push(RepeatHeads { times: shared }, vec![k.into()], "time_mix_key")?;
        v = b.push(RepeatHeads { times: shared }, vec![v.into()], "time_mix_value")?;
    }
    let state = b.recurrent_state(&[heads, dim, dim])?;
    let mut inputs = Vec::new();
    let mut scale = 1.0;
    if is_qwen2 {
        // k · (1 − w)
        let forgotten = b.mul(k, w, "time_mix_key")?;
        let forgotten = b.scale(forgotten, -1.0, "time_mix_key")?;
        k = b.add(k, forgotten)?;
        scale = 1.0 / (dim as f32).sqrt();
    } else {
        inputs.push(b.weight("time_mix_first.weight", &[heads, dim])?);
    }
    let inputs = [r.into(), k.into(), v.into(), w.into()].into_iter().chain(inputs).collect();
    let attention = GatedLinearAttention { state, scale, head_decays: None };
    let mut y = b.push(attention, inputs, "wkv")?;
    if !is_qwen2 {
        y = b.wkv_norm(y)?;
    }
    let y = b.join_heads(y)?;
    let y = if is_qwen2 { y } else { b.wkv_norm_weights(y)? };
    b.glu(gate, g, y)
}

impl Builder<'_> {
    /// Heads of a recurrence and their width, `wkv.head_size`.
    pub fn wkv_heads(&self) -> Result<(u32, u32), ModelError> {
        let (width, dim) = (self.extent("embedding_length")?, self.extent("wkv.head_size")?);
        match width.is_multiple_of(dim) {
            true => Ok((width / dim, dim)),
            false => Err(self.value_error("wkv.head_size", dim, "a divisor of embedding_length")),
        }
    }

    /// Parts of `width` of a row of mixtures.
    pub fn mixtures<const N: usize>(&mut self, x: ValueId, width: u32) -> Result<[ValueId; N], ModelError> {
        let mut parts = [x; N];
        for (index, part) in parts.iter_mut().enumerate() {
            *part = self.slice(x, index as u32 * width, width)?;
        }
        Ok(parts)
    }

    /// Layer norm of each head without weights.
    pub fn wkv_norm(&mut self, y: ValueId) -> Result<ValueId, ModelError> {
        /// 1e-5 times the square of the divisor of heads, 8.
        const EPSILON: f32 = 64e-5;
        self.push(LayerNorm { epsilon: EPSILON }, vec![y.into()], "time_mix_ln")
    }

    /// The weights of that norm, `time_mix_ln`, over all heads.
    pub fn wkv_norm_weights(&mut self, y: ValueId) -> Result<ValueId, ModelError> {
        let width = self.width(y);
        let weight = self.weight("time_mix_ln.weight", &[width])?;
        let y = self.mul(y, weight, "time_mix_ln")?;
        let bias = self.weight("time_mix_ln.bias", &[width])?;
        self.add(y, bias)
    }

    /// `time_mix_output`, as wide as the residual stream.
    pub fn project_back(&mut self, y: ValueId, x: ValueId) -> Result<ValueId, ModelError> {
        let width = self.width(x);
        self.linear("time_mix_output", y, width)
    }

    /// RWKV's feed-forward network: a squared ReLU on a mixture with the row before, in RWKV 6 with a gate.
    pub fn channel_mix(&mut self, x: ValueId, is_gated: bool) -> Result<ValueId, ModelError> {
        let width = self.width(x);
        let before = self.token_shift(x)?;
        let mixture = |b: &mut Self, name: &'static str| {
            let shares = b.weight(&format!("{name}.weight"), &[1, width])?;
            b.push(Interpolate, vec![x.into(), before.into(), shares], name)
        };
        let k = mixture(self, "channel_mix_lerp_k")?;
        let r = if is_gated { Some(mixture(self, "channel_mix_lerp_r")?) } else { None };
        let hidden = self.hidden_width()?;
        let k = self.linear("channel_mix_key", k, hidden)?;
        let k = self.unary(Function::ReluSquared, k, "channel_mix_key")?;
        let v = self.linear("channel_mix_value", k, width)?;
        let Some(r) = r else { return Ok(v) };
        let r = self.linear("channel_mix_receptance", r, width)?;
        self.glu(Function::Sigmoid, r, v)
    }
}
