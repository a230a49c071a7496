//! Kimi Linear: Kimi delta attention, with latent attention in some layers (Kimi Team, arXiv 2510.26692).

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, MaskRule};

use crate::blocks::{ChannelDecay, Experts, LatentAttention, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "kimi-linear", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let block = LatentAttention::unrotated(1.0 / (b.latent_key_dim()? as f32).sqrt(), MaskRule::Causal);
    let epsilon = b.positive_f32("attention.layer_norm_rms_epsilon")?;
    let heads = b.most_heads()?;
    let decay = match b.has_key("kda.gate_lower_bound") {
        true => ChannelDecay::Bounded { bound: b.f32_or("kda.gate_lower_bound", 0.0)?, sign: -1.0 },
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
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Sigmoid, true)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
