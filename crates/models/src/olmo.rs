//! OLMo 1 to 3 (arXiv 2402.00838, 2501.00656) and Apertus, models whose training data are open.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind, Xielu};

use crate::blocks::{AttentionBlock, Decoder, HeadNorms, OUTPUT, Residuals, WindowDefaults, WindowRope};
use crate::{Architecture, Builder, ModelError};

/// OLMo 1: layer norms without weights.
pub const OLMO: Architecture = Architecture::new("olmo", olmo);

fn olmo(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, false)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm_unweighted(x, "attn_norm")?;
        let h = b.self_attention(h, &AttentionBlock { rope, ..Default::default() })?;
        let x = b.add(x, h)?;
        let h = b.norm_unweighted(x, "ffn_norm")?;
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(x, h)
    })?;
    let x = b.norm_unweighted(x, "output_norm")?;
    b.logits(x)
}

/// OLMo 2 and 3: norms after each branch, and of queries and keys over all heads; 3 has windows.
pub const OLMO2: Architecture = Architecture::new("olmo2", |b| {
    let windows = WindowDefaults::every(4).or_length(0);
    Decoder::new(RopeKind::Split)
        .with_norms(HeadNorms::FullWidth)
        .with_residuals(Residuals::POST)
        .with_windows(windows, WindowRope::Plain)
        .build(b.needing(OUTPUT))
});

/// Apertus (arXiv 2509.14233): xIELU networks without a gate.
pub const APERTUS: Architecture = Architecture::new("apertus", apertus);

fn apertus(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, true)?);
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.self_attention(x, &AttentionBlock { rope, norms: HeadNorms::PerHead, ..Default::default() }),
        |b, x| {
            let hidden = b.hidden_width()?;
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
