//! Qwen 1 to 3 with their text-only views of vision and speech models, and architectures that differ from them
//! in settings. All rotate split halves.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, MaskRule, RopeKind};

use crate::blocks::{
    Classifier, Decoder, FeedForward, HeadNorms, NORM_BIASES, OUTPUT, Residuals, WindowDefaults, WindowRope,
};
use crate::builder::Norm;
use crate::{Architecture, Builder, ModelError};

/// A plain decoder that rotates split halves.
pub fn split() -> Decoder {
    Decoder::new(RopeKind::Split)
}

/// The same with norms of each head.
pub fn split_with_head_norms() -> Decoder {
    split().with_norms(HeadNorms::PerHead)
}

/// Qwen (arXiv 2309.16609): the matrices have half of `feed_forward_length`.
pub const QWEN: Architecture = Architecture::new("qwen", qwen);

fn qwen(b: Builder<'_>) -> Result<Graph, ModelError> {
    let hidden = Some(b.width_or("feed_forward_length", 0)? / 2);
    let decoder = split().with_network(FeedForward { hidden, ..FeedForward::gated(Function::Silu) });
    decoder.build(b.needing(&["attn_qkv.bias"]).needing(OUTPUT))
}

/// Qwen 2 and 2.5 (arXiv 2407.10671).
pub const QWEN2: Architecture = Architecture::new("qwen2", |b| split().build(b));

/// Qwen 2 VL and 2.5 VL, text (arXiv 2409.12191). A file without an epsilon means zero.
pub const QWEN2VL: Architecture = Architecture::new("qwen2vl", qwen2vl);

fn qwen2vl(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_keys(&["rope.dimension_sections"])?;
    b.set_norm_kind(Norm::Rms(b.f32_or("attention.layer_norm_rms_epsilon", 0.0)?));
    let mut decoder = split();
    decoder.head.ignores_bias = true;
    decoder.build(b)
}

/// Dream (arXiv 2508.15487): Qwen 2.5 as a diffusion model, every row sees all.
pub const DREAM: Architecture = Architecture::new("dream", |b| {
    let mut decoder = split();
    decoder.attention.mask = MaskRule::Bidirectional;
    decoder.head.ignores_bias = true;
    decoder.build(b)
});

/// Seed-OSS.
pub const SEED_OSS: Architecture =
    Architecture::new("seed_oss", |b| split().with_residuals(Residuals::POST_ATTENTION).build(b));

/// Pangu Embedded (arXiv 2505.22375).
pub const PANGU_EMBEDDED: Architecture =
    Architecture::new("pangu-embedded", |b| split().build(b.needing(&["attn_output.bias"])));

/// Orion (arXiv 2401.12246): layer norms.
pub const ORION: Architecture =
    Architecture::new("orion", |b| split().build(b.needing(NORM_BIASES).needing(OUTPUT)));

/// CogVLM, text (arXiv 2311.03079).
pub const COGVLM: Architecture = Architecture::new("cogvlm", |b| split().build(b));

/// PaddleOCR-VL, text.
pub const PADDLEOCR: Architecture = Architecture::new("paddleocr", |b| split().build(b));

/// BitNet b1.58 (arXiv 2402.17764): norms within the branches, a factor per matrix.
pub const BITNET: Architecture = Architecture::new("bitnet", |b| {
    split().build(b.needing(&["attn_sub_norm.weight", "ffn_sub_norm.weight"]))
});

/// EXAONE 3 and 3.5 (arXiv 2412.04862).
pub const EXAONE: Architecture = Architecture::new("exaone", |b| split().with_factors().build(b));

/// Qwen 3 (arXiv 2505.09388): norms of queries and keys.
pub const QWEN3: Architecture = Architecture::new("qwen3", ranking);

/// Qwen 3 with experts.
pub const QWEN3MOE: Architecture = Architecture::new("qwen3moe", |b| split_with_head_norms().build(b));

/// Qwen 3 VL, text.
pub const QWEN3VL: Architecture = Architecture::new("qwen3vl", |b| {
    b.require_keys(&["rope.dimension_sections"])?;
    ranking(b)
});

/// Rerankers made of these models give shares of "yes" and "no".
fn ranking(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    b.set_classifier(Classifier { softmax: true, ..Classifier::default() });
    split_with_head_norms().build(b)
}

/// Qwen 3 VL with experts, text.
pub const QWEN3VLMOE: Architecture = Architecture::new("qwen3vlmoe", with_sections);

/// Qwen 3 TTS, the talker: it reads text and codes of sound, which are the last tokens of its vocabulary, and says codes.
pub const QWEN3TTS: Architecture = Architecture::new("qwen3tts", |b| {
    /// In every size; files have no key for it.
    const CODES: u32 = 3072;
    b.require_keys(&["rope.dimension_sections"])?;
    let mut decoder = split_with_head_norms();
    decoder.head.last_tokens = b.has_global("output.weight").then_some(CODES);
    decoder.build(b.with_other_outputs())
});

/// Files say which elements turn by which coordinate of an image.
fn with_sections(b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_keys(&["rope.dimension_sections"])?;
    split_with_head_norms().build(b)
}

/// Mellum: Qwen 3 with experts and windows.
pub const MELLUM: Architecture = Architecture::new("mellum", |b| {
    b.require_keys(&["expert_feed_forward_length"])?;
    let windows = WindowDefaults::every(4).or_length(0);
    split_with_head_norms().with_windows(windows, WindowRope::Plain).build(b.needing(OUTPUT))
});

/// LLaDA with experts: a diffusion model, every row sees all.
pub const LLADA_MOE: Architecture = Architecture::new("llada-moe", |b| diffusion(b.needing(OUTPUT), false));
/// RND1: Qwen 3 with experts as a diffusion model.
pub const RND1: Architecture = Architecture::new("rnd1", |b| diffusion(b, true));

fn diffusion(b: Builder<'_>, normalise: bool) -> Result<Graph, ModelError> {
    let mut decoder = split_with_head_norms().with_experts(Gating::Softmax, normalise);
    decoder.attention.mask = MaskRule::Bidirectional;
    decoder.build(b)
}

/// OpenELM (arXiv 2404.14619): heads and widths differ by layer.
pub const OPENELM: Architecture = Architecture::new("openelm", |b| split_with_head_norms().build(b));
