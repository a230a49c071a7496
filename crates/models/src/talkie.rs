//! Talkie: norms without weights, and the embedding added to every layer's result.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind, ScaleRows};

use crate::blocks::{AttentionBlock, OUTPUT};
use crate::{Architecture, Builder, Head, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("talkie", build);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(OUTPUT);
    b.require_keys(&["logit_scale"])?;
    let rope = b.rope_settings(RopeKind::Split, b.key_dim()?, false)?;
    let scale = b.applied_f32("logit_scale")?;
    let block = AttentionBlock::default();
    let x = b.embed()?;
    let embedded = b.norm_unweighted(x, "embed_norm")?;
    let x = b.each_layer(embedded, |b, x| {
        let shape = b.head_shape()?;
        let h = b.norm_unweighted(x, "attn_norm")?;
        let (q, k, v) = b.queries_keys_values(h, shape, true)?;
        let (q, k) = (b.rope(q, &rope)?, b.rope(k, &rope)?);
        let (q, k) = (b.norm_unweighted(q, "attn_q_norm")?, b.norm_unweighted(k, "attn_k_norm")?);
        // One number per head.
        let factors = b.weight("attn_q_norm.weight", &[shape.heads])?;
        let q = b.push(ScaleRows, vec![q.into(), factors], "attn_q_norm")?;
        let state = b.key_value_state(shape, block.mask);
        let h = b.attend(state, q, k, v, &block)?;
        let h = b.attention_output(h, b.width(x), true)?;
        let x = b.add(x, h)?;

        let h = b.norm_unweighted(x, "ffn_norm")?;
        let h = b.feed_forward(h, Function::Silu)?;
        let x = b.add(x, h)?;
        let factor = b.weight("layer_output_scale.weight", &[1])?;
        let again = b.mul(embedded, factor, "layer_output_scale")?;
        b.add(x, again)
    })?;
    let x = b.norm_unweighted(x, "output_norm")?;
    b.logits_with(x, Head { scale, ..Head::default() })
}
