//! EAGLE-3 (arXiv 2503.01840): a draft head of one layer, which reads states of the model that it drafts for.

use puna_graph::ops::{Concat, Function, MatMul, RopeKind};
use puna_graph::{Graph, Output, ValueId};

use crate::blocks::AttentionBlock;
use crate::{Architecture, Builder, ModelError, Purpose};

/// EAGLE-3. A row's features are the fused states of the other model, or the head's own state of the row before; its
/// embeddings are the fused states, made from the states of three layers side by side.
pub const ARCHITECTURE: Architecture = Architecture::new("eagle3", build);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = if b.has("d2t") { b.with_other_outputs() } else { b };
    if b.purpose() != Purpose::Generate {
        let x = fused(&mut b)?;
        return b.embeddings(x);
    }
    if b.layers() != 1 {
        return Err(b.value_error("block_count", b.layers(), "1"));
    }
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, true)?);
    let tokens = b.embed()?;
    let states = b.features(b.width(tokens))?;
    let residual_is_normed = b.bool_or("norm_before_residual", false)?;
    let x = b.each_layer(tokens, |b, tokens| {
        let tokens = b.norm("attn_norm", tokens)?;
        let normed = b.norm("attn_norm_2", states)?;
        let both = b.push(Concat, vec![tokens.into(), normed.into()], "features")?;
        let block = AttentionBlock { rope, ..Default::default() };
        let h = b.attention_heads(both, &block, b.head_shape()?)?;
        let h = b.attention_output(h, b.width(tokens), true)?;
        let x = b.add(if residual_is_normed { normed } else { states }, h)?;
        let h = b.norm("ffn_norm", x)?;
        let h = b.feed_forward(h, Function::Silu)?;
        b.add(x, h)
    })?;
    // The next row's features are the state before the last norm.
    let rows = b.output_rows(x)?;
    let h = b.norm("output_norm", rows)?;
    let logits = draft_logits(&mut b, h)?;
    Ok(b.finish(vec![(Output::Logits, logits), (Output::Hidden, rows)]))
}

/// States of the other model's layers as one.
fn fused(b: &mut Builder<'_>) -> Result<ValueId, ModelError> {
    let layers = b.array_length("target_layers")?;
    if layers != 3 {
        return Err(b.value_error("target_layers", format!("{layers} layers"), "3 layers"));
    }
    let width = b.width_or("target_hidden_size", 0)?;
    let width = layers.saturating_mul(width);
    let mut x = b.features(width)?;
    if b.bool_or("norm_before_fc", false)? {
        x = b.norm("enc.output_norm", x)?;
    }
    b.linear("fc", x, b.width_or("embedding_length", 0)?)
}

/// Logits of the draft's own vocabulary, which may be a part of the other model's: then `d2t` names its tokens.
pub fn draft_logits(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let name = if b.has("output.weight") || b.has("d2t") { "output.weight" } else { "token_embd.weight" };
    let tokens = match b.has("d2t") {
        true => b.agreed(None, [b.said_globally(name, 1), b.said_globally("d2t", 0)])?,
        false => b.vocabulary()?,
    };
    let weight = b.global_weight(name, &[tokens, b.width(x)])?;
    b.push(MatMul, vec![weight, x.into()], "output")
}
