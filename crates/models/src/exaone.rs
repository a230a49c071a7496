//! EXAONE 4 and its kin: window layers rotate, full layers between them do not.

use puna_graph::ops::{Function, GateBound, Gating, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{
    Activation, AttentionBlock, Decoder, Experts, HeadNorms, OUTPUT, Residuals, WindowDefaults, WindowRope,
    Windows,
};
use crate::{Architecture, Builder, ModelError, Reads};

/// EXAONE 4 (arXiv 2507.11407): norms after each branch; only 32B has windows.
pub const EXAONE4: Architecture = Architecture::new("exaone4", exaone4);

fn exaone4(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let plain = Decoder::new(RopeKind::Split).with_factors().with_norms(HeadNorms::PerHead);
    if b.layers() != 64 {
        return plain.with_residuals(Residuals::POST).build(b);
    }
    let windows = b.windows(WindowDefaults::every(4).or_length(4096))?;
    if windows.length == 0 {
        return plain.with_residuals(Residuals::POST).build(b);
    }
    let x = rotated_windows(&mut b, windows, true, Residuals::POST, |_| Ok(Experts::new(None, false)))?;
    finish(b, x)
}

/// EXAONE 4 with experts.
pub const EXAONE_MOE: Architecture =
    Architecture::new("exaone-moe", exaone_moe).guessing_ahead(Reads::AfterNorm);

fn exaone_moe(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    b.require_keys(&["expert_feed_forward_length"])?;
    let windows = b.windows(WindowDefaults::every(4))?;
    let x = rotated_windows(&mut b, windows, true, Residuals::PRE, |_| Ok(Experts::new(None, false)))?;
    finish(b, x)
}

/// Maple: bounded experts in all layers.
pub const MAPLE: Architecture = Architecture::new("maple", maple);

fn maple(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    b.require_keys(&["expert_feed_forward_length", "swiglu_clamp_exp"])?;
    let windows = b.windows(WindowDefaults::NEEDED)?;
    let x = rotated_windows(&mut b, windows, false, Residuals::PRE, |b| {
        let limit = b.layer_f32("swiglu_clamp_exp")?;
        let activation = Activation::silu_bounded(limit, GateBound::BeforeSilu);
        Ok(Experts { activation, ..Experts::new(Gating::Softmax, true) })
    })?;
    finish(b, x)
}

fn rotated_windows<'m>(
    b: &mut Builder<'m>,
    windows: Windows,
    factors: bool,
    residuals: Residuals,
    mut experts: impl FnMut(&Builder<'m>) -> Result<Experts, ModelError>,
) -> Result<ValueId, ModelError> {
    let full = b.rope_settings(RopeKind::Split, b.key_dim()?, factors)?;
    let rope = b.window_rope(&full, WindowRope::Copied)?;
    let x = b.embed()?;
    b.decoder(
        x,
        residuals,
        |b, x| {
            let layer = b.layer();
            let rope = windows.contains(layer).then_some(rope);
            let norms = HeadNorms::PerHead;
            b.self_attention(
                x,
                &AttentionBlock { rope, norms, mask: windows.mask(layer), ..Default::default() },
            )
        },
        |b, x| {
            let experts = experts(b)?;
            b.dense_or_experts(x, Function::Silu, &experts)
        },
    )
}

fn finish(mut b: Builder<'_>, x: ValueId) -> Result<Graph, ModelError> {
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
