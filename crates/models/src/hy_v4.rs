//! Hunyuan 4: latent attention with sinks and gates, on hyper-connections without a mixture of streams.

use puna_graph::ops::{Function, GateBound, Gating, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{
    Activation, Experts, FeedForward, HYPER_ATTENTION, HYPER_FEED_FORWARD, LatentAttention, OUTPUT,
};
use crate::{Architecture, Builder, ModelError};

/// The sparse selection of positions picks all of a short context.
pub const ARCHITECTURE: Architecture = Architecture::new("hy_v4", build);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["attn_sinks.weight"]).needing(OUTPUT);
    b.indexer_keys(&[])?;
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    let block = b.latent_block(RopeKind::Interleaved)?;
    let block = LatentAttention { gate: Some(Function::Sigmoid), ..block };
    let mut connections = b.hyper_settings(false)?;
    connections.write.magnitude = b.positive_f32("hyper_connection.magnitude")?;
    connections.write.offset = connections.read.epsilon;
    let x = b.embed()?;
    let streams = b.streams(x)?;
    let streams = b.each_layer(streams, |b, streams| {
        let streams = b.hyper_branch(streams, HYPER_ATTENTION, connections, |b, x| {
            let x = b.norm("attn_norm", x)?;
            b.latent_attention(x, &block)
        })?;
        b.hyper_branch(streams, HYPER_FEED_FORWARD, connections, |b, x| {
            let x = b.norm("ffn_norm", x)?;
            bounded_experts(b, x, 0.0)
        })
    })?;
    let x = b.hyper_output(streams, connections.read)?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// The layer's network, or its experts with the layer's bound (`swiglu_clamp_exp`) beside a shared expert; network and shared
/// expert have another bound, 0 for none.
pub fn bounded_experts(b: &mut Builder<'_>, x: ValueId, shared_limit: f32) -> Result<ValueId, ModelError> {
    let activation = Activation::silu_bounded(b.layer_f32("swiglu_clamp_exp")?, GateBound::BeforeSilu);
    let shared = Activation::silu_bounded(shared_limit, GateBound::BeforeSilu);
    let shared_activation = Some(shared);
    let experts = Experts { activation, shared_activation, ..Experts::new(Gating::Sigmoid, false) };
    b.dense_or_experts(x, FeedForward::gated(shared), &experts)
}
