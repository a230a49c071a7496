//! RWKV 7 (Peng et al., arXiv 2503.14456), and ARWKV, which has its mixer in a Qwen 2 decoder
//! (arXiv 2501.15570).

use puna_graph::ops::{Function, Interpolate, Rwkv7, ScaleRows, SumElements};
use puna_graph::{Graph, ValueId};

use crate::blocks::OUTPUT;
use crate::rwkv6::NORM_BIASES;
use crate::{Architecture, Builder, ModelError};

pub const RWKV7: Architecture = Architecture::new("rwkv7", build);
pub const ARWKV7: Architecture = Architecture::new("arwkv7", build_qwen2);

/// Below it a vector's square counts as this when it is brought to unit length.
const EPSILON: f32 = 1e-12;

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(NORM_BIASES).needing(OUTPUT).needing(&["time_mix_ln.weight"]);
    let x = b.embed()?;
    let x = b.norm("token_embd_norm", x)?;
    let mut first_values = None;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = time_mix(b, h, &mut first_values)?;
        let x = b.add(x, h)?;
        let h = b.norm("attn_norm_2", x)?;
        let h = b.channel_mix(h, false)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

fn build_qwen2(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    let x = b.embed()?;
    let mut first_values = None;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = time_mix(b, h, &mut first_values)?;
        let x = b.add(x, h)?;
        let h = b.norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// The mixer; later layers mix their values with those of the first.
fn time_mix(
    b: &mut Builder<'_>,
    x: ValueId,
    first_values: &mut Option<ValueId>,
) -> Result<ValueId, ModelError> {
    let (heads, dim) = b.wkv_heads()?;
    let width = heads * dim;
    let gate_rank = b.u32_or("attention.gate_lora_rank", 0)?;
    let is_gated = gate_rank > 0 || b.has_any(&["time_mix_g1", "time_mix_g2"]);
    let decay_rank = b.extent("attention.decay_lora_rank")?;
    let rate_rank = b.extent("attention.iclr_lora_rank")?;
    let value_rank = b.extent("attention.value_residual_mix_lora_rank")?;
    let before = b.token_shift(x)?;
    let mixtures = if is_gated { 6 } else { 5 };
    let shares = b.weight("time_mix_lerp_fused.weight", &[mixtures, width])?;
    let mixed = b.push(Interpolate, vec![x.into(), before.into(), shares], "time_mix_lerp")?;
    let [xr, xw, xk, xv, xa] = b.mixtures(mixed, width)?;

    let r = b.linear("time_mix_receptance", xr, width)?;
    let k = b.linear("time_mix_key", xk, width)?;
    let mut v = b.linear("time_mix_value", xv, width)?;
    let w = low_rank(b, xw, ["time_mix_w1", "time_mix_w2"], decay_rank, Some(Function::Tanh))?;
    let w = shifted_sigmoid(b, w, "time_mix_w0.weight")?;
    let w = b.scale(w, -0.606531, "time_mix_w")?;
    let w = b.unary(Function::Exp, w, "time_mix_w")?;
    match *first_values {
        None => *first_values = Some(v),
        Some(first) => {
            let share = low_rank(b, xv, ["time_mix_v1", "time_mix_v2"], value_rank, None)?;
            let share = shifted_sigmoid(b, share, "time_mix_v0.weight")?;
            // v + share · (first − v)
            let minus = b.scale(v, -1.0, "time_mix_v")?;
            let difference = b.add(first, minus)?;
            let difference = b.mul(difference, share, "time_mix_v")?;
            v = b.add(v, difference)?;
        }
    }
    let a = low_rank(b, xa, ["time_mix_a1", "time_mix_a2"], rate_rank, None)?;
    let a = shifted_sigmoid(b, a, "time_mix_a0.weight")?;
    let removal = b.weight("time_mix_k_k.weight", &[width])?;
    let removal = b.mul(k, removal, "time_mix_k_k")?;
    let removal = b.split_heads(removal, dim)?;
    let removal = b.unit_length(removal, EPSILON)?;
    // k · (1 + k_a · (a − 1))
    let share = b.weight("time_mix_k_a.weight", &[width])?;
    let part = b.mul(k, share, "time_mix_k_a")?;
    let replaced = b.mul(part, a, "time_mix_k_a")?;
    let part = b.scale(part, -1.0, "time_mix_k_a")?;
    let k = b.add(k, part)?;
    let k = b.add(k, replaced)?;

    let bonus = b.weight("time_mix_r_k.weight", &[width])?;
    let own = b.mul(r, k, "time_mix_r_k")?;
    let own = b.mul(own, bonus, "time_mix_r_k")?;

    let split = |b: &mut Builder<'_>, x| b.split_heads(x, dim);
    let (r, w, k) = (split(b, r)?, split(b, w)?, split(b, k)?);
    let (v, a) = (split(b, v)?, split(b, a)?);
    let state = b.recurrent_state(&[heads, dim, dim])?;
    let inputs = [r, w, k, v, removal, a].into_iter().map(Into::into).collect();
    let mut y = b.push(Rwkv7 { state }, inputs, "wkv")?;
    let has_norm = b.has("time_mix_ln.weight");
    if has_norm {
        y = b.wkv_norm(y)?;
    }
    y = b.join_heads(y)?;
    if has_norm {
        y = b.wkv_norm_weights(y)?;
    }
    let own = b.split_heads(own, dim)?;
    let own = b.push(SumElements, vec![own.into()], "time_mix_r_k")?;
    let own = b.push(ScaleRows, vec![v.into(), own.into()], "time_mix_r_k")?;
    let own = b.join_heads(own)?;
    y = b.add(y, own)?;
    if is_gated {
        let xg = b.slice(mixed, 5 * width, width)?;
        let said = [b.said_by("time_mix_g1.weight", 1), b.said_by("time_mix_g2.weight", 0)];
        let rank = b.agreed((gate_rank > 0).then_some(gate_rank), said)?;
        let g = low_rank(b, xg, ["time_mix_g1", "time_mix_g2"], rank, Some(Function::Sigmoid))?;
        y = b.mul(y, g, "time_mix_g")?;
    }
    b.project_back(y, x)
}

/// `second · function(first · x)`
fn low_rank(
    b: &mut Builder<'_>,
    x: ValueId,
    [first, second]: [&'static str; 2],
    rank: u32,
    function: Option<Function>,
) -> Result<ValueId, ModelError> {
    let width = b.width(x);
    let mut h = b.linear(first, x, rank)?;
    if let Some(function) = function {
        h = b.unary(function, h, first)?;
    }
    b.linear(second, h, width)
}

/// `sigmoid(offset + x)`
fn shifted_sigmoid(b: &mut Builder<'_>, x: ValueId, offset: &str) -> Result<ValueId, ModelError> {
    let offset = b.weight(offset, &[b.width(x)])?;
    let x = b.add(x, offset)?;
    b.unary(Function::Sigmoid, x, "sigmoid")
}
