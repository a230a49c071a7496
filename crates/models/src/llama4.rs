//! Llama 4: attention in chunks of positions, every fourth layer without rotation and chunks; one expert
//! beside a shared one.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, MaskRule, PositionScale, RopeKind};

use crate::blocks::{AttentionBlock, Experts, HeadNorms, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("llama4", build);

/// Positions of a chunk, and over which the temperature of unrotated layers stays the same.
const CHUNK: u32 = 8192;

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_numbers(&["expert_feed_forward_length", "interleave_moe_layer_step"])?;
    let rope = b.rope_settings(RopeKind::Interleaved, b.key_dim()?, true)?;
    // Only a key of zero turns chunks, and with them the unrotated layers, off.
    let chunked = b.optional_u32("attention.sliding_window")? != Some(0);
    // Maverick, with 128 experts, has no norms.
    let norms = match b.expert_count()? {
        128 => HeadNorms::None,
        _ => HeadNorms::Unweighted,
    };
    let rotated = AttentionBlock {
        rope: Some(rope),
        norms,
        norms_after_rope: true,
        mask: if chunked { MaskRule::Chunked(CHUNK) } else { MaskRule::Causal },
        ..Default::default()
    };
    let temperature = PositionScale { slope: 0.1, length: CHUNK, offset: 1 };
    let unrotated = AttentionBlock { temperature: Some(temperature), ..Default::default() };
    let experts = Experts { scales_input: true, ..Experts::new(Gating::Sigmoid, false) };
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.self_attention(x, if chunked && b.layer() % 4 == 3 { &unrotated } else { &rotated }),
        |b, x| b.dense_or_experts(x, Function::Silu, &experts),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
