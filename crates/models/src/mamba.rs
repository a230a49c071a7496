//! Mamba 1 and 2 (Gu and Dao, arXiv 2312.00752; Dao and Gu, arXiv 2405.21060), and models that add attention to them.

use puna_graph::ops::{Function, Gating, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{AttentionBlock, Experts, Residuals};
use crate::{Architecture, Builder, ModelError};

/// Mamba.
pub const MAMBA: Architecture =
    Architecture::new("mamba", |b| plain(b.needing(&["ssm_conv1d.bias", "ssm_dt.bias"]), Builder::mamba1));
/// Mamba 2, Codestral Mamba.
pub const MAMBA2: Architecture = Architecture::new("mamba2", |b| {
    plain(b.needing(&["ssm_conv1d.bias", "ssm_norm.weight"]), Builder::mamba2)
});

fn plain<'m>(
    mut b: Builder<'m>,
    mixer: fn(&mut Builder<'m>, ValueId) -> Result<ValueId, ModelError>,
) -> Result<Graph, ModelError> {
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = mixer(b, h)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Jamba: attention without positions in some layers, Mamba 1 in the others (Lieber et al., arXiv 2403.19887).
pub const JAMBA: Architecture = Architecture::new("jamba", jamba);

fn jamba(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["ssm_conv1d.bias", "ssm_dt.bias", "ssm_dt_norm.weight"]);
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

/// Falcon-H1: attention and Mamba 2 side by side in every layer (Zuo et al., arXiv 2507.22448).
pub const FALCON_H1: Architecture = Architecture::new("falcon-h1", falcon_h1);

fn falcon_h1(mut b: Builder<'_>) -> Result<Graph, ModelError> {
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
