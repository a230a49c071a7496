//! Ling 3 (BailingMoE 3): Kimi delta attention with gated latent attention in some layers.

use puna_graph::Graph;
use puna_graph::ops::{Function, GateBound, Gating, RopeKind};

use crate::blocks::{Activation, ChannelDecay, Experts, LatentAttention, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "bailingmoe3", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let kind = match b.has_key("rope.dimension_sections") {
        true => RopeKind::Split,
        false => RopeKind::Interleaved,
    };
    let block = b.latent_block(kind)?;
    let block = LatentAttention { gate: Some(Function::Sigmoid), ..block };
    let epsilon = b.positive_f32("attention.layer_norm_rms_epsilon")?;
    let heads = b.most_heads()?;
    let decay = match b.has_key("kda.gate_lower_bound") {
        true => ChannelDecay::Bounded { bound: b.f32_or("kda.gate_lower_bound", 0.0)?, sign: 1.0 },
        false => ChannelDecay::Softplus,
    };
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| match b.layer_u32("attention.head_count")? {
            Some(1..) => b.latent_attention(x, &block),
            _ => b.kimi_delta_attention(x, heads, decay, epsilon),
        },
        |b, x| {
            let limit = b.layer_f32("swiglu_clamp_exp")?;
            let activation = Activation::silu_bounded(limit, GateBound::AfterSilu);
            let routed = Experts { activation, ..Experts::new(Gating::Sigmoid, false) };
            if !b.has("ffn_gate_inp.weight") {
                return b.feed_forward(x, Function::Silu);
            }
            // The shared expert is not bounded.
            let h = b.experts(x, &routed)?;
            match b.has("ffn_up_shexp.weight") {
                true => {
                    let shared = b.shared_expert(x, Function::Silu.into())?;
                    b.add(h, shared)
                }
                false => Ok(h),
            }
        },
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
