//! Granite 4 hybrid: Mamba 2 with attention in some layers, scaled embeddings, residuals and logits (IBM).

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, RopeKind};

use crate::Head;
use crate::blocks::{AttentionBlock, Experts, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "granitehybrid", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let rope = match b.bool_or("rope.scaling.finetuned", true)? {
        true => Some(b.rope_settings(RopeKind::Interleaved, head_dim, true)?),
        false => None,
    };
    let block = AttentionBlock { rope, ..AttentionBlock::default() };
    let residuals = Residuals { scale: b.applied_f32("residual_scale")?, ..Residuals::PRE };
    let head = Head { scale: b.applied_f32("logit_scale")?.map(|scale| 1.0 / scale), ..Head::default() };

    let mut x = b.embed()?;
    if let Some(factor) = b.applied_f32("embedding_scale")? {
        x = b.scale(x, factor, "embedding_scale")?;
    }
    let x = b.decoder(
        x,
        residuals,
        |b, x| match b.has_attention()? {
            true => b.self_attention(x, &block),
            false => b.mamba2(x),
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Softmax, true)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, head)
}
