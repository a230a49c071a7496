//! Gemma 4, text (Google DeepMind, 2026): heads differ between window and full layers, some sizes have experts beside a
//! dense network, embeddings per layer, layers that share keys and values.

use puna_graph::ops::{Function, Gating};
use puna_graph::{Graph, ValueId};

use crate::blocks::per_layer::{SharedAttention, per_layer_branch, per_layer_embeddings, scaled_embedding};
use crate::blocks::{Experts, WindowDefaults};
use crate::{Architecture, Builder, Head, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("gemma4", build);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["rope_freqs.weight"]);
    let own_layers = b.layers().saturating_sub(b.u32_or("attention.shared_kv_layers", 0)?);
    let mut attention = SharedAttention::new(&mut b, WindowDefaults::NEEDED, true, own_layers)?;
    b.require_keys(&["embedding_length_per_layer_input"])?;
    b.require_keys(&["attention.key_length_swa", "attention.value_length_swa"])?;
    let width = b.u32_or("embedding_length_per_layer_input", 0)?;
    let soft_cap = b.applied_f32("final_logit_softcapping")?;
    let x = scaled_embedding(&mut b)?;
    let embeddings = match width {
        0 => None,
        width => Some(per_layer_embeddings(&mut b, x, width)?),
    };
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = attention.run(b, h)?;
        let h = b.norm("post_attention_norm", h)?;
        let x = b.add(x, h)?;

        let h = b.norm("ffn_norm", x)?;
        let mut h = b.feed_forward(h, Function::Gelu)?;
        if b.has_experts() {
            let dense = b.norm("post_ffw_norm_1", h)?;
            let sparse = experts(b, x)?;
            h = b.add(dense, sparse)?;
        }
        let h = b.norm("post_ffw_norm", h)?;
        let mut x = b.add(x, h)?;
        if let Some(embeddings) = embeddings {
            let h = per_layer_branch(b, x, embeddings, width)?;
            x = b.add(x, h)?;
        }
        match b.optional_weight("layer_output_scale.weight", &[1])? {
            Some(factor) => b.mul(x, factor, "layer_output_scale"),
            None => Ok(x),
        }
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, Head { soft_cap, ..Head::default() })
}

/// Experts with norms of their own; the router reads the residual stream itself.
fn experts(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let width = b.width(x);
    let router = b.norm_unweighted(x, "router_norm")?;
    let router = b.scale(router, 1.0 / (width as f32).sqrt(), "router_scale")?;
    let factors = b.weight("ffn_gate_inp.scale", &[width])?;
    let router = b.mul(router, factors, "router_scale")?;
    let h = b.norm("pre_ffw_norm_2", x)?;
    let activation = Function::Gelu.into();
    let experts = Experts { activation, router_input: Some(router), ..Experts::new(Gating::Softmax, true) };
    let h = b.experts(h, &experts)?;
    b.norm("post_ffw_norm_2", h)
}
