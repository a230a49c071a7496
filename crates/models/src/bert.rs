//! BERT and its kin (arXiv 1810.04805): encoders with a norm after each branch.

use puna_graph::ops::{Function, Gating, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{AttentionBlock, Experts, FeedForward, HeadNorms};
use crate::{Architecture, Builder, ModelError};

/// BERT, RoBERTa and XLM-RoBERTa: learned positions (MiniLM, BGE, E5, GTE).
pub const BERT: Architecture = Architecture::new("bert", |b| {
    encoder(b, Positions::Learned, |b, x| b.feed_forward(x, FeedForward::plain(Function::Gelu)))
});

/// Jina 2 (arXiv 2310.19923): ALiBi and a gated GELU.
pub const JINA_BERT_V2: Architecture = Architecture::new("jina-bert-v2", jina_bert_v2);

fn jina_bert_v2(b: Builder<'_>) -> Result<Graph, ModelError> {
    let b = b.needing(&["token_types.weight", "attn_output.bias", "ffn_down.bias"]);
    encoder(b, Positions::Alibi, jina_network)
}

/// Jina 3 (arXiv 2409.10173), without its adapters: rotation.
pub const JINA_BERT_V3: Architecture = Architecture::new("jina-bert-v3", |b| {
    encoder(b, Positions::Rotary, |b, x| b.feed_forward(x, FeedForward::plain(Function::Gelu)))
});

/// Nomic Embed 1 (arXiv 2402.01613): rotation and SwiGLU.
pub const NOMIC_BERT: Architecture = Architecture::new("nomic-bert", |b| {
    let network = FeedForward { ignores_biases: true, ..FeedForward::gated(Function::Silu) };
    encoder(b, Positions::Rotary, |b, x| b.feed_forward(x, network))
});

/// Nomic Embed 2 (arXiv 2502.07972): experts in every second layer.
pub const NOMIC_BERT_MOE: Architecture =
    Architecture::new("nomic-bert-moe", |b| encoder(b, Positions::Rotary, nomic_network));

/// How positions enter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Positions {
    Learned,
    Alibi,
    Rotary,
}

fn encoder(
    b: Builder<'_>,
    positions: Positions,
    mut network: impl FnMut(&mut Builder<'_>, ValueId) -> Result<ValueId, ModelError>,
) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["token_embd_norm.bias", "attn_output_norm.bias", "layer_output_norm.bias"]);
    b.see_both_directions();
    let rope = match positions {
        Positions::Rotary => Some(b.rope_settings(RopeKind::Split, b.key_dim()?, false)?),
        Positions::Learned | Positions::Alibi => None,
    };
    let alibi_max_bias = (positions == Positions::Alibi).then_some(8.0);
    let mut x = b.embed()?;
    // Every token is of the first kind of segment.
    if b.has_global("token_types.weight") {
        x = b.add_token_type(x)?;
    }
    if positions == Positions::Learned {
        x = b.add_positions(x)?;
    }
    let x = b.norm("token_embd_norm", x)?;
    let x = b.each_layer(x, |b, x| {
        let norms = match b.has_any(&["attn_q_norm", "attn_k_norm"]) {
            true => HeadNorms::FullWidth,
            false => HeadNorms::None,
        };
        let attended =
            b.self_attention(x, &AttentionBlock { rope, norms, alibi_max_bias, ..Default::default() })?;
        let mut h = b.add(attended, x)?;
        h = b.norm("attn_output_norm", h)?;
        if b.has("attn_norm_2.weight") {
            h = b.add(h, x)?;
            h = b.norm("attn_norm_2", h)?;
        }
        let fed = network(b, h)?;
        let x = b.add(fed, h)?;
        b.norm("layer_output_norm", x)
    })?;
    b.encoded(x)
}

/// The gate is a matrix of its own, or one half of `ffn_up`, or missing.
fn jina_network(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let network = if b.has("ffn_gate.weight") {
        FeedForward::gated(Function::Gelu)
    } else if !b.has_rows("ffn_up.weight", b.hidden_width()?) {
        FeedForward::fused(Function::Gelu)
    } else {
        FeedForward::plain(Function::Gelu)
    };
    b.feed_forward(x, network)
}

fn nomic_network(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    b.require_numbers(&["moe_every_n_layers"])?;
    let every = b.u32_or("moe_every_n_layers", 0)?;
    if every == 0 || b.layer() % every != 1 {
        return b.feed_forward(x, FeedForward::plain(Function::Gelu));
    }
    let activation = Function::Gelu.into();
    let experts = Experts { gated: false, activation, ..Experts::new(Gating::Softmax, false) };
    b.experts(x, &experts)
}
