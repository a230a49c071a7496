//! GPT-2 and its kin: layer norms, GELU networks without a gate, learned positions or ALiBi.

use puna_graph::ops::{Function, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{
    AttentionBlock, Decoder, FeedForward, HeadNorms, MATRIX_BIASES, NORM_BIASES, OUTPUT, Residuals,
};
use crate::{Architecture, Builder, ModelError};

/// GPT-2 (Radford et al., 2019).
pub const GPT2: Architecture = Architecture::new("gpt2", learned);
/// StarCoder (arXiv 2305.06161).
pub const STARCODER: Architecture = Architecture::new("starcoder", learned);
/// BLOOM (arXiv 2211.05100): ALiBi, and a norm of the embeddings.
pub const BLOOM: Architecture = Architecture::new("bloom", |b| {
    let b = with_biases(b).needing(&["attn_qkv.bias", "token_embd_norm.weight", "token_embd_norm.bias"]);
    learned_or_alibi(b, Some(8.0))
});
/// Files of all but MPT have these biases.
fn with_biases(b: Builder<'_>) -> Builder<'_> {
    b.needing(NORM_BIASES).needing(MATRIX_BIASES)
}

fn learned(b: Builder<'_>) -> Result<Graph, ModelError> {
    learned_or_alibi(with_biases(b).needing(&["attn_qkv.bias", "position_embd.weight"]), None)
}

/// MPT: ALiBi by key, bounded projections.
pub const MPT: Architecture = Architecture::new("mpt", |b| {
    let alibi = b.applied_f32("attention.max_alibi_bias")?;
    learned_or_alibi(b, alibi)
});

fn learned_or_alibi(mut b: Builder<'_>, alibi_max_bias: Option<f32>) -> Result<Graph, ModelError> {
    let mut x = b.embed()?;
    if b.has_global("position_embd.weight") {
        x = b.add_positions(x)?;
    }
    if b.has_global("token_embd_norm.weight") {
        x = b.norm("token_embd_norm", x)?;
    }
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| {
            // A key norm alone is left out.
            let norms = match b.has("attn_q_norm.weight") {
                true => HeadNorms::FullWidth,
                false => HeadNorms::None,
            };
            b.self_attention(x, &AttentionBlock { alibi_max_bias, norms, ..Default::default() })
        },
        feed_forward,
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// A GELU network; `ffn.act.scales` divide its inner values if the file has them (AWQ).
fn feed_forward(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    const SCALES: &str = "ffn.act.scales";
    if !b.has(SCALES) {
        return b.feed_forward(x, FeedForward::plain(Function::Gelu));
    }
    let hidden = b.hidden_width()?;
    let scales = b.weight(SCALES, &[hidden])?;
    let h = b.linear("ffn_up", x, hidden)?;
    let h = b.unary(Function::Gelu, h, "ffn_act")?;
    let h = b.push(puna_graph::ops::Div, vec![h.into(), scales], "ffn_act_scales")?;
    let width = b.width(x);
    b.linear("ffn_down", h, width)
}

/// StarCoder 2 (arXiv 2402.19173).
pub const STARCODER2: Architecture = Architecture::new("starcoder2", rotated_gelu);
/// CodeShell (arXiv 2403.15747).
pub const CODESHELL: Architecture = Architecture::new("codeshell", |b| rotated_gelu(b.needing(OUTPUT)));

fn rotated_gelu(b: Builder<'_>) -> Result<Graph, ModelError> {
    Decoder::new(RopeKind::Split).with_network(FeedForward::plain(Function::Gelu)).build(with_biases(b))
}

/// Pocket TTS, the language model.
pub const POCKETTTS: Architecture = Architecture::new("pockettts", |b| {
    let decoder = Decoder::new(RopeKind::Interleaved).with_network(FeedForward::plain(Function::Gelu));
    decoder.build(b.needing(NORM_BIASES))
});

/// Nemotron and Minitron (arXiv 2402.16819).
pub const NEMOTRON: Architecture = Architecture::new("nemotron", |b| rotated_squared_relu(b.needing(OUTPUT)));
/// Jais 2.
pub const JAIS2: Architecture = Architecture::new("jais2", |b| rotated_squared_relu(with_biases(b)));

fn rotated_squared_relu(b: Builder<'_>) -> Result<Graph, ModelError> {
    let decoder = Decoder::new(RopeKind::Split).with_network(FeedForward::plain(Function::ReluSquared));
    decoder.build(b.needing(NORM_BIASES))
}

/// Jais (arXiv 2308.16149): ALiBi, scores over the width of a head instead of its root, SwiGLU.
pub const JAIS: Architecture = Architecture::new("jais", |b| {
    let mut decoder = Decoder::new(None);
    decoder.attention.alibi_max_bias = b.applied_f32("attention.max_alibi_bias")?;
    decoder.attention.scale = Some(1.0 / b.key_dim()? as f32);
    decoder.build(with_biases(b).needing(&["attn_qkv.bias", "ffn_gate.bias"]).needing(OUTPUT))
});

/// Refact 1.6B: RMS norms, ALiBi, SwiGLU, no biases.
pub const REFACT: Architecture = Architecture::new("refact", refact);

fn refact(b: Builder<'_>) -> Result<Graph, ModelError> {
    if b.expert_count()? > 0 {
        return Err(b.value_error("expert_count", b.expert_count()?, "0: no Refact model has experts"));
    }
    let mut decoder = Decoder::new(None);
    decoder.attention.alibi_max_bias = Some(8.0);
    decoder.attention.ignores_output_bias = true;
    decoder.network.ignores_biases = true;
    decoder.build(b)
}

/// GPT-NeoX and Pythia (arXiv 2204.06745): branches side by side, each with its norm, unless the file says no.
pub const GPTNEOX: Architecture = Architecture::new("gptneox", gptneox);

fn gptneox(b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_keys(&["use_parallel_residual"])?;
    let mut b = with_biases(b).needing(&["attn_qkv.bias"]).needing(OUTPUT);
    let network = FeedForward::plain(Function::Gelu);
    if !b.bool_or("use_parallel_residual", true)? {
        return Decoder::new(RopeKind::Split).with_network(network).build(b);
    }
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, false)?);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let attended = b.self_attention(h, &AttentionBlock { rope, ..Default::default() })?;
        let h = b.norm("ffn_norm", x)?;
        let fed = b.feed_forward(h, network)?;
        let x = b.add(x, attended)?;
        b.add(x, fed)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
