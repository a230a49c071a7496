//! StableLM (arXiv 2402.17834): layer norms, partial rotation; 12B has both branches side by side.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{AttentionBlock, HeadNorms};
use crate::{Architecture, Builder, ModelError};

pub const STABLELM: Architecture = Architecture { name: "stablelm", build };
/// PLaMo 1: RMS norms, both branches side by side.
pub const PLAMO: Architecture = Architecture { name: "plamo", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, false)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let norms = match b.has("attn_q_norm.weight") {
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
