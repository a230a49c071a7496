//! Falcon-H1: attention and Mamba 2 side by side in every layer (Zuo et al., arXiv 2507.22448).

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{AttentionBlock, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "falcon-h1", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let rope = Some(b.rope_settings(RopeKind::Split, head_dim, false)?);
    let block = AttentionBlock { rope, ignores_output_bias: true, ..AttentionBlock::default() };
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| {
            let attended = b.self_attention(x, &block)?;
            let scanned = b.mamba2(x)?;
            b.add(attended, scanned)
        },
        |b, x| b.feed_forward(x, Function::Silu),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
