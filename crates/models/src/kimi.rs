//! Kimi Linear and K3: Kimi delta attention.

use puna_graph::ops::{Concat, Function, MaskRule, Softmax, WeightedSum};
use puna_graph::{Graph, ValueId};

use crate::blocks::{Activation, ChannelDecay, Experts, FeedForward, LatentAttention, OUTPUT, Residuals};
use crate::{Architecture, Builder, ModelError};

/// How the decay of a channel follows from its gate.
pub(super) fn channel_decay(b: &Builder<'_>) -> Result<ChannelDecay, ModelError> {
    Ok(match b.has_key("kda.gate_lower_bound") {
        true => ChannelDecay::Bounded { bound: b.f32_or("kda.gate_lower_bound", 0.0)?, sign: -1.0 },
        false => ChannelDecay::Softplus,
    })
}

/// Kimi Linear: Kimi delta attention, with latent attention in some layers (Kimi Team, arXiv 2510.26692).
pub const KIMI_LINEAR: Architecture = Architecture::new("kimi-linear", kimi_linear);

fn kimi_linear(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["exp_probs_b.bias", "ssm_f_b.weight", "ssm_g_b.weight"]).needing(OUTPUT);
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    let block = LatentAttention::unrotated(1.0 / (b.latent_key_dim()? as f32).sqrt(), MaskRule::Causal);
    let epsilon = b.positive_f32("attention.layer_norm_rms_epsilon")?;
    let heads = b.most_heads()?;
    let decay = channel_decay(&b)?;
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| match b.has_attention()? {
            true => b.latent_attention(x, &block),
            false => b.kimi_delta_attention(x, heads, decay, epsilon),
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(None, true)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Kimi K3: gated latent attention, and branches that read a mixture of what earlier blocks of layers left behind
/// (attention residuals; Kimi Team).
pub const KIMI_K3: Architecture = Architecture::new("kimi-k3", kimi_k3);

fn kimi_k3(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["exp_probs_b.bias", "ssm_f_b.weight"]).needing(OUTPUT);
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    b.require_keys(&["activation.situ_linear_beta", "attn_res.block_size"])?;
    let block = LatentAttention::unrotated(1.0 / (b.latent_key_dim()? as f32).sqrt(), MaskRule::Causal);
    let epsilon = b.positive_f32("attention.layer_norm_rms_epsilon")?;
    let heads = b.most_heads()?;
    let decay = channel_decay(&b)?;
    let activation = Activation::Situ {
        gate_bound: b.positive_f32("activation.situ_beta")?,
        up_bound: b.f32_or("activation.situ_linear_beta", 0.0)?,
    };
    let block_size = b.u32_or("attn_res.block_size", 0)?;
    // What the residual stream was at the start of each block of layers.
    let mut bank: Vec<ValueId> = Vec::new();

    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = mix(b, &bank, x, "attn_res_score")?;
        let starts_block = block_size > 0 && b.layer().is_multiple_of(block_size);
        if starts_block {
            bank.push(x);
        }
        let h = b.norm("attn_norm", h)?;
        let h = match b.has_attention()? {
            true => {
                let gate = b.has("attn_gate.weight").then_some(Function::Sigmoid);
                b.latent_attention(h, &LatentAttention { gate, ..block })?
            }
            false => b.kimi_delta_attention(h, heads, decay, epsilon)?,
        };
        // A block starts with a residual stream of its own.
        let x = if starts_block { h } else { b.add(x, h)? };
        let h = mix(b, &bank, x, "ffn_res_score")?;
        let h = b.norm("ffn_norm", h)?;
        let h = network(b, h, activation)?;
        b.add(x, h)
    })?;
    let x = mix(&mut b, &bank, x, "output_res_score")?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Sum of the bank and the current value, weighted by the softmax of their scores.
fn mix(
    b: &mut Builder<'_>,
    bank: &[ValueId],
    current: ValueId,
    score: &'static str,
) -> Result<ValueId, ModelError> {
    let values: Vec<ValueId> = bank.iter().copied().chain([current]).collect();
    if values.len() == 1 {
        return Ok(current);
    }
    let mut scores: Option<ValueId> = None;
    for value in &values {
        let normed = b.norm_unweighted(*value, score)?;
        let next = b.linear(score, normed, 1)?;
        scores = Some(match scores {
            Some(before) => b.push(Concat, vec![before.into(), next.into()], score)?,
            None => next,
        });
    }
    let shares = scores.map(|scores| b.push(Softmax, vec![scores.into()], score)).transpose()?;
    let inputs = shares.into_iter().chain(values).map(Into::into).collect();
    b.push(WeightedSum, inputs, score)
}

/// A dense network, or experts in a space of their own beside a shared one in the full width.
fn network(b: &mut Builder<'_>, x: ValueId, activation: Activation) -> Result<ValueId, ModelError> {
    if !b.has_experts() {
        return b.feed_forward(x, FeedForward::gated(activation));
    }
    let experts = Experts { activation, router_input: Some(x), ..Experts::new(None, false) };
    let width = b.width(x);
    let mut h = x;
    let is_narrow = b.has_any(&["ffn_routed_down", "ffn_routed_up"]);
    if is_narrow {
        let narrow =
            b.narrow_width("expert_latent_length", ["ffn_routed_down.weight", "ffn_routed_up.weight"])?;
        h = b.linear("ffn_routed_down", h, narrow)?;
    }
    h = b.experts(h, &experts)?;
    if b.has("ffn_routed_norm.weight") {
        h = b.norm("ffn_routed_norm", h)?;
    }
    if is_narrow {
        h = b.linear("ffn_routed_up", h, width)?;
    }
    let shared = b.shared_network(x, &experts)?;
    b.add(h, shared)
}
