//! DeepSeek-V2, V3 and their kin with latent attention (DeepSeek-AI, arXiv 2405.04434 and 2412.19437).

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, PositionScale, RopeKind};

use crate::blocks::{Experts, LatentAttention, Residuals};
use crate::{Architecture, Builder, ModelError};

/// The file has a tenth of YaRN's log multiplier, and the rotation has no magnitude.
pub const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    build: |mut b| {
        let mut block = b.latent_block(RopeKind::Interleaved)?;
        if let Some(rope) = &mut block.rope {
            rope.rope.magnitude = b.f32_or("rope.scaling.attn_factor", 1.0)?;
            let multiplier = 10.0 * b.f32_or("rope.scaling.yarn_log_multiplier", 0.0)?;
            block.scale = b.latent_scale(rope, multiplier)?;
        }
        build(b, block, Gating::Softmax)
    },
};
/// DeepSeek-V3.2 and GLM-5: the sparse selection of positions picks all of a short context.
pub const DEEPSEEK32: Architecture = Architecture { name: "deepseek32", build: with_sigmoid };
pub const GLM_DSA: Architecture = Architecture { name: "glm-dsa", build: with_sigmoid };
pub const MISTRAL4: Architecture = Architecture {
    name: "mistral4",
    build: |mut b| {
        let block = b.latent_block(RopeKind::Interleaved)?;
        build(b, block, Gating::Softmax)
    },
};

fn with_sigmoid(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let block = b.latent_block(RopeKind::Interleaved)?;
    build(b, block, Gating::Sigmoid)
}

fn build(mut b: Builder<'_>, block: LatentAttention, gating: Gating) -> Result<Graph, ModelError> {
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
