//! Nemotron NAS (arXiv 2411.19146): layers that lack attention or more.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::AttentionBlock;
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "deci", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, true)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, mut x| {
        if b.layer_u32("feed_forward_length")? == Some(0) {
            return Ok(x);
        }
        let heads = b.layer_u32("attention.head_count")?.unwrap_or(0);
        if heads > 0 {
            let h = b.norm("attn_norm", x)?;
            // Without keys and values a linear map stands in for attention.
            let h = match b.layer_u32("attention.head_count_kv")? {
                Some(0) => b.linear("attn_output", h, b.width(x))?,
                _ => b.self_attention(h, &AttentionBlock { rope, ..Default::default() })?,
            };
            x = b.add(x, h)?;
        }
        let h = b.norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
