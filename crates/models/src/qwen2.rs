//! Qwen 2 and 2.5 (Yang et al., arXiv 2407.10671): Llama with split rotation and biased projections.

use puna_graph::Graph;
use puna_graph::ops::{Function, MaskRule, RopeKind};

use crate::blocks::AttentionBlock;
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "qwen2", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let rope = b.rope_settings(RopeKind::Split, head_dim, false)?;
    let scale = b.attention_scale()?;

    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.rms_norm("attn_norm", x)?;
        let block = AttentionBlock { rope: Some(&rope), scale, mask: MaskRule::Causal, head_norms: false };
        let h = b.self_attention(h, &block)?;
        let x = b.add(x, h)?;

        let h = b.rms_norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(x, h)
    })?;
    let x = b.rms_norm("output_norm", x)?;
    b.logits(x)
}
