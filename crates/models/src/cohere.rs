//! Cohere's Command models: one norm per layer for both branches, scaled logits.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, RopeKind};

use crate::blocks::{AttentionBlock, Experts, HeadNorms, WindowDefaults, WindowRope};
use crate::{Architecture, Builder, Head, ModelError, Reads};

/// Command R and R+; R+ has norms of queries and keys.
pub const COMMAND_R: Architecture = Architecture::new("command-r", |b| command(b, None, 0));

/// Command R7B and A, Aya (arXiv 2504.00698): three window layers that rotate to one full layer that does not.
pub const COHERE2: Architecture = Architecture::new("cohere2", |b| {
    b.require_keys(&["logit_scale"])?;
    command(b, Some(WindowDefaults::every(4)), 0)
});

/// Cohere 2 with experts; the first layers are dense and rotate.
pub const COHERE2MOE: Architecture = Architecture::new("cohere2moe", |b| {
    b.require_keys(&["expert_feed_forward_length", "leading_dense_block_count", "logit_scale"])?;
    let dense = b.u32_or("leading_dense_block_count", 0)?;
    command(b, Some(WindowDefaults::every(4).full_first()), dense)
})
.guessing_ahead(Reads::AfterNorm);

fn command(
    mut b: Builder<'_>,
    windows: Option<WindowDefaults>,
    rotated_layers: u32,
) -> Result<Graph, ModelError> {
    let full = b.rope_settings(RopeKind::Interleaved, b.key_dim()?, windows.is_some())?;
    let window_rope = b.window_rope(&full, WindowRope::Copied)?;
    let windows = windows.map(|defaults| b.windows(defaults)).transpose()?;
    let scale = b.applied_f32("logit_scale")?;
    let x = b.embed()?;
    let x = b.parallel_decoder(
        x,
        |b, x| {
            let layer = b.layer();
            let mut block = AttentionBlock { rope: Some(full), ..Default::default() };
            if let Some(windows) = &windows {
                block.mask = windows.mask(layer);
                block.rope = match windows.contains(layer) {
                    true => Some(window_rope),
                    // Layers that guess ahead rotate whether or not they see a window.
                    false => (layer < rotated_layers || b.guesses_ahead()).then_some(full),
                };
            }
            if b.has_any(&["attn_q_norm", "attn_k_norm"]) {
                block.norms = HeadNorms::PerHead;
            }
            b.self_attention(x, &block)
        },
        |b, x| {
            let h = b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Sigmoid, false))?;
            match b.has_experts() && b.has_shared_expert()? {
                true => b.scale(h, 0.5, "ffn_mean"),
                false => Ok(h),
            }
        },
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, Head { scale, ..Head::default() })
}
