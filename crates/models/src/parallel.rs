//! Models whose attention and network may run side by side.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{AttentionBlock, FeedForward, HeadNorms, NORM_BIASES, OUTPUT};
use crate::{Architecture, Builder, ModelError};

/// Falcon 7B and 40B (arXiv 2311.16867); in 40B attention has a norm of its own.
pub const FALCON: Architecture =
    Architecture::new("falcon", |b| gelu_beside(b.needing(NORM_BIASES), RopeKind::Split));
/// Phi 1.5 and 2 (arXiv 2309.05463): layer norms, both branches read the same norm.
pub const PHI2: Architecture = Architecture::new("phi2", |b| {
    let b = b.needing(NORM_BIASES).needing(OUTPUT).needing(&["output.bias"]);
    gelu_beside(b.needing(&["attn_output.bias", "ffn_up.bias", "ffn_down.bias"]), RopeKind::Split)
});
/// GPT-J (Wang and Komatsuzaki, 2021): as Phi, but it rotates neighbours, and attention has no biases.
pub const GPTJ: Architecture = Architecture::new("gptj", |b| {
    let b = b.needing(NORM_BIASES).needing(OUTPUT).needing(&["output.bias"]);
    gelu_beside(b.needing(&["ffn_up.bias", "ffn_down.bias"]), RopeKind::Interleaved)
});

/// Both branches read the same norm, or attention reads `attn_norm_2`.
fn gelu_beside(mut b: Builder<'_>, kind: RopeKind) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(kind, b.key_dim()?, false)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let attended = if b.has("attn_norm_2.weight") { b.norm("attn_norm_2", x)? } else { h };
        let attended = b.self_attention(attended, &AttentionBlock { rope, ..Default::default() })?;
        let fed = b.feed_forward(h, FeedForward::plain(Function::Gelu))?;
        let x = b.add(x, attended)?;
        b.add(x, fed)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// StableLM (arXiv 2402.17834): layer norms, partial rotation; only 12B has both branches side by side.
pub const STABLELM: Architecture = Architecture::new("stablelm", |b| {
    silu_beside(b.needing(&["attn_norm.bias", "output_norm.bias"]).needing(OUTPUT))
});
/// PLaMo 1: RMS norms, both branches side by side.
pub const PLAMO: Architecture = Architecture::new("plamo", |b| silu_beside(b.needing(OUTPUT)));

/// The network reads a norm of its own if the file has one, else that of attention.
fn silu_beside(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, false)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let norms = match b.has_any(&["attn_q_norm", "attn_k_norm"]) {
            true => HeadNorms::PerHead,
            false => HeadNorms::None,
        };
        let attended = b.self_attention(h, &AttentionBlock { rope, norms, ..Default::default() })?;
        let sum = b.add(x, attended)?;
        let h = if b.has("ffn_norm.weight") { b.norm("ffn_norm", sum)? } else { h };
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(sum, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
