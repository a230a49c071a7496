//! Hunyuan (arXiv 2411.02265): norms of queries and keys after the rotation, whose base may be stretched.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, RopeKind};

use crate::blocks::{AttentionBlock, Experts, HeadNorms, Residuals};
use crate::{Architecture, Builder, ModelError};

/// Hunyuan 0.5B to 7B.
pub const HUNYUAN_DENSE: Architecture = Architecture::new("hunyuan-dense", hunyuan);
/// Hunyuan-A13B.
pub const HUNYUAN_MOE: Architecture = Architecture::new("hunyuan-moe", |b| {
    b.require_keys(&["expert_feed_forward_length"])?;
    hunyuan(b)
});
/// Hunyuan with vision, text.
pub const HUNYUAN_VL: Architecture = Architecture::new("hunyuan_vl", hunyuan);

fn hunyuan(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let mut rope = b.rope_settings(RopeKind::Split, head_dim, true)?;
    if let Some(alpha) = b.applied_f32("rope.scaling.alpha")?
        && alpha > 0.0
        && head_dim > 2
    {
        rope.rope.base *= alpha.powf(head_dim as f32 / (head_dim - 2) as f32);
    }
    let block = AttentionBlock {
        rope: Some(rope),
        norms: HeadNorms::PerHead,
        norms_after_rope: true,
        ..Default::default()
    };
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.self_attention(x, &block),
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Softmax, true)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
