//! Gemma 3 (arXiv 2503.19786): norms around each branch, five windowed layers to one full layer.

use puna_graph::Graph;
use puna_graph::ops::{Function, MaskRule, RopeKind};

use crate::blocks::{AttentionBlock, RopeSettings};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "gemma3", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let full_rope = b.rope_settings(RopeKind::Split, head_dim, false)?;
    let mut window_rope: RopeSettings = full_rope;
    window_rope.rope.base = b.rope_base("rope.freq_base_swa", 10000.0)?;
    window_rope.rope.position_scale = 1.0;
    let window = b.u32_or("attention.sliding_window", 0)?;
    let pattern = if b.layer_bool_array("attention.sliding_window_pattern")?.is_some() {
        None
    } else {
        Some(b.u32_or("attention.sliding_window_pattern", 6)?)
    };
    // The 27 B model, told by its depth, scales by the width per head instead of the head's width.
    let scale = match b.layers() {
        62 => ((b.width_or("embedding_length", 0)? / b.head_counts()?.0) as f32).sqrt().recip(),
        _ => b.attention_scale()?,
    };

    let x = b.embed()?;
    let x = b.scale(x, (b.width(x) as f32).sqrt(), "embed_scale")?;
    let x = b.each_layer(x, |b, x| {
        let windowed = window > 0
            && match pattern {
                Some(0) => true,
                Some(every) => b.layer() % every < every - 1,
                None => b.layer_bool_array("attention.sliding_window_pattern")?.unwrap_or(false),
            };
        let (rope, mask) = match windowed {
            true => (&window_rope, MaskRule::Window(window)),
            false => (&full_rope, MaskRule::Causal),
        };
        let h = b.rms_norm("attn_norm", x)?;
        let h = b.self_attention(h, &AttentionBlock { rope: Some(rope), scale, mask, head_norms: true })?;
        let h = b.rms_norm("post_attention_norm", h)?;
        let x = b.add(x, h)?;

        let h = b.rms_norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Gelu)?;
        let h = b.rms_norm("post_ffw_norm", h)?;
        b.add(x, h)
    })?;
    let x = b.rms_norm("output_norm", x)?;
    b.logits(x)
}
