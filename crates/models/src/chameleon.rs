//! Chameleon (arXiv 2405.09818): Llama with layer norms of queries and keys; it writes text only.

use puna_graph::Graph;
use puna_graph::ops::{FillColumns, Function, RopeKind};

use crate::blocks::{AttentionBlock, HeadNorms};
use crate::builder::Norm;
use crate::{Architecture, Builder, Head, ModelError};

/// Chameleon. With `swin_norm` the norms stand at the ends of the branches.
pub const ARCHITECTURE: Architecture = Architecture::new("chameleon", build);

/// Ids of image tokens.
const IMAGE_TOKENS: std::ops::Range<u32> = 4..8196;

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let norms_last = b.bool_or("swin_norm", false)?;
    let outer = Norm::Rms(b.positive_f32("attention.layer_norm_rms_epsilon")?);
    b.set_norm_kind(outer);
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, false)?);
    let block = AttentionBlock {
        rope,
        norms: HeadNorms::PerHead,
        head_norm_kind: Some(Norm::Layer(1e-5)),
        ..Default::default()
    };
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = if norms_last { x } else { b.norm("attn_norm", x)? };
        let h = b.self_attention(h, &block)?;
        let h = if norms_last { b.norm("attn_norm", h)? } else { h };
        let x = b.add(x, h)?;
        let h = if norms_last { x } else { b.norm("ffn_norm", x)? };
        let h = b.feed_forward(h, Function::Silu)?;
        let h = if norms_last { b.norm("ffn_norm", h)? } else { h };
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    let end = IMAGE_TOKENS.end.min(b.vocabulary()?);
    let length = end.saturating_sub(IMAGE_TOKENS.start);
    let suppressed = Some(FillColumns { start: IMAGE_TOKENS.start.min(end), length, value: f32::MIN });
    b.logits_with(x, Head { suppressed, ..Head::default() })
}
