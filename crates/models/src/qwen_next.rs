//! Qwen3-Next and Qwen3.5: gated delta nets, with gated attention in every fourth layer.

use puna_graph::ops::{Function, Gating, KeyHeads, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{AttentionBlock, Experts, Residuals};
use crate::{Architecture, Builder, ModelError, Reads};

pub const QWEN3_NEXT: Architecture =
    Architecture::new("qwen3next", |b| build(with_shared_gate(b), KeyHeads::Grouped))
        .guessing_ahead(Reads::AfterNorm);
pub const QWEN35: Architecture = Architecture::new("qwen35", with_sections).guessing_ahead(Reads::AfterNorm);
pub const QWEN35_MOE: Architecture =
    Architecture::new("qwen35moe", |b| with_sections(with_shared_gate(b))).guessing_ahead(Reads::AfterNorm);

/// With a gate of the shared expert.
pub fn with_shared_gate(b: Builder<'_>) -> Builder<'_> {
    b.needing(&["ffn_gate_inp_shexp.weight"])
}

fn with_sections(b: Builder<'_>) -> Result<Graph, ModelError> {
    b.require_keys(&["rope.dimension_sections"])?;
    build(b, KeyHeads::Cyclic)
}

fn build(mut b: Builder<'_>, key_heads: KeyHeads) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let rope = Some(b.rope_settings(RopeKind::Split, head_dim, true)?);
    let block = AttentionBlock { rope, ..AttentionBlock::default() };
    let recurrent = recurrent_layers(&b, 4)?;
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::POST_ATTENTION,
        |b, x| match recurrent[b.layer() as usize] {
            true => b.gated_delta_net(x, key_heads, Function::Silu),
            false => gated_attention(b, x, &block),
        },
        |b, x| b.dense_or_experts(x, Function::Silu, &Experts::new(Gating::Softmax, true)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Which layers are recurrent: those of `attention.recurrent_layers`, else all but the last of each
/// `full_attention_interval`, else of so many. Those that guess ahead attend.
pub fn recurrent_layers(b: &Builder<'_>, interval: u32) -> Result<Vec<bool>, ModelError> {
    let interval = b.extent_or("full_attention_interval", interval)?;
    let named = b.layer_flags("attention.recurrent_layers")?;
    let by_interval = || (0..b.layers()).map(|layer| !(layer + 1).is_multiple_of(interval)).collect();
    let mut recurrent: Vec<bool> = named.unwrap_or_else(by_interval);
    recurrent.truncate(b.layers() as usize);
    recurrent.resize(b.all_layers() as usize, false);
    Ok(recurrent)
}

/// Attention whose query projection holds a gate beside each head's query.
pub fn gated_attention(
    b: &mut Builder<'_>,
    x: ValueId,
    block: &AttentionBlock,
) -> Result<ValueId, ModelError> {
    let biases = !block.ignores_input_biases;
    let shape = b.head_shape()?;
    let dim = shape.key_dim;
    let both = b.linear_with("attn_q", x, 2 * shape.heads * dim, biases)?;
    let both = b.split_heads(both, 2 * dim)?;
    let (q, gate) = (b.slice(both, 0, dim)?, b.slice(both, dim, dim)?);
    let gate = b.join_heads(gate)?;
    let k = b.linear_with("attn_k", x, shape.kv_heads * dim, biases)?;
    let v = b.linear_with("attn_v", x, shape.kv_heads * shape.value_dim, biases)?;
    let (k, v) = (b.split_heads(k, dim)?, b.split_heads(v, shape.value_dim)?);
    let (mut q, mut k) = (b.norm("attn_q_norm", q)?, b.norm("attn_k_norm", k)?);
    if let Some(rope) = &block.rope {
        (q, k) = (b.rope(q, rope)?, b.rope(k, rope)?);
    }
    let state = b.key_value_state(shape, block.mask);
    let h = b.attend(state, q, k, v, block)?;
    let h = b.glu(Function::Sigmoid, gate, h)?;
    let width = b.width(x);
    b.linear("attn_output", h, width)
}
