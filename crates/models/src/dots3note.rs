//! dots 3 Note: gated latent attention with windows in some layers.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, RopeKind};

use crate::blocks::{Experts, LatentAttention, Residuals, WindowDefaults};
use crate::{Architecture, Builder, ModelError};

/// The sparse selection of positions picks all of a short context.
pub const ARCHITECTURE: Architecture = Architecture { name: "dots3note", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let windows = b.windows(WindowDefaults { length: 0, pattern: 1, full_first: false })?;
    let full = b.latent_block(RopeKind::Interleaved)?;
    let full = LatentAttention { gate: Some(Function::Sigmoid), key_norm: true, ..full };
    let mut window = LatentAttention { windowed: true, ..full };
    if let Some(rope) = &mut window.rope {
        rope.rope.base = b.f32_or("rope.freq_base_swa", rope.rope.base)?;
        if rope.rope.base <= 1.0 {
            return Err(b.value_error("rope.freq_base_swa", rope.rope.base, "above 1"));
        }
    }
    if b.has_key("attention.key_length_mla_swa") {
        window.scale = 1.0 / (b.extent("attention.key_length_mla_swa")? as f32).sqrt();
    }
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| {
            let mask = windows.mask(b.layer());
            let block = if windows.contains(b.layer()) { window } else { full };
            b.latent_attention(x, &LatentAttention { mask, ..block })
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Sigmoid, false)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
