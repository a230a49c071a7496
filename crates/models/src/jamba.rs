//! Jamba: attention without positions in some layers, Mamba 1 in the others (Lieber et al., arXiv 2403.19887).

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating};

use crate::blocks::{AttentionBlock, Experts, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "jamba", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| match b.has_attention()? {
            true => b.self_attention(x, &AttentionBlock::default()),
            false => b.mamba1(x),
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Softmax, false)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
