//! Granite 3 and 4 (IBM) and MiniCPM: factors on embeddings, branches and logits.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, RopeKind};

use crate::blocks::{AttentionBlock, Decoder, Experts, FeedForward, Residuals, WindowDefaults};
use crate::{Architecture, Builder, Head, ModelError};

/// Granite 3, dense. It rotates unless `rope.scaling.finetuned` says no.
pub const GRANITE: Architecture = Architecture::new("granite", granite);
/// Granite 3 with experts.
pub const GRANITEMOE: Architecture = Architecture::new("granitemoe", |b| with_logit_scale(b, true));
/// MiniCPM 1 and 2 (arXiv 2404.06395); files may lack the factors.
pub const MINICPM: Architecture = Architecture::new("minicpm", minicpm);
/// Granite with windows and attention sinks; some layers do not rotate.
pub const GRANITE_SWA: Architecture = Architecture::new("granite_swa", granite_swa);

fn scaled(b: &Builder<'_>, rotates: bool) -> Result<Decoder, ModelError> {
    let mut decoder = Decoder::new(rotates.then_some(RopeKind::Interleaved)).with_factors();
    decoder.embedding_scale = b.applied_f32("embedding_scale")?;
    decoder.residuals = Residuals { scale: b.applied_f32("residual_scale")?, ..Residuals::PRE };
    decoder.head = Head { scale: b.applied_f32("logit_scale")?.map(|scale| 1.0 / scale), ..Head::default() };
    Ok(decoder)
}

fn granite(b: Builder<'_>) -> Result<Graph, ModelError> {
    let rotates = b.bool_or("rope.scaling.finetuned", true)?;
    with_logit_scale(b, rotates)
}

fn with_logit_scale(b: Builder<'_>, rotates: bool) -> Result<Graph, ModelError> {
    b.require_keys(&["logit_scale"])?;
    scaled(&b, rotates)?.build(b)
}

fn minicpm(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut decoder = scaled(&b, true)?;
    decoder.embedding_scale = decoder.embedding_scale.or(Some(12.0));
    decoder.residuals.scale = decoder.residuals.scale.or(Some(1.4 / (b.layers() as f32).sqrt()));
    if decoder.head.scale.is_none() {
        decoder.head.scale = Some(256.0 / b.width_or("embedding_length", 256)? as f32);
    }
    decoder.build(b)
}

fn granite_swa(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["attn_sinks.weight"]);
    b.require_keys(&["logit_scale"])?;
    let settings = scaled(&b, true)?;
    let rope = b.rope_settings(RopeKind::Interleaved, b.key_dim()?, true)?;
    let windows = b.windows(WindowDefaults::NEEDED)?;
    let window_rope = b.window_rope(&rope, crate::blocks::WindowRope::Copied)?;
    let rotated = b.layer_flags("attention.rope_pattern")?;
    let mut x = b.embed()?;
    if let Some(factor) = settings.embedding_scale {
        x = b.scale(x, factor, "embed_scale")?;
    }
    let x = b.decoder(
        x,
        settings.residuals,
        |b, x| {
            let layer = b.layer();
            let rope = if windows.limits(layer) { window_rope } else { rope };
            let rotates = rotated.as_ref().is_none_or(|rotated| rotated.get(layer as usize) == Some(&true));
            let rope = rotates.then_some(rope);
            b.self_attention(x, &AttentionBlock { rope, mask: windows.mask(layer), ..Default::default() })
        },
        |b, x| {
            let network = FeedForward::gated(Function::Silu);
            b.dense_or_experts(x, network, &Experts::new(Gating::Softmax, true))
        },
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, settings.head)
}

/// Granite 4: Mamba 2 with attention in some layers.
pub const GRANITE_HYBRID: Architecture = Architecture::new("granitehybrid", granite_hybrid);

fn granite_hybrid(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["ssm_norm.weight"]);
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
