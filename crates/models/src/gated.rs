//! Decoders whose attention is multiplied by a gate of the layer's input.

use puna_graph::Graph;
use puna_graph::ops::{Function, GateBound, Gating, RmsNorm, RopeKind};

use crate::blocks::{
    Activation, AttentionBlock, Decoder, Experts, FeedForward, HeadNorms, OUTPUT, Residuals, WindowDefaults,
    WindowRope,
};
use crate::{Architecture, Builder, Head, ModelError, Reads};

/// Trinity (Arcee): norms around each branch, window layers that rotate, full layers that do not.
pub const AFMOE: Architecture = Architecture::new("afmoe", afmoe);

fn afmoe(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["exp_probs_b.bias"]);
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    let full = b.rope_settings(RopeKind::Split, b.key_dim()?, true)?;
    let rope = b.window_rope(&full, WindowRope::Copied)?;
    let windows = b.windows(WindowDefaults::every(4).or_length(0))?;
    let experts = Experts::new(Gating::Sigmoid, false);
    let x = b.embed()?;
    let x = b.scale(x, (b.width(x) as f32).sqrt(), "embed_scale")?;
    let x = b.decoder(
        x,
        Residuals::SANDWICH,
        |b, x| {
            let rope = windows.contains(b.layer()).then_some(rope);
            let (gate, norms, mask) = (Some(Function::Sigmoid), HeadNorms::PerHead, windows.mask(b.layer()));
            b.self_attention(x, &AttentionBlock { rope, gate, norms, mask, ..Default::default() })
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &experts),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Muse Glimmer: as Trinity, dense, with normalised embeddings and bounded logits.
pub const MUSE_GLIMMER: Architecture = Architecture::new("muse-glimmer", muse_glimmer);

fn muse_glimmer(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    b.require_keys(&["logit_scale"])?;
    /// The epsilon of norms after a branch; no key sets it.
    const POST_EPSILON: f32 = 1e-8;
    let full = b.rope_settings(RopeKind::Interleaved, b.key_dim()?, false)?;
    let rope = b.window_rope(&full, WindowRope::Copied)?;
    let windows = b.windows(WindowDefaults::every(4))?;
    let scale = b.applied_f32("logit_scale")?;
    let soft_cap = Some(b.f32_or("final_logit_softcapping", 30.0)?).filter(|cap| *cap != 0.0);
    let x = b.embed()?;
    let x = b.norm_unweighted(x, "embed_norm")?;
    let x = b.each_layer(x, |b, x| {
        let after = |b: &mut Builder<'_>, h: puna_graph::ValueId, name: &'static str| {
            let weight = b.weight(&format!("{name}.weight"), &[b.width(h)])?;
            b.push(RmsNorm { epsilon: POST_EPSILON }, vec![h.into(), weight], name)
        };
        let h = b.norm("attn_norm", x)?;
        let rope = windows.contains(b.layer()).then_some(rope);
        let (gate, norms, mask) = (Some(Function::Sigmoid), HeadNorms::PerHead, windows.mask(b.layer()));
        let h = b.self_attention(h, &AttentionBlock { rope, gate, norms, mask, ..Default::default() })?;
        let h = after(b, h, "post_attention_norm")?;
        let x = b.add(x, h)?;
        let h = b.norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Silu)?;
        let h = after(b, h, "post_ffw_norm")?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, Head { scale, soft_cap, ..Head::default() })
}

/// Laguna (Poolside): a softplus gate per head.
pub const LAGUNA: Architecture = Architecture::new("laguna", |b| {
    b.require_keys(&["expert_feed_forward_length", "leading_dense_block_count"])?;
    let b = b.needing(&["exp_probs_b.bias"]);
    let windows = WindowDefaults::every(4).or_length(0).full_first();
    let decoder = Decoder::new(RopeKind::Split).with_norms(HeadNorms::PerHead);
    let decoder = decoder.with_windows(windows, WindowRope::Plain);
    let mut decoder = decoder.with_experts(Gating::Sigmoid, false);
    decoder.attention.gate = Some(Function::Softplus);
    decoder.build(b)
});

/// Spark 2.5: a sigmoid gate per head, GELU.
pub const SPARK2_5: Architecture = Architecture::new("spark2_5", |b| {
    let decoder = Decoder::new(RopeKind::Split);
    let decoder = decoder.with_windows(WindowDefaults::NEEDED, WindowRope::Copied);
    let mut decoder = decoder.with_network(FeedForward::gated(Function::Gelu));
    decoder.attention.gate = Some(Function::Sigmoid);
    decoder.build(b)
});

/// Step 3.5: heads differ by layer; full layers rotate half as much as window layers, with frequency factors.
pub const STEP35: Architecture = Architecture::new("step35", step35).guessing_ahead(Reads::BeforeNorm);

fn step35(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    b.require_keys(&["expert_feed_forward_length"])?;
    let mut full = b.rope_settings(RopeKind::Split, b.key_dim()?, true)?;
    let mut window_rope = b.window_rope(&full, WindowRope::PlainWithBase(10000.0))?;
    (window_rope.factors, window_rope.long_factors) = (None, None);
    full.rope.dimensions /= 2;
    let windows = b.windows(WindowDefaults::NEEDED)?;
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| {
            let layer = b.layer();
            let rope = Some(if windows.contains(layer) { window_rope } else { full });
            let (gate, norms, mask) = (Some(Function::Sigmoid), HeadNorms::PerHead, windows.mask(layer));
            b.self_attention(x, &AttentionBlock { rope, gate, norms, mask, ..Default::default() })
        },
        |b, x| {
            let bound = GateBound::AfterSilu;
            let shared = Activation::silu_bounded(b.layer_f32("swiglu_clamp_shexp")?, bound);
            let experts = Experts {
                activation: Activation::silu_bounded(b.layer_f32("swiglu_clamp_exp")?, bound),
                shared_activation: Some(shared),
                ..Experts::new(Gating::Sigmoid, false)
            };
            b.dense_or_experts(x, FeedForward::gated(shared), &experts)
        },
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
