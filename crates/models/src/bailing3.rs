//! Ling 3 (BailingMoE 3): Kimi delta attention with gated latent attention in some layers.

use puna_graph::Graph;
use puna_graph::ops::{Function, GateBound, RopeKind};

use crate::blocks::{Activation, ChannelDecay, Experts, FeedForward, LatentAttention, Residuals};
use crate::{Architecture, Builder, ModelError, Reads};

pub const ARCHITECTURE: Architecture =
    Architecture::new("bailingmoe3", build).guessing_ahead(Reads::AfterNorm);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["exp_probs_b.bias"]);
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count", "leading_dense_block_count"])?;
    let kind = match b.has_key("rope.dimension_sections") {
        true => RopeKind::Split,
        false => RopeKind::Interleaved,
    };
    let block = b.latent_block(kind)?;
    let block = LatentAttention { gate: Some(Function::Sigmoid), ..block };
    let epsilon = b.positive_f32("attention.layer_norm_rms_epsilon")?;
    let heads = b.most_heads()?;
    b.require_keys(&["kda.gate_lower_bound"])?;
    let decay = match b.bool_or("kda.safe_gate", true)? {
        true => ChannelDecay::Bounded { bound: b.f32_or("kda.gate_lower_bound", 0.0)?, sign: 1.0 },
        false => ChannelDecay::Softplus,
    };
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| match b.has_attention()? {
            true => b.latent_attention(x, &block),
            false => b.kimi_delta_attention(x, heads, decay, epsilon),
        },
        |b, x| {
            let bound = GateBound::AfterSilu;
            let shared = Activation::silu_bounded(b.layer_f32("swiglu_clamp_shexp")?, bound);
            let experts = Experts {
                activation: Activation::silu_bounded(b.layer_f32("swiglu_clamp_exp")?, bound),
                shared_activation: Some(shared),
                ..Experts::new(None, false)
            };
            b.dense_or_experts(x, FeedForward::gated(shared), &experts)
        },
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
