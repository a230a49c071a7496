//! Apertus (arXiv 2509.14233): xIELU networks without a gate.

use puna_graph::Graph;
use puna_graph::ops::{RopeKind, Xielu};

use crate::blocks::{AttentionBlock, HeadNorms, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "apertus", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, true)?);
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.self_attention(x, &AttentionBlock { rope, norms: HeadNorms::PerHead, ..Default::default() }),
        |b, x| {
            let hidden = b.layer_u32("feed_forward_length")?.unwrap_or(0);
            let h = b.linear("ffn_up", x, hidden)?;
            let xielu = Xielu {
                alpha_n: b.global_layer_f32("xielu.alpha_n")?,
                alpha_p: b.global_layer_f32("xielu.alpha_p")?,
                beta: b.global_layer_f32("xielu.beta")?,
                epsilon: b.global_layer_f32("xielu.eps")?,
            };
            let h = b.push(xielu, vec![h.into()], "ffn_act")?;
            b.linear("ffn_down", h, b.width(x))
        },
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
