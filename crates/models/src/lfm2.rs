//! LFM2: gated short convolutions with attention in some layers (Liquid AI, arXiv 2511.23404).

use puna_graph::ops::{Function, Gating, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{AttentionBlock, Experts, HeadNorms, Residuals};
use crate::{Architecture, Builder, ModelError};

/// LFM2.
pub const DENSE: Architecture = Architecture::new("lfm2", build);
/// LFM2 with experts.
pub const EXPERTS: Architecture = Architecture::new("lfm2moe", |b| {
    b.require_keys(&["expert_feed_forward_length", "expert_gating_func"])?;
    build(b.needing(&["exp_probs_b.bias"]))
});

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let rope = Some(b.rope_settings(RopeKind::Split, head_dim, true)?);
    let block = AttentionBlock { rope, norms: HeadNorms::PerHead, ..AttentionBlock::default() };
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| match b.has_attention()? {
            true => b.self_attention(x, &block),
            false => gated_convolution(b, x),
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Sigmoid, true)),
    )?;
    let x = b.norm("token_embd_norm", x)?;
    b.logits(x)
}

fn gated_convolution(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let width = b.width(x);
    let all = b.linear("shortconv.in_proj", x, 3 * width)?;
    let (input_gate, output_gate) = (b.slice(all, 0, width)?, b.slice(all, width, width)?);
    let u = b.slice(all, 2 * width, width)?;
    let u = b.mul(input_gate, u, "shortconv.gated")?;
    let u = b.dilated_convolution("shortconv.conv", u, b.short_convolution_length()?, 1)?;
    let y = b.mul(output_gate, u, "shortconv.gated")?;
    b.linear("shortconv.out_proj", y, width)
}
