//! Hunyuan 4: latent attention with sinks and gates, on hyper-connections without a mixture of streams.

use puna_graph::Graph;
use puna_graph::ops::{Function, GateBound, Gating, RopeKind};

use crate::blocks::{Activation, Experts, HYPER_ATTENTION, HYPER_FEED_FORWARD, LatentAttention};
use crate::{Architecture, Builder, ModelError};

/// The sparse selection of positions picks all of a short context.
pub const ARCHITECTURE: Architecture = Architecture { name: "hy_v4", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
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
            bounded_experts(b, x)
        })
    })?;
    let x = b.hyper_output(streams, connections.read)?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// The layer's network, or its experts with the layer's bound beside a shared expert without.
pub fn bounded_experts(
    b: &mut Builder<'_>,
    x: puna_graph::ValueId,
) -> Result<puna_graph::ValueId, ModelError> {
    let activation = Activation::silu_bounded(b.layer_f32("swiglu_clamp_exp")?, GateBound::BeforeSilu);
    let shared_activation = match b.layer_f32("swiglu_clamp_shexp")? {
        limit if limit > 0.0 => Activation::silu_bounded(limit, GateBound::BeforeSilu),
        _ => Function::Silu.into(),
    };
    let shared_activation = Some(shared_activation);
    let experts = Experts { activation, shared_activation, ..Experts::new(Gating::Sigmoid, false) };
    b.dense_or_experts(x, Function::Silu, &experts)
}
