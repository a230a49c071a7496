//! ChatGLM 3, GLM-4 (arXiv 2406.12793) and GLM-5-Next.

use puna_graph::Graph;
use puna_graph::ops::{Function, MaskRule, RopeKind};

use crate::blocks::{
    Decoder, FeedForward, HYPER_ATTENTION, HYPER_FEED_FORWARD, LatentAttention, OUTPUT, Residuals,
};
use crate::hy_v4::bounded_experts;
use crate::kimi::channel_decay;
use crate::{Architecture, Builder, ModelError};

/// ChatGLM 3 and GLM-4 before 0414.
pub const CHATGLM: Architecture = Architecture::new("chatglm", |b| glm(b, Residuals::PRE));
/// GLM-4-0414 and GLM-4.1V, text: norms around each branch.
pub const GLM4: Architecture = Architecture::new("glm4", |b| glm(b, Residuals::SANDWICH));

/// Gate and value in one matrix.
fn glm(b: Builder<'_>, residuals: Residuals) -> Result<Graph, ModelError> {
    // The vision models rotate by sections of split halves; text positions are the same in each section.
    let kind = match b.has_key("rope.dimension_sections") {
        true => RopeKind::Split,
        false => RopeKind::Interleaved,
    };
    let decoder = Decoder::new(kind).with_residuals(residuals);
    decoder.with_network(FeedForward::fused(Function::Silu)).build(b)
}

/// GLM-5-Next: Kimi delta attention, and latent attention without positions in some layers, on hyper-connections. The
/// sparse selection of positions picks all of a short context.
pub const GLM5_NEXT: Architecture = Architecture::new("glm5-next", glm5_next);

fn glm5_next(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["exp_probs_b.bias", "ssm_f_b.weight", "ssm_g_b.weight"]).needing(OUTPUT);
    b.indexer_keys(&["head_count", "key_length", "top_k", "kpool"])?;
    b.require_keys(&["expert_feed_forward_length", "expert_shared_count"])?;
    /// Of the unit length of queries and keys; no key sets it.
    const UNIT_EPSILON: f32 = 1e-6;
    let block = LatentAttention::unrotated(1.0 / (b.latent_key_dim()? as f32).sqrt(), MaskRule::Causal);
    let heads = b.most_heads()?;
    let decay = channel_decay(&b)?;
    let connections = b.hyper_settings(true)?;
    let x = b.embed()?;
    let streams = b.streams(x)?;
    let streams = b.each_layer(streams, |b, streams| {
        let streams = b.hyper_branch(streams, HYPER_ATTENTION, connections, |b, x| {
            let x = b.norm("attn_norm", x)?;
            match b.has_attention()? {
                true => b.latent_attention(x, &block),
                false => b.kimi_delta_attention(x, heads, decay, UNIT_EPSILON),
            }
        })?;
        b.hyper_branch(streams, HYPER_FEED_FORWARD, connections, |b, x| {
            let x = b.norm("ffn_norm", x)?;
            let shared_bound = b.shared_bound()?;
            bounded_experts(b, x, shared_bound)
        })
    })?;
    let x = b.mean_of_streams(streams)?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
