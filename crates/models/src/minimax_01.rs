//! MiniMax-01: lightning attention, with softmax attention in some layers (MiniMax, arXiv 2501.08313).

use puna_graph::ops::{Function, GatedLinearAttention, Gating, RopeKind, alibi_slope};
use puna_graph::{Graph, ValueId};

use crate::blocks::{AttentionBlock, Experts};
use crate::qwen_next::recurrent_layers;
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("minimax-01", build);

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let rope = Some(b.rope_settings(RopeKind::Split, head_dim, true)?);
    let block = AttentionBlock { rope, ..AttentionBlock::default() };
    let recurrent = recurrent_layers(&b, 8)?;
    let residual_scale = b.positive_f32("residual_scale")?;
    let experts = Experts::new(Gating::Softmax, true);
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        // The residual stream is the normalised value, not its input.
        let x = b.norm("attn_norm", x)?;
        let h = match recurrent.get(b.layer() as usize) {
            Some(true) => lightning_attention(b, x)?,
            _ => b.self_attention(x, &block)?,
        };
        let x = b.scale(x, residual_scale, "residual_scale")?;
        let x = b.add(x, h)?;
        let x = b.norm("ffn_norm", x)?;
        let h = b.experts(x, &experts)?;
        let x = b.scale(x, residual_scale, "residual_scale")?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Linear attention whose heads forget at fixed speeds, slower in later layers (Qin et al., arXiv 2401.04658).
fn lightning_attention(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let shape = b.head_shape()?;
    let (heads, dim) = (shape.heads, shape.key_dim);
    let all = b.linear("attn_qkv", x, 3 * heads * dim)?;
    let all = b.unary(Function::Silu, all, "attn_qkv")?;
    let all = b.split_heads(all, 3 * dim)?;
    let (q, k, v) = (b.slice(all, 0, dim)?, b.slice(all, dim, dim)?, b.slice(all, 2 * dim, dim)?);
    let depth = b.layer() as f64 / f64::from(b.layers().max(2) - 1);
    let speed = 1.0 - depth + 1e-5;
    let decay = |head| (-alibi_slope(8.0, head, heads) * speed).exp() as f32;
    let state = b.recurrent_state(&[heads, dim, dim])?;
    let attention =
        GatedLinearAttention { state, scale: 1.0, head_decays: Some((0..heads).map(decay).collect()) };
    let h = b.push(attention, vec![q.into(), k.into(), v.into()], "lightning_attention")?;
    let h = b.join_heads(h)?;
    let h = b.norm("attn_norm_2", h)?;
    let gate = b.linear("attn_gate", x, heads * dim)?;
    let h = b.glu(Function::Sigmoid, gate, h)?;
    let width = b.width(x);
    b.linear("attn_output", h, width)
}
