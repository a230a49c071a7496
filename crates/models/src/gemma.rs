//! Gemma 1 to 3 (arXiv 2403.08295, 2408.00118, 2503.19786): scaled embeddings, GELU, from 2 on norms around
//! each branch and window layers.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{Decoder, FeedForward, HeadNorms, Residuals, WindowDefaults, WindowRope};
use crate::{Architecture, Builder, ModelError};

/// Gemma.
pub const GEMMA: Architecture = Architecture::new("gemma", |b| decoder(&b)?.build(b));
/// Gemma 2: scores and logits have smooth limits, every second layer a window.
pub const GEMMA2: Architecture = Architecture::new("gemma2", gemma2);
/// Gemma 3, text: queries and keys are normalised, five window layers to one full layer.
pub const GEMMA3: Architecture = Architecture::new("gemma3", gemma3);

fn decoder(b: &Builder<'_>) -> Result<Decoder, ModelError> {
    let mut decoder = Decoder::new(RopeKind::Split).with_network(FeedForward::gated(Function::Gelu));
    decoder.embedding_scale = Some((b.width_or("embedding_length", 0)? as f32).sqrt());
    Ok(decoder)
}

/// The 27B models divide by the width of an even share of the embedding instead of a head's.
fn scale_of_27b(b: &Builder<'_>, layers: u32) -> Result<Option<f32>, ModelError> {
    let share = b.width_or("embedding_length", 0)? / b.most_heads()?;
    Ok((b.layers() == layers).then_some(1.0 / (share.max(1) as f32).sqrt()))
}

fn gemma2(b: Builder<'_>) -> Result<Graph, ModelError> {
    let windows = WindowDefaults::every(2).or_length(4096);
    let decoder = decoder(&b)?.with_residuals(Residuals::SANDWICH);
    let mut decoder = decoder.with_windows(windows, WindowRope::Copied);
    let limit = |cap: f32| (cap != 0.0).then_some(cap);
    decoder.attention.soft_cap = limit(b.f32_or("attn_logit_softcapping", 50.0)?);
    decoder.attention.scale = scale_of_27b(&b, 46)?;
    decoder.head.soft_cap = limit(b.f32_or("final_logit_softcapping", 30.0)?);
    decoder.build(b)
}

fn gemma3(b: Builder<'_>) -> Result<Graph, ModelError> {
    let windows = WindowDefaults::every(6).or_length(0);
    let decoder = decoder(&b)?.with_residuals(Residuals::SANDWICH).with_norms(HeadNorms::PerHead);
    let mut decoder = decoder.with_windows(windows, WindowRope::PlainWithBase(10000.0));
    decoder.attention.scale = scale_of_27b(&b, 62)?;
    decoder.head.soft_cap = b.applied_f32("final_logit_softcapping")?;
    decoder.build(b)
}
