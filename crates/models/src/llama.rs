//! Llama 1 to 3, Mistral 7B, Mixtral, SmolLM, Yi (Touvron et al., arXiv 2302.13971) and architectures that
//! differ from it in settings.

use puna_graph::Graph;
use puna_graph::ops::{Function, MaskRule, PositionScale, RopeKind};

use crate::blocks::{
    AttentionBlock, Decoder, FeedForward, HeadNorms, NORM_BIASES, OUTPUT, Residuals, WindowDefaults,
    WindowRope,
};
use crate::{Architecture, Builder, ModelError, Norm};

/// Llama and its kin.
pub const LLAMA: Architecture =
    Architecture::new("llama", |b| Decoder::new(RopeKind::Interleaved).with_factors().build(b));

/// InternLM 2 (arXiv 2403.17297).
pub const INTERNLM2: Architecture =
    Architecture::new("internlm2", |b| Decoder::new(RopeKind::Interleaved).build(b.needing(OUTPUT)));

/// XVERSE.
pub const XVERSE: Architecture =
    Architecture::new("xverse", |b| Decoder::new(RopeKind::Interleaved).build(b.needing(OUTPUT)));

/// Ministral 3, Mistral Small 3 and Large 3: queries may have a temperature by position.
pub const MISTRAL3: Architecture = Architecture::new("mistral3", mistral3);

fn mistral3(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut decoder = Decoder::new(RopeKind::Interleaved).with_factors();
    if let Some(slope) = b.applied_f32("attention.temperature_scale")? {
        let context = b.u32_or("context_length", 1)?;
        let length = b.u32_or("rope.scaling.original_context_length", context)?.max(1);
        decoder.attention.temperature = Some(PositionScale { slope, length, offset: 0 });
    }
    decoder.build(b)
}

/// AFM (Arcee): squared ReLU without a gate.
pub const ARCEE: Architecture = Architecture::new("arcee", |b| {
    let network = FeedForward::plain(Function::ReluSquared);
    Decoder::new(RopeKind::Interleaved).with_factors().with_network(network).build(b)
});

/// SmolLM 3: every fourth layer does not rotate.
pub const SMOLLM3: Architecture = Architecture::new("smollm3", smollm3);

fn smollm3(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = b.rope_settings(RopeKind::Interleaved, b.key_dim()?, false)?;
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| {
            let rope = (b.layer() % 4 != 3).then_some(rope);
            b.self_attention(x, &AttentionBlock { rope, ..Default::default() })
        },
        |b, x| b.feed_forward(x, Function::Silu),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Baichuan 1 and 2 (arXiv 2309.10305): 7B rotates, 13B has ALiBi; the number of layers tells which it is.
pub const BAICHUAN: Architecture = Architecture::new("baichuan", baichuan);

fn baichuan(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut decoder = Decoder::new(None);
    match b.layers() {
        32 => decoder.rope = Some(RopeKind::Interleaved),
        40 => decoder.attention.alibi_max_bias = Some(8.0),
        _ => {}
    }
    decoder.build(b.needing(OUTPUT))
}

/// Maincoder: norms of queries and keys after the rotation.
pub const MAINCODER: Architecture = Architecture::new("maincoder", |b| {
    let mut decoder = Decoder::new(RopeKind::Interleaved).with_norms(HeadNorms::PerHead);
    decoder.attention.norms_after_rope = true;
    decoder.build(b)
});

/// LLaDA (arXiv 2502.09992), a diffusion model: every row sees all.
pub const LLADA: Architecture = Architecture::new("llada", |b| {
    let mut decoder = Decoder::new(RopeKind::Interleaved);
    decoder.attention.mask = MaskRule::Bidirectional;
    decoder.attention.ignores_output_bias = true;
    decoder.network.ignores_biases = true;
    decoder.build(b)
});

/// Ernie 4.5, dense.
pub const ERNIE4_5: Architecture = Architecture::new("ernie4_5", ernie);
/// Ernie 4.5 with experts.
pub const ERNIE4_5_MOE: Architecture = Architecture::new("ernie4_5-moe", |b| {
    b.require_numbers(&["expert_feed_forward_length", "interleave_moe_layer_step"])?;
    ernie(b)
});

fn ernie(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut decoder = Decoder::new(RopeKind::Interleaved);
    decoder.attention.ignores_output_bias = true;
    decoder.build(b)
}

/// DeepSeek MoE 16B (arXiv 2401.06066).
pub const DEEPSEEK: Architecture = Architecture::new("deepseek", deepseek);
/// Ling 1 (arXiv 2503.05139).
pub const BAILINGMOE: Architecture = Architecture::new("bailingmoe", |b| deepseek(b.needing(OUTPUT)));

fn deepseek(b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    let decoder = Decoder::new(RopeKind::Interleaved).with_factors();
    decoder.with_experts(puna_graph::ops::Gating::Softmax, false).build(b)
}

/// PLaMo 3: norms around each branch, gate and value in one matrix, windows.
pub const PLAMO3: Architecture = Architecture::new("plamo3", |b| {
    let windows = WindowDefaults::every(8).or_length(0);
    Decoder::new(RopeKind::Split)
        .with_norms(HeadNorms::PerHead)
        .with_residuals(Residuals::SANDWICH)
        .with_network(FeedForward::fused(Function::Silu))
        .with_windows(windows, WindowRope::PlainWithBase(10000.0))
        .build(b)
});

/// Phi 3, 3.5 and 4, Phi 4 mini (arXiv 2404.14219): LongRoPE, gate and value in one matrix. Windows that some
/// files name are not applied.
pub const PHI3: Architecture = Architecture::new("phi3", |b| {
    let decoder = Decoder::new(RopeKind::Split).with_factors();
    decoder.with_network(FeedForward::fused(Function::Silu)).build(b)
});

/// Phi 3.5 with experts. Its norms are layer norms where the file has their epsilon; files of other converters lack it,
/// and are computed as llama.cpp does, with RMS norms and a bias.
pub const PHIMOE: Architecture = Architecture::new("phimoe", |b| {
    const EPSILON: &str = "attention.layer_norm_epsilon";
    let mut b = b.needing(NORM_BIASES).needing(OUTPUT).needing(&["attn_output.bias", "output.bias"]);
    if b.has_key(EPSILON) {
        let epsilon = b.positive_f32(EPSILON)?;
        b.set_norm_kind(Norm::Layer(epsilon));
    }
    let decoder = Decoder::new(RopeKind::Split).with_factors();
    decoder.build(b)
});

/// Nemotron NAS (arXiv 2411.19146): layers that lack attention or more.
pub const DECI: Architecture = Architecture::new("deci", deci);

fn deci(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, true)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, mut x| {
        if b.layer_u32("feed_forward_length")? == Some(0) {
            return Ok(x);
        }
        let heads = b.layer_u32("attention.head_count")?.unwrap_or(0);
        if heads > 0 {
            let h = b.norm("attn_norm", x)?;
            // Without keys and values a linear map stands in for attention.
            let h = match b.layer_u32("attention.head_count_kv")? {
                Some(0) => b.linear("attn_output", h, b.width(x))?,
                _ => b.self_attention(h, &AttentionBlock { rope, ..Default::default() })?,
            };
            x = b.add(x, h)?;
        }
        let h = b.norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
