//! GLM-5-Next: Kimi delta attention, and latent attention without positions in some layers, on hyper-connections.

use puna_graph::Graph;
use puna_graph::ops::MaskRule;

use crate::blocks::{ChannelDecay, HYPER_ATTENTION, HYPER_FEED_FORWARD, LatentAttention};
use crate::hy_v4::bounded_experts;
use crate::{Architecture, Builder, ModelError};

/// The sparse selection of positions picks all of a short context.
pub const ARCHITECTURE: Architecture = Architecture { name: "glm5-next", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    /// Of the unit length of queries and keys; no key sets it.
    const UNIT_EPSILON: f32 = 1e-6;
    let block = LatentAttention::unrotated(1.0 / (b.latent_key_dim()? as f32).sqrt(), MaskRule::Causal);
    let heads = b.most_heads()?;
    let decay = match b.has_key("kda.gate_lower_bound") {
        true => ChannelDecay::Bounded { bound: b.f32_or("kda.gate_lower_bound", 0.0)?, sign: -1.0 },
        false => ChannelDecay::Softplus,
    };
    let connections = b.hyper_settings(true)?;
    let x = b.embed()?;
    let streams = b.streams(x)?;
    let streams = b.each_layer(streams, |b, streams| {
        let streams = b.hyper_branch(streams, HYPER_ATTENTION, connections, |b, x| {
            let x = b.norm("attn_norm", x)?;
            match b.has_attention()? {
                true => b.latent_attention(x, &block),
                false => b.kimi_delta_attention(x, heads, decay, UNIT_EPSILON),
            }
        })?;
        b.hyper_branch(streams, HYPER_FEED_FORWARD, connections, |b, x| {
            let x = b.norm("ffn_norm", x)?;
            bounded_experts(b, x)
        })
    })?;
    let x = b.mean_of_streams(streams)?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
