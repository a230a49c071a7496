//! Mixtures of experts that differ from a plain decoder in a rule or two.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, GroupOfExpert, RopeKind};

use crate::blocks::{
    Activation, AttentionBlock, CHUNK_EXPERTS, Decoder, EXPERTS, Experts, FeedForward, HeadNorms, OUTPUT,
    Residuals, Routing, WindowDefaults, WindowRope,
};
use crate::{Architecture, Builder, ModelError, Reads};

/// DBRX: layer norms, bounded projections.
pub const DBRX: Architecture = Architecture::new("dbrx", |b| {
    let residuals = Residuals { feed_forward_norm: "attn_output_norm", ..Residuals::PRE };
    b.require_keys(&["attention.clamp_kqv"])?;
    Decoder::new(RopeKind::Split).with_residuals(residuals).build(b.needing(OUTPUT))
});

/// Snowflake Arctic: a dense network after attention, experts that read the layer's input.
pub const ARCTIC: Architecture = Architecture::new("arctic", arctic);

fn arctic(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, false)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = b.self_attention(h, &AttentionBlock { rope, ..Default::default() })?;
        let attended = b.add(x, h)?;
        let h = b.norm("ffn_norm", attended)?;
        let network = FeedForward { hidden: Some(b.width(x)), ..FeedForward::gated(Function::Silu) };
        let dense = b.feed_forward(h, network)?;
        let h = b.norm("ffn_norm_exps", x)?;
        let sparse = b.experts(h, &Experts::new(Gating::Softmax, true))?;
        let sum = b.add(attended, dense)?;
        b.add(sum, sparse)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// GroveMoE (arXiv 2508.07785): a second, smaller mixture of the same routing reads the first one's result;
/// its experts serve groups of neighbours.
pub const GROVEMOE: Architecture = Architecture::new("grovemoe", grovemoe);

fn grovemoe(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, false)?);
    b.require_keys(&["expert_feed_forward_length", "experts_per_group", "expert_group_scale"])?;
    let size = b.width_or("experts_per_group", 1)?;
    let scale = b.f32_or("expert_group_scale", 0.0)?;
    let experts = Experts::new(Gating::Softmax, true);
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.self_attention(x, &AttentionBlock { rope, norms: HeadNorms::PerHead, ..Default::default() }),
        |b, x| {
            let routing = b.route(x, &experts)?;
            let y = b.run_experts(x, routing, &experts, EXPERTS)?;
            let chosen = match size {
                1 => routing.chosen,
                size => b.push(GroupOfExpert { size }, vec![routing.chosen.into()], "chunk_choice")?,
            };
            let chunks =
                b.run_experts(y, Routing { chosen, groups: size, ..routing }, &experts, CHUNK_EXPERTS)?;
            let chunks = b.scale(chunks, scale, "chunk_scale")?;
            b.add(y, chunks)
        },
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// SmallThinker (arXiv 2507.20984): the router reads the layer's input before attention, ReLU experts.
pub const SMALLTHINKER: Architecture = Architecture::new("smallthinker", smallthinker);

fn smallthinker(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = b.rope_settings(RopeKind::Split, b.key_dim()?, false)?;
    // The window has this length whatever the key says, unless that is zero.
    const WINDOW: u32 = 4096;
    let mut windows = b.windows(WindowDefaults::every(4).or_length(0).full_first())?;
    windows.length = windows.length.min(1) * WINDOW;
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let layer = b.layer();
        let unrotated = windows.length > 0 && layer.is_multiple_of(4);
        let rope = (!unrotated).then_some(rope);
        let block = AttentionBlock { rope, mask: windows.mask(layer), ..Default::default() };
        let h = b.self_attention(h, &block)?;
        let sum = b.add(x, h)?;
        let h = b.norm("ffn_norm", sum)?;
        let activation = Function::Relu.into();
        let experts = Experts { activation, router_input: Some(x), ..Experts::new(None, true) };
        let h = b.experts(h, &experts)?;
        b.add(sum, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// MiMo V2: windows with sinks, a factor on the attention branch.
pub const MIMO2: Architecture = Architecture::new("mimo2", mimo2).guessing_ahead(Reads::BeforeNorm);

fn mimo2(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    b.require_keys(&["expert_feed_forward_length"])?;
    let full = b.rope_settings(RopeKind::Split, b.key_dim()?, false)?;
    let window_rope = b.window_rope(&full, WindowRope::PlainWithBase(10000.0))?;
    let windows = b.windows(WindowDefaults::NEEDED)?;
    let value_scale = b.applied_f32("attention.value_scale")?;
    let experts = Experts::new(Gating::Sigmoid, true);
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| {
            let layer = b.layer();
            let rope = Some(if windows.limits(layer) { window_rope } else { full });
            let mask = windows.mask(layer);
            let block = AttentionBlock { rope, mask, ignores_input_biases: true, ..Default::default() };
            let h = b.self_attention(x, &block)?;
            value_scale.map_or(Ok(h), |factor| b.scale(h, factor, "value_scale"))
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &experts),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// gpt-oss (OpenAI, arXiv 2508.10925): attention sinks, windows in every second layer, biased experts.
pub const GPT_OSS: Architecture = Architecture::new("gpt-oss", gpt_oss);

fn gpt_oss(b: Builder<'_>) -> Result<Graph, ModelError> {
    /// Besides those that all files may have.
    const BIASES: &[&str] = &[
        "attn_output.bias",
        "ffn_gate_inp.bias",
        "ffn_gate_exps.bias",
        "ffn_up_exps.bias",
        "ffn_down_exps.bias",
    ];
    b.require_keys(&["expert_feed_forward_length"])?;
    let windows = WindowDefaults::every(2);
    Decoder::new(RopeKind::Split)
        .with_residuals(Residuals::POST_ATTENTION)
        .with_windows(windows, WindowRope::Copied)
        .with_experts(Gating::SoftmaxOfChosen, false)
        .with_activation(Activation::SHIFTED)
        .build(b.needing(OUTPUT).needing(BIASES).needing(&["attn_sinks.weight"]))
}
