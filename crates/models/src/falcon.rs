//! Falcon (arXiv 2311.16867): attention and network side by side.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{AttentionBlock, FeedForward};
use crate::{Architecture, Builder, ModelError};

/// Falcon 7B and 40B; in 40B attention has a norm of its own.
pub const FALCON: Architecture = Architecture { name: "falcon", build: parallel };

/// Both branches read the same norm, or attention reads `attn_norm_2`.
pub(super) fn parallel(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, false)?);
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
