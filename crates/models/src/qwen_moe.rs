//! Mixtures of experts that rotate split halves, as Qwen does.

use puna_graph::Graph;
use puna_graph::ops::Gating;

use crate::blocks::{Activation, HeadNorms, OUTPUT, Residuals};
use crate::qwen::{split, split_with_head_norms};
use crate::qwen_next::with_shared_gate;
use crate::{Architecture, Builder, ModelError, Reads};

/// Qwen 2 with experts.
pub const QWEN2MOE: Architecture = Architecture::new("qwen2moe", |b| {
    let b = with_shared_gate(b).needing(OUTPUT);
    split().with_experts(Gating::Softmax, false).build(b)
});

/// DeepSeek-OCR, the decoder (arXiv 2510.18234).
pub const DEEPSEEK2_OCR: Architecture = Architecture::new("deepseek2-ocr", |b| {
    b.require_keys(COUNTED)?;
    split().with_experts(Gating::Softmax, false).build(b)
});

/// dots.llm1 (arXiv 2506.05767).
pub const DOTS1: Architecture = Architecture::new("dots1", counted);

/// Ling 2 (arXiv 2510.22115): groups of experts.
pub const BAILINGMOE2: Architecture =
    Architecture::new("bailingmoe2", counted).guessing_ahead(Reads::AfterNorm);

/// What files say besides the tensors.
const COUNTED: &[&str] = &["expert_feed_forward_length", "expert_shared_count"];

fn counted(b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_keys(COUNTED)?;
    split_with_head_norms().with_experts(None, false).build(b.needing(OUTPUT))
}

/// Hunyuan 3.
pub const HY_V3: Architecture = Architecture::new("hy_v3", |b| {
    b.require_keys(&["expert_feed_forward_length"])?;
    split_with_head_norms().with_factors().with_experts(Gating::Sigmoid, false).build(b)
})
.guessing_ahead(Reads::AfterNorm);

/// GLM-4.5 and 4.6 (arXiv 2508.06471): norms of queries and keys only in some sizes.
pub const GLM4MOE: Architecture = Architecture::new("glm4moe", glm4moe).guessing_ahead(Reads::AfterNorm);

fn glm4moe(b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_keys(COUNTED)?;
    let b = b.needing(&["exp_probs_b.bias"]);
    let mut decoder = split().with_residuals(Residuals::POST_ATTENTION).with_experts(Gating::Sigmoid, false);
    let has_norm = |name: &str| b.has_global(&format!("blk.{}.{name}.weight", b.first_layer()));
    if has_norm("attn_q_norm") || has_norm("attn_k_norm") {
        decoder.attention.norms = HeadNorms::PerHead;
    }
    decoder.build(b)
}

/// OLMoE (arXiv 2409.02060): norms over all heads together.
pub const OLMOE: Architecture = Architecture::new("olmoe", |b| {
    let decoder = split().with_norms(HeadNorms::FullWidth).with_experts(Gating::Softmax, false);
    decoder.build(b.needing(OUTPUT))
});

/// MiniMax M2.
pub const MINIMAX_M2: Architecture = Architecture::new("minimax-m2", |b| {
    b.require_keys(&["expert_feed_forward_length"])?;
    let decoder = split().with_norms(HeadNorms::FullWidth).with_experts(None, true);
    decoder.build(b.needing(OUTPUT).needing(&["exp_probs_b.bias"]))
});

/// MiniMax M3: bounded SwiGLU everywhere.
pub const MINIMAX_M3: Architecture = Architecture::new("minimax-m3", |b| {
    b.require_keys(COUNTED)?;
    b.indexer_keys(&["head_count", "key_length", "top_k", "block_size", "local_blocks"])?;
    let b = b.needing(OUTPUT).needing(&["exp_probs_b.bias"]);
    let decoder = split_with_head_norms().with_experts(None, false);
    decoder.with_activation(Activation::SHIFTED).build(b)
});
