//! DeepSeek-V2, V3 and others with latent attention (DeepSeek-AI, arXiv 2405.04434 and 2412.19437).

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, PositionScale, RopeKind};

use crate::blocks::{Experts, FeedForward, LatentAttention, Residuals, WindowDefaults};
use crate::{Architecture, Builder, ModelError, Reads};

/// The file has a tenth of YaRN's log multiplier, and the rotation has no magnitude.
pub const DEEPSEEK2: Architecture = Architecture::new("deepseek2", |mut b| {
    let mut block = b.latent_block(RopeKind::Interleaved)?;
    if let Some(rope) = &mut block.rope {
        rope.rope.magnitude = b.f32_or("rope.scaling.attn_factor", 1.0)?;
        let multiplier = 10.0 * b.f32_or("rope.scaling.yarn_log_multiplier", 0.0)?;
        block.scale = b.latent_scale(rope, multiplier)?;
    }
    build(b, block, Some(Gating::Softmax))
})
.guessing_ahead(Reads::AfterNorm);
/// DeepSeek-V3.2 and GLM-5: the sparse selection of positions picks all of a short context.
pub const DEEPSEEK32: Architecture = Architecture::new("deepseek32", |mut b| {
    let block = with_tenth(&mut b)?;
    selecting(b, block, None)
})
.guessing_ahead(Reads::AfterNorm);
pub const GLM_DSA: Architecture = Architecture::new("glm-dsa", |mut b| {
    let block = b.latent_block(RopeKind::Interleaved)?;
    selecting(b, block, Some(Gating::Sigmoid))
})
.guessing_ahead(Reads::AfterNorm);
pub const MISTRAL4: Architecture = Architecture::new("mistral4", |mut b| {
    let block = with_tenth(&mut b)?;
    build(b, block, Some(Gating::Softmax))
});

/// Latent attention where the file has a tenth of YaRN's log multiplier.
fn with_tenth(b: &mut Builder<'_>) -> Result<LatentAttention, ModelError> {
    let mut block = b.latent_block(RopeKind::Interleaved)?;
    let multiplier = 10.0 * b.f32_or("rope.scaling.yarn_log_multiplier", 0.0)?;
    if let Some(rope) = &mut block.rope
        && rope.rope.yarn.is_some()
        && multiplier != 0.0
    {
        let stretch = -rope.rope.position_scale.ln();
        let temperature = |slope: f32| 1.0 + 0.1 * slope * stretch.max(0.0);
        let magnitude = b.f32_or("rope.scaling.attn_factor", 1.0)?;
        rope.rope.magnitude = magnitude * temperature(1.0) / temperature(multiplier);
        block.scale = b.latent_scale(rope, multiplier)?;
    }
    Ok(block)
}

fn selecting(b: Builder<'_>, block: LatentAttention, gating: Option<Gating>) -> Result<Graph, ModelError> {
    b.indexer_keys(&["head_count", "key_length", "top_k"])?;
    build(b, block, gating)
}

fn build(mut b: Builder<'_>, block: LatentAttention, gating: Option<Gating>) -> Result<Graph, ModelError> {
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    let temperature = match b.applied_f32("attention.temperature_scale")? {
        Some(slope) => {
            let length = b.extent("attention.temperature_length")?;
            Some(PositionScale { slope, length, offset: 0 })
        }
        None => None,
    };
    let block = LatentAttention { temperature, ..block };
    let experts = Experts::new(gating, false);
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.latent_attention(x, &block),
        |b, x| b.dense_or_experts(x, Function::Silu, &experts),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// PLM: a squared ReLU (PLM Team, arXiv 2503.12167).
pub const PLM: Architecture = Architecture::new("plm", plm);

fn plm(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let block = b.latent_block(RopeKind::Interleaved)?;
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.latent_attention(x, &block),
        |b, x| b.feed_forward(x, FeedForward::plain(Function::ReluSquared)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// MiniCPM3: keys and values of every head; scaled embeddings, branches and logits.
pub const MINICPM3: Architecture = Architecture::new("minicpm3", minicpm3);

fn minicpm3(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    /// Factor on embeddings.
    const EMBEDDING_SCALE: f32 = 12.0;
    /// Numerator of the factor on branches, over the root of the number of layers.
    const DEPTH_SCALE: f32 = 1.4;
    /// Width at which logits are not scaled.
    const BASE_WIDTH: f32 = 256.0;
    let block = b.latent_block(RopeKind::Split)?;
    let residuals = Residuals { scale: Some(DEPTH_SCALE / (b.layers() as f32).sqrt()), ..Residuals::PRE };
    let x = b.embed()?;
    let x = b.scale(x, EMBEDDING_SCALE, "embedding_scale")?;
    let x = b.decoder(
        x,
        residuals,
        |b, x| b.latent_attention(x, &block),
        |b, x| b.feed_forward(x, Function::Silu),
    )?;
    let x = b.norm("output_norm", x)?;
    let width = b.width(x) as f32;
    let x = b.scale(x, BASE_WIDTH / width, "output_scale")?;
    b.logits(x)
}

/// dots 3 Note: gated, with windows in some layers. The sparse selection of positions picks all of a short context.
pub const DOTS3NOTE: Architecture = Architecture::new("dots3note", dots3note);

fn dots3note(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["exp_probs_b.bias"]);
    b.indexer_keys(&["head_count", "key_length", "top_k"])?;
    b.require_keys(&["attention.indexer.types", "rope.freq_base_swa", "leading_dense_block_count"])?;
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    let windows = b.windows(WindowDefaults::NEEDED)?;
    let full = b.latent_block(RopeKind::Interleaved)?;
    let full = LatentAttention { gate: Some(Function::Sigmoid), key_norm: true, ..full };
    let mut window = LatentAttention { windowed: true, ..full };
    if let Some(rope) = &mut window.rope {
        rope.rope.base = b.rope_base("rope.freq_base_swa", rope.rope.base)?;
    }
    window.scale = 1.0 / (b.extent("attention.key_length_mla_swa")? as f32).sqrt();
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| {
            let mask = windows.mask(b.layer());
            let block = if windows.contains(b.layer()) { window } else { full };
            b.latent_attention(x, &LatentAttention { mask, ..block })
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(None, false)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
